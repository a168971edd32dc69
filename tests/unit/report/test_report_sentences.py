"""What a result comes to in sentences: the bottleneck, and the changes of the code with their lines to paste."""

from dataclasses import replace

import pytest
from page_rig import explained, golden

from loadtune.records.result import Remedies, TuningResult
from loadtune.report.forms import changes_code
from loadtune.report.wording import best_with_changes, bottleneck_sentence
from loadtune.statistics.interval import Interval


def of(result: TuningResult, **more: object) -> TuningResult:
    return replace(result, remedies=replace(result.remedies, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rate", "at_yours", "said"),
    [
        (4050.0, False, "Bottleneck: the pinning thread (at most 4,200 samples/s, probability 86%)."),
        (4300.0, False, "Bottleneck: the pinning thread (probability 86%)."),
        (4050.0, True, "Bottleneck at batch 256: the pinning thread (at most 4,200 samples/s, probability 86%)."),
    ],
)
def test_one_resource_is_named_and_no_limit_below_the_measured_rate(rate: float, at_yours: bool, said: str) -> None:
    result = explained()
    best = replace(result.best, samples_per_s=rate)
    result = replace(result, best=best, best_at_your_batch=result.best_at_your_batch if at_yours else best)
    assert bottleneck_sentence(result) == (said,)


def test_a_model_that_does_not_hold_names_nothing_and_says_why() -> None:
    result = explained(holds=False, num_missed=3)
    assert bottleneck_sentence(result)[0].startswith(
        "Bottleneck: not known, because the throughput model does not fit this job (3 of 5 predictions missed"
    )


def test_each_change_has_its_gain_or_why_there_is_none_and_its_lines() -> None:
    notes = {one.title.partition(":")[0]: one.note for one in changes_code(golden())}
    assert list(notes) == ["uint8 transfer", "copy ahead", "start method", "compiled"]
    assert notes["copy ahead"] == (
        "Measured alone: 1.04× (99% interval 1.01–1.07). What changes for training: one more batch of GPU memory."
    )
    assert notes["compiled"].startswith("Predicted: 1.05× (1.01–1.09). Not measured alone: no time was left to try it.")
    kept = [one.title.partition(":")[0] for one in changes_code(golden(), kept=True)]
    assert kept == ["uint8 transfer", "copy ahead"]


def test_what_all_changes_bring_is_one_sentence_with_the_settings_where_they_are_others() -> None:
    config = golden().remedies.config
    config = replace(config, loader=replace(config.loader, batch_size=48, num_workers=1))
    said = best_with_changes(of(golden(), config=config))[0]
    assert said.endswith(", with batch 48, 1 worker, pinned, fp16. Tune the learning rate again.")
    lost = of(golden(), config=None, samples_per_s=None, gain=Interval(value=0.99, low=0.96, high=1.02))
    assert best_with_changes(lost) == ()
    assert changes_code(replace(golden(), remedies=Remedies())) == ()
