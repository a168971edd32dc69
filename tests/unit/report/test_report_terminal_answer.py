"""That the answer is one, wherever it is shown; its words are golden texts."""

from dataclasses import replace
from pathlib import Path

from page_rig import golden

from loadtune import export
from loadtune.records.statistics import Interval
from loadtune.report.page import page_view
from loadtune.report.terminal import terminal_answer


def test_every_view_gives_the_same_answer_and_no_rate_that_may_be_0() -> None:
    result, told = golden(), "14.9× your settings (99% interval 1.07–207)."
    best = replace(result.best, half_width_fraction=1.32, speedup=Interval(value=14.9, low=1.07, high=206.57))
    kept = replace(result.best, config=result.yours, rival_gain=Interval(value=0.9, low=0.3, high=2.5))
    result = replace(result, best=best, best_at_your_batch=kept)
    said = "\n".join(terminal_answer(result, Path("runs/report.html")))
    assert said.startswith(f"Batch 256: {told} To keep it:\nloader = DataLoader(")
    assert "\nNothing is proven at batch size 64: your settings may be best, or others up to 2.50× as fast" in said
    for each in (golden(), result):
        assert terminal_answer(each)[0] == f"{page_view(each)['headline']} To keep it:"
    assert f"{told} Confirmed by " in " ".join(export(result, "python").replace("#", "").split())


def test_of_several_ranks_it_says_what_is_of_one_and_what_of_all() -> None:
    result = golden()
    of_two = replace(result, facts=replace(result.facts, num_ranks=2))
    alone, both = terminal_answer(result)[0], " ".join(terminal_answer(of_two)[:2])
    said = result.best_at_your_batch
    assert "ranks" not in alone
    assert f"samples/s on each of 2 ranks ({2 * said.throughput.value:,.0f} in all" in both
    assert f"in all with {2 * said.config.batch_size:,} samples a step)" in both
