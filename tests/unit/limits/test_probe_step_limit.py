"""A batch grows by what steps were seen to take: a small step says little of a large one."""

import pytest

from loadtune.limits.memory import MemoryProbe
from loadtune.limits.step_limit import StepLimit, largest_within
from loadtune.records.config import Recipe
from loadtune.testing import FakeTraining, Surface

RECIPE = Recipe(precision="fp32")


def costs(size: int) -> float:
    """0.1 s a step, 1 ms a sample: 500 samples take 0.6 s."""
    return 0.1 + 0.001 * size


@pytest.mark.parametrize(
    ("step_s", "largest"),
    [
        ({2: 0.102}, 11),  # by the rate alone
        ({2: 0.4}, 4),  # twice the batch takes twice the limit at most
        ({2: 0.7}, 1),
        ({2: 0.102, 11: 0.111}, 118),  # the line says 500, and is trusted to twice of what the rate allows
        ({2: 0.102, 11: 0.111, 118: 0.218}, 500),
        ({110: 0.34, 118: 0.44, 40: 0.3}, 207),  # a neighbour 7% smaller tells nothing of the slope
        ({10: 0.2, 20: 0.2}, 120),  # no slope: as if every sample after these were free, as far as that is trusted
    ],
)
def test_the_largest_batch_within_the_limit(step_s: dict[int, float], largest: int) -> None:
    assert largest_within(0.6, step_s) == pytest.approx(largest, abs=1)


@pytest.mark.parametrize("first", [2, 64])
def test_the_probe_grows_to_the_limit_by_the_steps_it_times(first: int) -> None:
    """By the rate of two samples it would have ended at 11."""
    training = FakeTraining(Surface(compute_per_s={"fp32": 1000.0}, half_batch=100.0))
    limit = StepLimit(seconds=0.6, known={first: costs(first)})
    ceiling = MemoryProbe(training, RECIPE, {"dataset": 10**6}, step_limit=limit).verify()
    assert 400 <= ceiling.batch_size <= 500
    assert ceiling.limit == "time"
    assert all(probe.step_s is not None and probe.step_s <= 0.601 for probe in ceiling.probes)


def test_a_named_size_is_probed_beyond_the_limit() -> None:
    training = FakeTraining(Surface(compute_per_s={"fp32": 1000.0}, half_batch=100.0))
    limit = StepLimit(seconds=0.6, known={64: costs(64)}, admitted=550)
    assert MemoryProbe(training, RECIPE, {"dataset": 10**6}, step_limit=limit).verify().batch_size == 550
