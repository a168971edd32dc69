"""From times of steps and clocks to what is decided by: pure, without a clock."""

import pytest

from loadtune.decide.steps import GROUP, MAX_STEPS, Steps, num_needed
from loadtune.inflight.readings import Clocks
from loadtune.model.workers import Free, Loop, Queued, Work, batch_s, fewest, most_by_cores, most_workers


def reading(steps, num_workers=1):
    """``steps``: (seconds blocked, seconds between, batches ready)."""
    kept = Steps(num_workers)
    for each in steps:
        kept.add(*each)
    return kept.reading()


BURST = [(0.02, 0.0, 0)] * 3 + [(0.02, 0.04, 0)]


@pytest.mark.parametrize(
    ("steps", "waits", "step_s"),
    [
        ([(0.09, 0.01, 0)] * 24, True, 0.01),
        ([(0.001, 0.01, 5)] * GROUP, False, 0.01),  # taking a batch that stands ready is no wait
        ([(0.001, 0.01, 1)] * 24, True, 0.01),  # one may have come this moment
        ([(0.0004, 0.001, 0)] * 24, False, 0.001),  # less than half a millisecond is left alone
        ([(0.0005, 0.001, 0)] * 24, True, 0.001),
        (BURST * 8, True, 0.01),  # accumulated gradients take batches in bursts, and count by their mean
    ],
)
def test_a_loop_that_waits(steps, waits, step_s):
    found = reading(steps)
    assert found.waits is waits
    assert found.step_s == pytest.approx(step_s)


def test_a_validation_between_two_steps_is_no_step():
    usual = [(0.02, 0.01, 0)] * 99
    found = reading([*usual, (0.02, 30.0, 0), *usual, *usual])
    assert found.step_s == pytest.approx(0.01, rel=0.02)
    assert max(found.blocks) == pytest.approx(0.03, rel=0.02)
    assert reading([(0.02, 30.0, 0), *usual[:23]]) is None, "it waits for more steps to tell a gap from the loop"


@pytest.mark.parametrize(
    ("gaps", "are_steps"),
    [([0.0885], True), ([0.09], True), ([0.0915], False), ([0.2, 0.2], False), ([0.2, 0.2, 0.2], True)],
)
def test_few_long_gaps_are_no_steps(gaps, are_steps):
    usual = [(0.02, 0.01, 0)]
    found = reading(usual * 2 + [(0.02, gap, 0) for gap in gaps] + usual * (8 * GROUP - 2 - len(gaps)))
    mean_s = 0.01 + sum(gap - 0.01 for gap in gaps) / (8 * GROUP) * are_steps
    assert (found.step_s, found.sustained_s) == pytest.approx((mean_s, 0.02 + mean_s))
    assert (max(found.blocks) > 0.031) is are_steps


def test_a_queue_that_shrinks_is_not_told_as_throughput():
    steps = [(0.0, 0.01, 12 - number) for number in range(12)] + [(0.09, 0.01, 0)] * 12
    found = reading(steps, 6)
    assert found.total_s == pytest.approx((12 * 0.01 + 12 * 0.1) / 24)
    assert found.sustained_s == pytest.approx((12 * 0.01 + 12 * 0.1) / 12)
    assert reading([(0.06, 0.0, 0), (0.0, 0.0, 0)] * 12 + [(0.06, 0.0, 0)], 2).sustained_s == pytest.approx(0.03)
    steady = [(0.09, 0.01, 0)] * (MAX_STEPS + 1)
    assert reading(steady).sustained_s == pytest.approx(0.1)
    drained = [(0.0, 0.01, MAX_STEPS - number) for number in range(MAX_STEPS)]
    assert reading([*drained, *steady, *steady]).sustained_s == pytest.approx(0.1), "dropped steps take it along"


@pytest.mark.parametrize("num_workers", [1, 12])
def test_blocks_are_whole_turns_that_last(num_workers):
    """Workers deliver in bursts: a turn is one long wait, and batches that stand ready."""
    turn = [(0.125, 0.0, 0)] + [(0.0, 0.01, 1)] * (num_workers - 1)
    found = reading(turn * 120, num_workers)
    turn_s = sum(blocked + between for blocked, between, _ in turn) / len(turn)
    assert not found.is_rough
    assert len(found.blocks) >= 4
    assert found.blocks == pytest.approx([turn_s] * len(found.blocks))
    quick, short = reading(turn * GROUP, num_workers), reading([(0.0, 0.001, 0)] * GROUP, num_workers)
    assert (quick.is_rough, len(quick.blocks)) == (False, 4)
    assert (short.is_rough, len(short.blocks)) == (True, 4)


def test_enough_steps_span_three_turns_of_all_workers():
    needed = [num_needed(*each) for each in ((1, 1.0), (10, 0.2), (1, 0.005), (200, 0.2))]
    assert needed == [16, 30, 60, 400]
    steps = Steps(1)
    assert [steps.add(0.1, 0.0, 0) for _ in range(15)] == ([False] * 7 + [True] + [False] * 7)
    assert not steps.is_enough()
    assert steps.add(0.1, 0.0, 0)
    assert steps.is_enough()


@pytest.mark.parametrize(("threads", "num_workers", "num_more", "expected_s"), [
    (2, 0, 1, 0.092), (2, 0, 2, 0.0564), (1, 2, 2, 0.0525), (2, 2, 2, 0.0564),
])  # fmt: skip
def test_what_clocks_say_of_the_cores_that_the_step_leaves(threads, num_workers, num_more, expected_s):
    """Of two cores; a step of 10 ms keeps as many busy as it has threads."""
    then = Clocks(batches=0, cpu_s=0.0, load_s=0.09, busy_s=0.0)
    busy_s = threads * 0.01 + (0 if num_workers else 0.09)
    now = Clocks(batches=10, cpu_s=0.9, load_s=0.09, train_s=10 * busy_s, wall_s=1.0, busy_s=0.7)
    seen = reading([(0.09, 0.01, 0)] * 24, num_workers)
    work = now.work_since(then, seen)
    assert work.cores_busy == pytest.approx(0.7)
    assert work.step_cpu_s == pytest.approx(threads * 0.01)
    assert batch_s(work, Loop(0.01, 2.0, 0.0), num_more) == pytest.approx(expected_s, rel=0.02)


def test_a_worker_that_queued_for_a_core_would_use_all_of_one():
    now = Clocks(batches=10, cpu_s=1.0, queued_s=2.0, load_s=0.3, wall_s=1.0)
    work = now.work_since(Clocks(batches=0, cpu_s=0.0), reading([(0.09, 0.01, 0)] * 24, 4))
    assert (work.load_s, work.queued_s) == pytest.approx((0.1, 0.2))
    assert Clocks(batches=1, cpu_s=1.0).work_since(Clocks(0, 0.0), reading([(0.09, 0.01, 0)] * 24)) is None


@pytest.mark.parametrize(("most", "expected"), [(64, 32), (2, 2)])
def test_the_fewest_workers_that_are_as_good_as_more(most, expected):
    assert fewest(Work(load_s=0.3, cpu_s=0.001), Loop(0.01, 4.0, 0.0), most) == expected


def test_what_waits_may_have_more_workers_than_cores():
    assert [most_by_cores(4.0, load_s, 1.0) for load_s in (1.49, 1.5)] == [4, 256]
    assert batch_s(Work(load_s=0.01, cpu_s=0.001), Loop(0.01, 4.0, 0.0), 64) == pytest.approx(0.0105, rel=0.005)


@pytest.mark.parametrize(
    ("free", "queued", "others", "expected"),
    [
        ({}, {}, {}, (256, "the limit of workers")),
        ({"num_ranks": 4}, {}, {}, (64, "the limit of workers")),
        ({"ram_bytes": 1 << 30}, {"worker_bytes": (1 << 27) - 3000}, {}, (4, "RAM")),
        ({"ram_bytes": 1 << 30}, {}, {}, (17, "RAM")),
        ({"shm_bytes": 30_000}, {}, {}, (8, "/dev/shm")),
        ({"descriptors": 124}, {"batch_tensors": 2}, {}, (4, "descriptors")),
        ({}, {}, {"--max-workers": 3}, (3, "--max-workers")),
        ({"shm_bytes": 0}, {}, {}, (1, "/dev/shm")),
    ],
)
def test_the_least_bound_counts(free, queued, others, expected):
    free = Free(**{"ram_bytes": 1 << 40, "shm_bytes": 1 << 40, "descriptors": 1 << 20} | free)
    queued = Queued(**{"batch_bytes": 1000, "batch_tensors": 0, "num_batches": 3} | queued)
    assert most_workers(free, queued, others) == expected
