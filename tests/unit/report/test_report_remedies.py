"""Changes of the code in words: what is said of those that gain, of those that do not, and of those not measured."""

from dataclasses import replace

from page_rig import cut_short, golden

from loadtune.records.interval import Interval
from loadtune.records.result import LeftOut, Remedies, TuningResult
from loadtune.report.page.view import page_view
from loadtune.report.sentences import RemediesView, best_with_changes, kept_code, remedies_view
from loadtune.report.wording import searched_text, settings_text


def of(result: TuningResult, **more: object) -> TuningResult:
    assert result.remedies is not None
    return replace(result, remedies=replace(result.remedies, **more))  # type: ignore[arg-type]


def detailed(result: TuningResult) -> RemediesView:
    view = remedies_view(result)
    assert view is not None
    return view


def without_gain() -> TuningResult:
    """The one that does not gain, and the one that was not tried."""
    tried = tuple(
        replace(each, config=replace(each.config, remedies=("start_method",))) for each in golden().remedies.tried[2:]
    )
    return of(
        golden(), tried=tried, config=None, samples_per_s=None, gain=tried[0].gain,
        compute_fraction=None,
    )  # fmt: skip


def test_all_that_were_tried_are_in_the_details_best_first_and_those_not_measured_last() -> None:
    view = detailed(golden())
    assert view.table is not None
    assert [(row[0], row[2]) for row in view.table.rows] == [
        ("uint8 transfer", "1.27× (1.22–1.32)"),
        ("copy ahead", "1.04× (1.01–1.07)"),
        ("forkserver", "0.99× (0.96–1.02)"),
        ("torch.compile", "no time was left to try it"),
    ]
    assert [one.title.partition(":")[0] for one in kept_code(golden())] == ["uint8 transfer", "copy ahead"]
    assert len(view.code) == 4
    assert view.code[1].note == "What changes for training: one more batch of GPU memory."


def test_what_all_changes_bring_is_one_sentence() -> None:
    (said,) = best_with_changes(golden())
    assert said.startswith(
        "A change of your code gains 1.32× more at batch 256 (99% interval 1.26–1.38), 5,350 samples/s: send"
    )
    assert best_with_changes(without_gain()) == ()


def test_other_settings_that_changes_were_measured_with_stand_below_their_lines() -> None:
    result = golden()
    assert result.remedies is not None
    first, *others = result.remedies.tried
    config = replace(
        first.config,
        loader=replace(first.config.loader, batch_size=48, num_workers=1),
        recipe=replace(first.config.recipe, precision="bf16"),
    )
    changed = of(result, tried=(replace(first, config=config), *others), config=config)
    view, code = detailed(changed), kept_code(changed)
    assert view.table is not None
    assert view.table.rows[0][0] == "uint8 transfer and batch 48, 1 worker, bf16"
    assert code[-1].title == "settings for these changes"
    settings, *step = code[-1].lines
    assert settings == "# loader = DataLoader(..., batch_size=48, num_workers=1)"
    assert step[0] == 'with torch.autocast("cuda", dtype=torch.bfloat16):'
    assert step[-2:] == ["loss.backward()", "optimizer.step()"]
    assert best_with_changes(changed)[0].endswith(", with batch 48, 1 worker, bf16. Tune the learning rate again.")


def test_those_that_were_not_tried_stand_in_the_details_with_what_is_predicted_or_why() -> None:
    left = (
        LeftOut(name="copy_ahead", reason=None, predicted=Interval(value=1.0, low=0.9, high=1.1)),
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


def test_where_energy_counts_the_gain_is_of_samples_per_joule() -> None:
    result = golden()
    result = replace(result, config=replace(result.config, objective="samples-per-joule"))
    assert "gains 1.32× in samples/J more" in best_with_changes(result)[0]
    table = detailed(result).table
    assert table is not None
    assert "measured, samples/J (99% CI)" in table.columns


def test_where_nothing_gains_one_line_says_so_and_there_is_no_code_to_keep() -> None:
    assert detailed(without_gain()).lines[0] == ("No change of the code gained: forkserver, 0.99× (0.96–1.02).")
    assert kept_code(without_gain()) == ()
    assert page_view(without_gain()).with_changes is None


def test_an_older_result_and_one_without_a_winner_say_nothing_of_them() -> None:
    for result in (replace(golden(), remedies=None), replace(golden(), remedies=Remedies()), cut_short()):
        assert kept_code(result) == ()
        assert remedies_view(result) is None
        assert all(chapter.remedies is None for chapter in page_view(result).chapters)


def test_settings_name_their_changes_once() -> None:
    compiled = golden().remedies.tried[-1].config
    assert settings_text(compiled).endswith("fused optimizer, torch.compile, with uint8 transfer and copy ahead")
    assert (
        searched_text(golden().remedies.tried[0].config) == "batch 256, 16 workers, pinned, fp16, with uint8 transfer"
    )
