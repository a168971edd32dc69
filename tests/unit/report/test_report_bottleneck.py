"""The bottleneck in words: what limits, what comes next, what a change brings, and when nothing is named."""

from dataclasses import replace

import pytest
from page_rig import explained

from loadtune.records import Bottleneck, Estimate, LateBatches, ResourceLimit, TuningResult
from loadtune.report.bottleneck import bottleneck_text, lines, short_lines


def of(result: TuningResult) -> Bottleneck:
    assert result.bottleneck is not None
    return result.bottleneck


def test_the_limit_the_next_one_and_the_sure_change_are_said() -> None:
    result = explained({"half_the_loading": 5300.0})
    first, change = short_lines(result)
    assert first == "Limited by the pinning thread (4,200 samples/s). Next: the GPU at 6,000."
    assert change.startswith("Predicted: samples that load in half the time give 5,300 samples/s (1.31×")


def test_two_that_may_limit_are_both_said_the_lower_first() -> None:
    result = explained()
    pinning, device = of(result).limits
    even = (replace(pinning, probability=0.5), replace(device, probability=0.5))
    said = short_lines(replace(result, bottleneck=replace(of(result), limits=even)))[0]
    assert said == "Limited by the pinning thread (4,200 samples/s) or the GPU (6,000 samples/s)."


def test_what_comes_next_is_above_all_that_are_named() -> None:
    """The workers' limit is hardly known, so that they may be the first although the GPU's lies lower."""
    result = explained()
    pinning, device = of(result).limits
    workers = replace(pinning, resource="workers", samples_per_s=Estimate(value=6500.0, low=3000.0, high=9000.0))
    limits = (replace(pinning, probability=0.6), replace(workers, probability=0.3), replace(device, probability=0.1))
    said = short_lines(replace(result, bottleneck=replace(of(result), limits=limits)))[0]
    assert said == (
        "Limited by the pinning thread (4,200 samples/s), the GPU (6,000 samples/s) or the worker processes (6,500 "
        "samples/s)."
    )


def test_a_change_whose_gain_may_be_none_is_in_the_details_alone() -> None:
    result = explained()
    unsure = replace(of(result).changes[0], gain=Estimate(value=1.1, low=0.9, high=1.3))
    result = replace(result, bottleneck=replace(of(result), changes=(unsure,)))
    assert len(short_lines(result)) == 1
    assert any("half the time" in line for line in lines(result))


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
    result = explained()
    limit = ResourceLimit(
        resource=resource,  # type: ignore[arg-type]
        samples_per_s=Estimate(value=100.0, low=90.0, high=110.0),
        probability=1.0,
        shares={part: 0.9, "loading": 0.1},  # type: ignore[dict-item]
    )
    assert bottleneck_text(replace(of(result), limits=(limit,))) == words


def test_a_model_that_does_not_hold_names_nothing_and_says_why() -> None:
    result = explained()
    broken = replace(of(result), holds=False, num_missed=3, late=LateBatches(by="worker", ratio=3.0, wait_fraction=0.8))
    late, said = short_lines(replace(result, bottleneck=broken))
    assert late.startswith("One worker takes 3.00× as long for a batch as the others")
    assert said.startswith(
        "No bottleneck is named: the throughput model does not describe this job (3 of 5 predictions"
    )
    assert bottleneck_text(broken) == "–"
