"""What is done about a process that tries changes of the code beside a loop, and what they are said to bring."""

from dataclasses import replace

import pytest

from loadtune.decide.advice import MOST_S, AtRest, Seen, Slices, is_missed, is_on, next_step, niceness
from loadtune.model.workers import Loop, Work
from loadtune.records.loading import Examined, Loading

BEGINS, RUNS = Seen(is_settled=True, hoped=1.5), Seen(is_settled=True, ran_s=9.0)


@pytest.mark.parametrize(
    ("seen", "do", "reason"),
    [
        (BEGINS, "begin", None),
        (replace(BEGINS, is_settled=False), "nothing", None),
        (replace(BEGINS, hoped=1.04), "nothing", None),
        (replace(BEGINS, refusal="shares a file"), "nothing", "shares a file"),
        (RUNS, "nothing", None),
        (replace(RUNS, rates=(0.97, 0.98, 0.97, 0.98)), "stop", "it slowed the training by more than 1%"),
        (replace(RUNS, rates=(0.9, 1.0, 0.9, 1.1)), "nothing", None),
        (replace(RUNS, is_settled=False), "stop", "the loop changed, or another loader was being tuned"),
        (replace(RUNS, ran_s=MOST_S + 1), "stop", "it took too long"),
    ],
)
def test_each_decision(seen, do, reason):
    assert next_step(seen) == (do, reason)


def test_rates_are_looked_at_when_there_are_twice_as_many():
    steady = [0.95, 0.951] * 8
    assert [num for num in range(17) if is_missed(steady[:num])] == [4, 8, 16]
    assert not is_missed([0.991, 0.992] * 8), "less than is allowed"


def test_of_busy_cores_it_takes_one_in_a_hundred():
    for cores in (2, 8, 32):
        weight = 1.25 ** -niceness(cores)  # beside one that never rests
        assert weight / (1 + weight) == pytest.approx(0.01 * cores, rel=0.12)  # half a step
    assert (niceness(0.5), niceness(100)) == (19, 0)


def steps(slices, with_it_s, without_s, seconds):
    """A loop whose steps take longer in the slices in which something runs beside it, from the next step on."""
    now, num_pairs = 0.0, 0
    while now < seconds:
        step_s = with_it_s if is_on(int(now / slices.slice_s)) else without_s
        now += step_s
        num_pairs += slices.add(now, step_s)
    return num_pairs


def test_slices_tell_the_rate_with_and_without():
    slices = Slices.of(0.05, 2)
    assert steps(slices, with_it_s=0.055, without_s=0.05, seconds=10.0) == len(slices.rates) > 5
    assert all(rate == pytest.approx(0.05 / 0.055) for rate in slices.rates)


def test_a_step_that_spans_slices_and_a_loop_that_stands_still_tell_nothing():
    slices = Slices.of(0.05, 2)
    assert steps(slices, 0.7, 0.7, 20.0) == 0
    steps(slices, 0.05, 0.05, 1.2)
    assert all(rate == pytest.approx(1.0) for rate in slices.rates)


def tried(*cpu_s):
    before, after = (Loading(sample_s=1.0, sample_cpu_s=each, sample_bytes=1.0) for each in cpu_s)
    return Examined(name="", before=before, after=after)


LIMITED = AtRest(
    work=Work(load_s=0.1, cpu_s=0.1),
    loop=Loop(0.01, 2.0, 0.001),
    num_workers=2,
    batch_size=10,
    total_s=0.05,
    waiting=0.8,
)


@pytest.mark.parametrize(
    ("loop", "changes", "gain"),
    [
        (LIMITED, [tried(0.01, 0.005)], 2.0),
        (LIMITED, [tried(0.01, 0.008), tried(0.008, 0.005)], 2.0),
        (LIMITED, [tried(0.005, 0.0025)], 1.33),  # half of a batch's CPU time is not of its samples
        (LIMITED, [tried(0.1, 0.05)], 2.0),  # measured while the cores were slow
        (replace(LIMITED, waiting=0.2), [tried(0.01, 0.005)], 1.25),
        (replace(LIMITED, work=Work(load_s=0.2, cpu_s=0.1)), [tried(0.01, 0.005)], 1.33),  # half of it waits
        (replace(LIMITED, work=Work(load_s=0.05, cpu_s=0.1)), [tried(0.01, 0.005)], 2.0),  # by two threads
        (replace(LIMITED, loop=Loop(0.2, 2.0, 0.001), waiting=0.02), [tried(0.01, 0.001)], 1.0),
    ],
)
def test_what_changes_are_said_to_bring(loop, changes, gain):
    assert loop.gain(changes) == pytest.approx(gain, rel=0.04)


@pytest.mark.parametrize(("busy", "gain"), [(None, 2.0), (0.1, 2.0), (0.8, 1.25), (1.0, 1.0)])
def test_a_gpu_that_computes_while_the_loop_waits_leaves_less_to_gain(busy, gain):
    assert LIMITED.gain([tried(0.01, 0.005)], busy) == pytest.approx(gain, rel=0.04)


def test_half_the_cpu_time_is_hoped_for():
    assert LIMITED.hoped() == pytest.approx(LIMITED.gain([tried(0.01, 0.005)]))
