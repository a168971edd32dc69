"""The bottleneck in words: what limits, what comes next, what a change brings, and when nothing is named."""

from dataclasses import replace

import pytest
from page_rig import explained

from loadtune.records.interval import Interval
from loadtune.records.result import Bottleneck, LateBatches, ResourceLimit, TuningResult
from loadtune.report.sentences import bottleneck_lines, bottleneck_sentence, late_sentence, resource_text


def of(result: TuningResult) -> Bottleneck:
    assert result.bottleneck is not None
    return result.bottleneck


def test_every_limit_and_each_change_is_in_the_details() -> None:
    first, *others = bottleneck_lines(explained({"half_the_loading": 5300.0}))
    assert first == "Bottleneck at batch 256: the pinning thread (at most 4,200 samples/s, probability 86%)."
    assert any(line.startswith("The GPU: 6,000 samples/s (") for line in others)
    assert any(line.startswith("Predicted: samples that load in half the time give 5,300 samples") for line in others)


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
        ("device", "copying", "copies to the GPU"),
        ("device", "synchronizing", "GradScaler's wait for the GPU in each step"),
        ("main", "launching", "the training process, which launches the steps"),
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
    result = explained()
    broken = replace(of(result), holds=False, num_missed=3, late=LateBatches(by="worker", ratio=3.0, wait_fraction=0.8))
    result = replace(result, bottleneck=broken)
    (late,), (said,) = late_sentence(result), bottleneck_sentence(result)
    assert late.startswith("One worker takes 3.00× as long for a batch as the others")
    assert said.startswith(
        "Bottleneck: not known, because the throughput model does not fit this job (3 of its 5 predictions"
    )
