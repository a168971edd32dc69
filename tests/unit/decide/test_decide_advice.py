"""What is done about a process that tries changes of the code beside a loop, and what they are said to bring."""

from dataclasses import replace

import pytest

from loadtune.decide.advice import MOST_S, AtRest, Slices, begins, is_missed, is_on, niceness, reason_to_stop
from loadtune.decide.inflight import Reading
from loadtune.model.workers import Loop, Work
from loadtune.records.loading import Examined, Loading


@pytest.mark.parametrize(
    ("is_settled", "hoped", "refusal", "expected"),
    [
        (True, 1.5, None, (True, None)),
        (False, 1.5, None, (False, None)),
        (True, 1.04, None, (False, None)),
        (True, 1.5, "shares a file", (False, "shares a file")),
    ],
)
def test_when_it_begins(is_settled, hoped, refusal, expected):
    assert begins(hoped, refusal, is_settled=is_settled) == expected


@pytest.mark.parametrize(
    ("is_settled", "ran_s", "rates", "reason"),
    [
        (True, 9.0, (), None),
        (True, 9.0, (0.97, 0.98, 0.97, 0.98), "it slowed the training by more than 1%"),
        (True, 9.0, (0.9, 1.0, 0.9, 1.1), None),
        (False, 9.0, (), "the loop changed, or another loader was being tuned"),
        (True, MOST_S + 1, (), "it took too long"),
    ],
)
def test_when_it_is_stopped(is_settled, ran_s, rates, reason):
    assert reason_to_stop(ran_s, MOST_S, rates, is_settled=is_settled) == reason


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
    slices = Slices.of(LIMITED.reading)
    assert steps(slices, with_it_s=0.055, without_s=0.05, seconds=10.0) == len(slices.rates) > 5
    assert all(rate == pytest.approx(0.05 / 0.055) for rate in slices.rates)


def test_a_step_that_spans_slices_and_a_loop_that_stands_still_tell_nothing():
    slices = Slices.of(LIMITED.reading)
    assert steps(slices, 0.7, 0.7, 20.0) == 0
    steps(slices, 0.05, 0.05, 1.2)
    assert all(rate == pytest.approx(1.0) for rate in slices.rates)


def tried(*cpu_s):
    before, after = (Loading(sample_s=1.0, sample_cpu_s=each, sample_bytes=1.0) for each in cpu_s)
    return Examined(name="", before=before, after=after)


def waiting(share):
    return Reading(num_workers=2, num_steps=99, total_s=0.05, blocked_s=share * 0.05, step_s=0.01)


LIMITED = AtRest(work=Work(load_s=0.1, cpu_s=0.1), loop=Loop(0.01, 2.0, 0.001), reading=waiting(0.8), batch_size=10)


@pytest.mark.parametrize(
    ("loop", "changes", "gain"),
    [
        (LIMITED, [tried(0.01, 0.005)], 2.0),
        (LIMITED, [tried(0.01, 0.008), tried(0.008, 0.005)], 2.0),
        (LIMITED, [tried(0.005, 0.0025)], 1.33),  # half of a batch's CPU time is not of its samples
        (LIMITED, [tried(0.1, 0.05)], 2.0),  # measured while the cores were slow
        (replace(LIMITED, reading=waiting(0.2)), [tried(0.01, 0.005)], 1.25),
        (replace(LIMITED, work=Work(load_s=0.2, cpu_s=0.1)), [tried(0.01, 0.005)], 1.33),  # half of it waits
        (replace(LIMITED, work=Work(load_s=0.05, cpu_s=0.1)), [tried(0.01, 0.005)], 2.0),  # by two threads
        (replace(LIMITED, loop=Loop(0.2, 2.0, 0.001), reading=waiting(0.02)), [tried(0.01, 0.001)], 1.0),
    ],
)
def test_what_changes_are_said_to_bring(loop, changes, gain):
    assert loop.gain(changes) == pytest.approx(gain, rel=0.04)


@pytest.mark.parametrize(("busy", "gain"), [(None, 2.0), (0.1, 2.0), (0.8, 1.25), (1.0, 1.0)])
def test_a_gpu_that_computes_while_the_loop_waits_leaves_less_to_gain(busy, gain):
    assert LIMITED.gain([tried(0.01, 0.005)], busy) == pytest.approx(gain, rel=0.04)


def test_half_the_cpu_time_is_hoped_for():
    assert LIMITED.hoped() == pytest.approx(LIMITED.gain([tried(0.01, 0.005)]))
