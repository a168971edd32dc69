"""What a result comes to in sentences: the bottleneck, and the changes of the code with their lines to paste."""

from dataclasses import replace

import pytest
from page_rig import cut_short, explained, golden

from loadtune.records.interval import Interval
from loadtune.records.result import LateBatches, LeftOut, Remedies, ResourceLimit, TuningResult
from loadtune.report.sentences import (
    best_with_changes,
    bottleneck_sentence,
    changes_view,
    kept_code,
    late_sentence,
    resource_text,
)


def of(result: TuningResult, **more: object) -> TuningResult:
    assert result.remedies is not None
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
    assert result.best is not None
    best = replace(result.best, samples_per_s=rate)
    result = replace(result, best=best, best_at_your_batch=result.best_at_your_batch if at_yours else best)
    assert bottleneck_sentence(result) == (said,)


@pytest.mark.parametrize(
    ("resource", "part", "words"),
    [
        ("workers", "waiting", "the worker processes, which mostly wait (storage, network or sleep)"),
        ("device", "synchronizing", "GradScaler's wait for the GPU in each step"),
        ("main", "computing", "the training process, which loads and computes in turn"),
    ],
)
def test_what_a_resource_mostly_does_is_named(resource: str, part: str, words: str) -> None:
    limit = ResourceLimit(
        resource=resource,  # type: ignore[arg-type]
        samples_per_s=Interval(value=100.0, low=90.0, high=110.0),
        probability=1.0,
        shares={part: 0.9, "loading": 0.1},  # type: ignore[dict-item]
    )
    assert resource_text(limit) == words


def test_a_model_that_does_not_hold_names_nothing_and_says_why() -> None:
    late = LateBatches(by="worker", ratio=3.0, wait_fraction=0.8)
    result = explained(holds=False, num_missed=3, late=late)
    assert late_sentence(result)[0].startswith("One worker takes 3.00× as long for a batch as the others")
    assert bottleneck_sentence(result)[0].startswith(
        "Bottleneck: not known, because the throughput model does not fit this job (3 of its 5 predictions"
    )


def test_changes_are_listed_best_first_and_those_not_measured_last() -> None:
    left = (
        LeftOut(name="tensor_decoding", reason=None, predicted=Interval(value=1.0, low=0.9, high=1.1)),
        LeftOut(name="batched_fetch", reason="the dataset cannot be indexed with a list"),
    )
    view = changes_view(of(golden(), left_out=left))
    assert view is not None
    assert [(row[0], row[2]) for row in view.tables[0].rows] == [
        ("uint8 transfer", "1.27× (1.22–1.32)"),
        ("copy ahead", "1.04× (1.01–1.07)"),
        ("forkserver", "0.99× (0.96–1.02)"),
        ("torch.compile", "no time was left to try it"),
        ("tensor decoding", "too little gain"),
    ]
    assert len(view.sections) == 4
    assert view.sections[1].note == "What changes for training: one more batch of GPU memory."
    assert [one.title.partition(":")[0] for one in kept_code(golden())] == ["uint8 transfer", "copy ahead"]


def test_what_all_changes_bring_is_one_sentence() -> None:
    start = "A change of your code gains 1.32× more at batch 256 (99% interval 1.26–1.38), 5,350 samples/s: send"
    assert best_with_changes(golden())[0].startswith(start)
    by_energy = replace(golden(), config=replace(golden().config, objective="samples-per-joule"))
    assert "gains 1.32× in samples/J more" in best_with_changes(by_energy)[0]
    lost = of(golden(), config=None, samples_per_s=None, gain=Interval(value=0.99, low=0.96, high=1.02))
    assert best_with_changes(lost) == ()


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
    view, settings = changes_view(changed), kept_code(changed)[-1]
    assert view is not None
    assert view.tables[0].rows[0][0] == "uint8 transfer and batch 48, 1 worker, bf16"
    assert settings.title == "settings for these changes"
    assert settings.lines[0] == "# loader = DataLoader(..., batch_size=48, num_workers=1)"
    assert settings.lines[1] == 'with torch.autocast("cuda", dtype=torch.bfloat16):'
    assert best_with_changes(changed)[0].endswith(", with batch 48, 1 worker, bf16. Tune the learning rate again.")


def test_a_result_without_changes_says_nothing_of_them() -> None:
    for result in (replace(golden(), remedies=None), replace(golden(), remedies=Remedies()), cut_short()):
        assert kept_code(result) == ()
        assert changes_view(result) is None
