"""From times of steps to a number of workers: pure, without a clock."""

import math

import pytest

from loadtune.inflight.limits import Clocks
from loadtune.inflight.measure import (
    MAX_STEPS,
    Reading,
    Steps,
    Work,
    best_number,
    has_gained,
    needed,
    num_needed,
    within_cores_s,
)


def reading(steps, num_workers=1):
    """``steps``: (seconds blocked, seconds between, batches ready)."""
    kept = Steps(num_workers)
    for each in steps:
        kept.add(*each)
    return kept.reading()


BURST = [(0.02, 0.0, 0)] * 3 + [(0.02, 0.04, 0)]


@pytest.mark.parametrize(
    ("steps", "waits", "step_s", "num_needed"),
    [
        ([(0.09, 0.01, 0)] * 24, True, 0.01, 11),
        ([(0.001, 0.01, 5)] * 24, False, 0.01, 11),  # taking a batch that stands ready is no wait
        ([(0.0004, 0.001, 0)] * 24, False, 0.001, 110),  # less than half a millisecond is left alone
        (BURST * 8, True, 0.01, 11),  # accumulated gradients take batches in bursts, and count by their mean
    ],
)
def test_a_loop_that_waits_needs_as_many_workers_as_are_busy_at_a_time(steps, waits, step_s, num_needed):
    found = reading(steps)
    assert found.waits is waits
    assert found.step_s == pytest.approx(step_s)
    assert needed(Work(load_s=0.1, cpu_s=0.01), found.step_s) == num_needed


def test_a_validation_between_two_steps_is_no_step():
    usual = [(0.02, 0.01, 0)] * 99
    assert reading([*usual, (0.02, 30.0, 0), *usual, *usual]).step_s == pytest.approx(0.01, rel=0.02)
    assert reading([(0.02, 30.0, 0), *usual[:23]]) is None, "it waits for more steps to tell a gap from the loop"


def test_a_queue_that_shrinks_is_not_told_as_throughput():
    steps = [(0.0, 0.01, 12 - number) for number in range(12)] + [(0.09, 0.01, 0)] * 12
    found = reading(steps, 6)
    assert found.total_s == pytest.approx((12 * 0.01 + 12 * 0.1) / 24)
    assert found.sustained_s == pytest.approx((12 * 0.01 + 12 * 0.1) / 12)
    steady = [(0.09, 0.01, 0)] * (MAX_STEPS + 1)
    assert reading(steady).sustained_s == pytest.approx(0.1)
    drained = [(0.0, 0.01, MAX_STEPS - number) for number in range(MAX_STEPS)]
    assert reading([*drained, *steady]).sustained_s == pytest.approx(0.1), (
        "steps that are dropped take their queue along"
    )


def test_enough_steps_span_three_turns_of_all_workers():
    assert num_needed(10, 0.2) == 30


WAITING = Reading(num_steps=24, total_s=0.1, blocked_s=0.09, handover_s=0.0, step_s=0.01, error_s=0.001)


def test_workers_that_take_long_to_start_must_gain_more_than_that_in_what_is_left():
    work = Work(load_s=0.1, cpu_s=0.01)

    def start_s(number):
        return 1.5 * number

    assert [best_number(WAITING, work, most, math.inf, start_s)[0] for most in (64, 2)] == [11, 2]
    few, saved_s = best_number(WAITING, work, 64, 400, start_s)
    assert 2 <= few <= 6
    assert saved_s > 0
    assert best_number(WAITING, work, 64, 10, start_s)[1] <= 0


def test_a_worker_that_queued_for_a_core_would_use_all_of_one():
    assert Work(load_s=0.3, cpu_s=0.1, queued_s=0.2).cpu_share == pytest.approx(1.0)


@pytest.mark.parametrize(("threads", "num_workers", "num_more", "batch_s"), [
    (2, 0, 1, 0.1), (2, 0, 2, 0.055), (1, 0, 1, 0.09), (2, 2, 2, 0.055),
])  # fmt: skip
def test_workers_get_the_cores_that_the_step_leaves(threads, num_workers, num_more, batch_s):
    """Of two cores; a step of 10 ms keeps as many busy as it has threads."""
    then = Clocks(batches=0, cpu_s=0.0, load_s=0.09)
    busy_s = threads * 0.01 + (0 if num_workers else 0.09)
    now = Clocks(batches=10, cpu_s=0.9, load_s=0.09, trained_s=(1.0, 10 * busy_s))
    work = now.work_since(then, WAITING, num_workers, 2.0)
    assert within_cores_s(work, WAITING.step_s, num_more) == pytest.approx(batch_s)


@pytest.mark.parametrize(
    ("total_s", "may_tie", "kept"), [(0.05, False, True), (0.1, False, None), (0.13, False, False), (0.1, True, True)]
)
def test_more_workers_must_gain_and_fewer_must_not_lose(total_s, may_tie, kept):
    after = Reading(num_steps=24, total_s=total_s, blocked_s=0.0, handover_s=0.0, step_s=0.01, error_s=0.002)
    assert has_gained(after, WAITING, 8, may_tie=may_tie) is kept
