"""What the last lines of a run say, and that no more is said than was measured."""

from dataclasses import replace
from pathlib import Path

from page_rig import golden

from loadtune import export
from loadtune.records.config import Recipe, TrialConfig
from loadtune.records.result import Finalist, TuningResult
from loadtune.report.page.write import page_view
from loadtune.report.terminal_answer import terminal_answer
from loadtune.statistics.interval import Interval

PAGE = Path("runs/report.html")


def said(result: TuningResult) -> str:
    return "\n".join(terminal_answer(result, PAGE))


def won(result: TuningResult, config: TrialConfig, **figures: object) -> TuningResult:
    """With this winner, measured as the golden result's was; no batch size was given."""
    best = replace(result.best, config=config, **figures)  # type: ignore[arg-type]
    finalists = (replace(result.finalists[0], config=config), *result.finalists[1:])
    return replace(result, best=best, best_at_your_batch=None, finalists=finalists, remedies=None)


def gains(result: TuningResult) -> str:
    text = " ".join(terminal_answer(result, PAGE))
    return text.partition("Gain in epoch time: ")[2].partition(".  ")[0].partition(". ")[0]


def test_without_a_batch_size_of_theirs_the_best_is_the_headline() -> None:
    result = golden()
    first, *more = terminal_answer(replace(result, best_at_your_batch=None), PAGE)
    assert first == "4,050 ± 162 samples/s, 2.50× your settings (99% interval 2.38–2.63)."
    assert "Batch size 256 instead of 64: tune the learning rate again, check accuracy." in more
    every = ("batch_size", "num_workers", "pin_memory", "precision")
    assert "× PyTorch's defaults (" in said(replace(result, best_at_your_batch=None, assumed=every))


def test_every_view_gives_the_same_answer_and_no_rate_that_may_be_0() -> None:
    result, told = golden(), "14.9× your settings (99% interval 1.07–207)."
    best = replace(result.best, half_width_fraction=1.32, speedup=Interval(value=14.9, low=1.07, high=206.57))
    kept = replace(result.best, config=result.yours, rival_gain=Interval(value=0.9, low=0.3, high=2.5))
    result = replace(result, best=best, best_at_your_batch=kept)
    assert said(result).startswith(f"Batch 256: {told}\nloader = DataLoader(")
    assert "\nNo conclusion at batch size 64: a gain of up to 2.50× is not excluded" in said(result)
    assert page_view(result)["headline"].endswith(f", fused optimizer: {told}")
    for form in ("python", "markdown"):
        assert f"{told} Confirmed by " in " ".join(export(result, form).replace("#", "").split())


def test_a_baseline_that_failed_is_compared_with_nothing() -> None:
    failed = won(golden(), golden().best.config, speedup=None)
    text = said(replace(failed, finalists=failed.finalists[:2]))
    assert text.startswith("4,050 ± 162 samples/s; your settings could not be measured.")
    assert "×" not in text


def test_where_only_the_step_gains_the_loader_is_called_right_and_the_lines_of_the_step_are_shown() -> None:
    recipe = Recipe(precision="bf16", memory_format="channels_last")
    text = said(won(golden(), replace(golden().yours, recipe=recipe)))
    assert "Your DataLoader is right as it is. All of the gain is in the training step:\nmodel = model.to(" in text
    assert "DataLoader(" not in text
    assert "GradScaler" not in text


def test_a_gain_is_measured_where_contestants_differ_in_one_lever_alone() -> None:
    result = golden()
    best, run = result.best.config, result.finalists[1].runs[0]
    loader = replace(best.loader, batch_size=64)
    typed = Finalist(config=replace(result.yours, loader=loader), runs=(run,))
    same_batch = Finalist(config=replace(best, loader=loader), runs=(run,))
    result = replace(won(result, best), bottleneck=None)
    assert gains(result) == "", "the headline says it"
    result = replace(result, finalists=(*result.finalists, same_batch))
    assert gains(result) == "workers and pinning together with precision and memory format 1.73×, then batch size 1.45×"
    result = replace(result, finalists=(*result.finalists, typed))
    assert gains(result) == "workers and pinning 1.73×, then precision and memory format 1.00×, then batch size 1.45×"


def test_a_change_that_gains_is_exported_whole() -> None:
    whole = export(golden(), "pytorch")
    assert "measured with\n# batch 256, 16 workers, pinned, fp16, channels_last" in whole
    assert "# dataset.transform = transforms.Compose([transforms.PILToTensor()])\n" in whole
    assert "# for inputs, targets in copied_ahead(loader, device):\n" in whole


def test_where_not_all_contestants_fit_the_answer_and_the_baseline_stay() -> None:
    result = golden()
    first, loader = result.finalists[0], result.finalists[0].config.loader
    configs = [replace(first.config, loader=replace(loader, num_workers=number)) for number in range(1, 12)]
    more = [replace(first, config=config) for config in configs]
    text = said(replace(result, finalists=(*result.finalists, *more), cut_short="interrupted"))
    assert len(text.splitlines()) <= 22
    assert "\nanswer " in text
    assert "\nbaseline " in text


def test_notes_that_do_not_fit_are_counted() -> None:
    result = replace(golden(), notes=("One sentence.", "Another one."))
    assert said(result).endswith("\nOne sentence.\nReport, with 1 more note: runs/report.html")
    roomy = replace(result, remedies=None, best=None, best_at_your_batch=None, finalists=())
    assert said(roomy).endswith("\nOne sentence.\nAnother one.\nReport: runs/report.html")
