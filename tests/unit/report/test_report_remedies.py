"""Changes of the code in words: what is said of those that gain, of those that do not, and of those not measured."""

from dataclasses import replace

from page_rig import cut_short, golden

from loadtune.records import Estimate, LeftOut, Remedies, TuningResult
from loadtune.report.page.view import page_view
from loadtune.report.remedies import RemediesView, best_with_changes, remedies_answer, remedies_view
from loadtune.report.view import summary
from loadtune.report.wording import searched_text, settings_text


def of(result: TuningResult, **more: object) -> TuningResult:
    assert result.remedies is not None
    return replace(result, remedies=replace(result.remedies, **more))  # type: ignore[arg-type]


def answered(result: TuningResult) -> RemediesView:
    view = remedies_answer(result)
    assert view is not None
    return view


def without_gain() -> TuningResult:
    """The one that does not gain, and the one that was not tried."""
    return of(
        golden(), tried=golden().remedies.tried[2:], config=None, samples_per_s=None, half_width_fraction=None,
        gain=None, compute_fraction=None,
    )  # fmt: skip


def test_the_answer_has_those_that_gain_best_first_and_then_those_not_measured() -> None:
    table = answered(golden()).table
    assert table is not None
    assert [(row[0], row[2]) for row in table.rows] == [
        ("uint8 transfer", "1.27× (1.22–1.32)"),
        ("copy ahead", "1.04× (1.01–1.07)"),
        ("torch.compile", "no time was left to try it"),
    ]


def test_code_in_the_answer_is_of_those_that_gain_and_the_details_have_all() -> None:
    details = remedies_view(golden())
    assert details is not None
    assert details.table is not None
    assert [one.title.partition(":")[0] for one in answered(golden()).code] == ["uint8 transfer", "copy ahead"]
    assert len(details.code) == len(details.table.rows) == 4
    assert any("without a certain gain: forkserver (0.99×, 0.96 to 1.02)" in line for line in details.lines)
    assert any("copy ahead on top of uint8 transfer" in line for line in details.lines)
    assert details.code[1].changes == "What changes for training: one more batch of GPU memory."


def test_the_best_with_all_that_gain_is_one_sentence() -> None:
    assert best_with_changes(golden()) == (
        "With the code changes that gain: 5,350 samples/s ± 3%, 87% of the compute-only rate, 1.32 times (1.26 to "
        "1.38) the best, in turn.",
    )


def test_what_the_best_trained_beside_the_changes_is_said_and_that_it_was_another_machine_then() -> None:
    result = golden()
    assert result.best is not None
    half = result.best.half_width_fraction
    assert half is not None
    run = next(f for f in result.finalists if f.config == result.best.config).runs[0]

    def beside(times: float) -> tuple[str, ...]:
        seconds = run.windows[0].num_samples / (times * result.best.samples_per_s)
        window = replace(run.windows[0], seconds=seconds)
        return best_with_changes(of(result, base_runs=(replace(run, windows=(window,)),)))

    (alike,) = beside(1 - 0.5 * half)
    assert alike.endswith(" samples/s of the best in turn.")
    assert beside(1 - 2 * half)[1] == "The best was slower in these runs than its interval in the table says."
    assert beside(1 + 2 * half)[1] == "The best was faster in these runs than its interval in the table says."


def test_one_change_other_workers_and_figures_that_are_missing() -> None:
    result, tried = golden(), golden().remedies.tried
    loader = replace(tried[0].config.loader, num_workers=1)
    one = of(
        result, tried=tried[:1], config=replace(tried[0].config, loader=loader), half_width_fraction=None, gain=None,
        compute_fraction=None,
    )  # fmt: skip
    assert best_with_changes(one) == ("With the code change that gains and 1 worker: 5,350 samples/s.",)


def test_other_settings_that_changes_were_measured_with_stand_below_their_lines() -> None:
    result = golden()
    assert result.remedies is not None
    first, *others = result.remedies.tried
    config = replace(
        first.config,
        loader=replace(first.config.loader, batch_size=48, num_workers=1),
        recipe=replace(first.config.recipe, precision="bf16"),
    )
    view = answered(of(result, tried=(replace(first, config=config), *others), config=config))
    assert view.table is not None
    assert view.table.rows[0][0] == "uint8 transfer and batch 48, 1 worker, bf16"
    assert view.code[-1].title == "settings for these changes"
    settings, precision, *step = view.code[-1].lines
    assert settings == "# loader = DataLoader(..., batch_size=48, num_workers=1)"
    assert precision == "# the training step in bf16"
    assert step[0] == 'with torch.autocast("cuda", dtype=torch.bfloat16):'
    assert "optimizer.step()" in step


def test_those_that_were_not_tried_stand_in_the_details_with_what_is_predicted_or_why() -> None:
    left = (
        LeftOut(name="copy_ahead", reason=None, predicted=Estimate(value=1.0, low=0.9, high=1.1)),
        LeftOut(name="batched_fetch", reason="the dataset cannot be indexed with a list"),
    )
    alone = of(without_gain(), tried=(), left_out=left)
    view = remedies_view(alone)
    assert view is not None
    assert view.table is None
    assert view.lines == (
        "Not tried, because too little gain is expected: copy ahead (1.00× (0.90–1.10)).",
        "Not tried: batched fetch (the dataset cannot be indexed with a list).",
    )
    assert remedies_answer(alone) is None


def test_where_energy_counts_the_gain_is_of_samples_per_joule() -> None:
    result = golden()
    result = replace(result, config=replace(result.config, objective="samples-per-joule"))
    assert "1.32 times (1.26 to 1.38) the samples per joule of the best, in turn" in best_with_changes(result)[0]
    table = answered(result).table
    assert table is not None
    assert "measured, samples/J (95% CI)" in table.columns


def test_where_nothing_gains_one_line_says_so_and_no_code_is_shown() -> None:
    view = answered(without_gain())
    assert view.lines == ("No change of the code was found to gain: forkserver (0.99×, 0.96 to 1.02).",)
    assert view.code == ()
    assert view.table is not None
    assert [row[0] for row in view.table.rows] == ["torch.compile"]
    assert page_view(without_gain()).with_changes is None


def test_a_long_reason_is_cut_in_the_answer_alone() -> None:
    failed = replace(golden().remedies.tried[-1], reason="out of memory: " + "CUDA out of memory. " * 30)
    view, details = answered(of(golden(), tried=(failed,))), remedies_view(of(golden(), tried=(failed,)))
    assert view.table is not None
    assert details is not None
    assert details.table is not None
    assert len(view.table.rows[0][2]) <= 60
    assert details.table.rows[0][2] == failed.reason


def test_an_older_result_and_one_without_a_winner_say_nothing_of_them() -> None:
    for result in (replace(golden(), remedies=None), replace(golden(), remedies=Remedies()), cut_short()):
        assert remedies_answer(result) is None
        assert summary(result).remedies is None
        assert all(chapter.remedies is None for chapter in page_view(result).chapters)


def test_settings_name_their_changes_once() -> None:
    compiled = golden().remedies.tried[-1].config
    assert settings_text(compiled).endswith("fused optimizer, torch.compile, with uint8 transfer and copy ahead")
    assert (
        searched_text(golden().remedies.tried[0].config) == "batch 256, 16 workers, pinned, fp16, with uint8 transfer"
    )
