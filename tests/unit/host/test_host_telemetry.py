"""The sampler: it goes on whatever fails, keeps its pace, costs little, and sees real processes as they are."""

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from loadtune.host import MonotonicClock, Sampler, read_telemetry
from loadtune.host import telemetry as telemetry_module
from loadtune.host.pace import MAX_PAUSE_S, MAX_SHARE, PROBE_SHARE, Pace, Turn
from loadtune.host.probes import Scheduled, machine_probes
from loadtune.host.sensing import Missing, Probe, Stretch
from loadtune.records import Device, Reading
from loadtune.seams import Clock, Sensor

CPU = Device(kind="cpu", name="CPU")
POWER, DUTY, MEMORY = "gpu_power_w", "gpu_utilization_fraction", "gpu_memory_used_bytes"
WANTED_HZ, WANTED_SHARE = 10.0, 0.05


class Scripted(Probe):
    """Answers what the test says; a callable is called for it. Counts its looks and its closings."""

    def __init__(self, answer, figures=(POWER,)):
        self.answer, self.figures = answer, figures
        self.num_looks = self.num_closed = 0

    def look(self, now_s):
        self.num_looks += 1
        return self.answer() if callable(self.answer) else self.answer

    def close(self):
        self.num_closed += 1


def fail():
    raise RuntimeError("the driver is gone")


def sampler_over(*probes, now=time.monotonic, interval_s=0.001):
    scheduled = [probe if isinstance(probe, Scheduled) else Scheduled(probe) for probe in probes]
    return Sampler(CPU, lambda: None, 2, interval_s, probes=scheduled, now=now)


def wait_for(condition, patience_s=30.0):
    """Until it holds; the patience is only there to fail instead of hanging."""
    end_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.002)


def test_what_probes_see_is_in_the_newest_reading_and_in_the_span():
    clock = SimpleNamespace(at_s=40.0)
    sampler = sampler_over(Scripted({POWER: 70.0, MEMORY: 7}), now=lambda: clock.at_s)
    assert sampler.latest() is None
    for clock.at_s in (40.0, 42.0):
        sampler.sample()
    assert sampler.latest() == Reading(at_s=42.0, gpu_power_w=70.0, gpu_memory_used_bytes=7)
    seen = sampler.between(40.0, 42.0)
    assert (seen.num_readings, seen.gpu_power_w, seen.gpu_memory_used_bytes) == (2, 70.0, 7)
    assert sampler.between(40.5, 41.5) is None  # no reading falls into it


def test_a_value_speaks_for_the_time_since_its_own_last_look():
    """Read at every third reading, it stands for three times the time; one that brings stretches says so itself."""
    clock = SimpleNamespace(at_s=0.0)
    rare, fine = Scripted({POWER: 90.0}), Scripted({DUTY: [Stretch(0.0, 0.5, 0.0), Stretch(0.5, 1.0, 1.0)]})
    sampler = sampler_over(Scheduled(rare, 3), Scheduled(fine, 6), now=lambda: clock.at_s)
    for clock.at_s in (0.0, 1.0, 2.0, 3.0):
        sampler.sample()
    assert (rare.num_looks, fine.num_looks) == (2, 1)
    assert sampler.between(1.0, 2.0).gpu_power_w == 90.0
    assert sampler.between(0.0, 3.0).gpu_utilization_fraction == 0.5
    assert sampler.latest().gpu_utilization_fraction == 1.0


def test_a_probe_that_always_fails_leaves_reasons_and_a_living_thread():
    with sampler_over(Scripted(fail, (POWER, DUTY)), Scripted({MEMORY: 5})) as sampler:
        wait_for(lambda: len(sampler.read_s) > 3)
        reading = sampler.latest()
    assert reading == Reading(at_s=reading.at_s, gpu_memory_used_bytes=5)
    seen = sampler.between(reading.at_s - 1, reading.at_s)
    assert (seen.gpu_power_w, seen.gpu_memory_used_bytes) == (None, 5)
    assert seen.missing == {POWER: "the driver is gone", DUTY: "the driver is gone"}


def test_a_figure_that_is_lost_is_not_what_it_was_last():
    probe = Scripted({POWER: 70.0})
    sampler = sampler_over(probe)
    sampler.sample()
    probe.answer = {POWER: Missing("the GPU does not answer")}
    sampler.sample()
    assert sampler.latest().gpu_power_w is None


def test_closing_ends_the_thread_gives_back_and_keeps_what_was_seen():
    probe, before = Scripted({POWER: 1.0}), threading.active_count()
    with sampler_over(probe) as sampler:
        assert threading.active_count() == before + 1
        wait_for(lambda: sampler.latest() is not None)
    assert threading.active_count() == before
    assert probe.num_closed == 1
    assert sampler.latest() is not None


def test_a_sampler_can_be_opened_again():
    sampler = sampler_over(Scripted({POWER: 1.0}))
    with sampler:
        wait_for(lambda: sampler.latest() is not None)
    before = sampler.latest().at_s
    with sampler:
        wait_for(lambda: sampler.latest().at_s > before)
    assert sampler.latest().at_s > before


def test_a_thread_that_hung_when_it_was_closed_does_not_go_on_with_the_next(monkeypatch):
    """Nor does the driver get back what the hanging look still holds."""
    monkeypatch.setattr(telemetry_module, "STOP_TIMEOUT_S", 0.01)
    hung, answered = threading.Event(), threading.Event()

    def driver():
        hung.set()
        assert answered.wait(30)
        return {POWER: 1.0}

    probe = Scripted(driver)
    sampler = sampler_over(probe)
    with sampler:
        assert hung.wait(30)
        first = sampler._thread
    assert probe.num_closed == 0
    with sampler:
        answered.set()
        first.join(30)
        assert not first.is_alive()
        second = sampler._thread
        assert second.is_alive()
    second.join(30)
    assert not second.is_alive()
    assert probe.num_closed == 1


def test_quick_readings_keep_the_interval():
    pace = Pace(0.08)
    assert [0.002 + pace.pause_s(0.002, 0.001) for _ in range(50)] == pytest.approx([0.08] * 50)


@pytest.mark.parametrize("took_s", [0.02, 0.1, 0.19])
def test_slow_readings_become_rarer_until_they_take_their_share(took_s):
    pace = Pace(0.08)
    pauses = [pace.pause_s(took_s, took_s) for _ in range(100)]
    assert took_s / (took_s + pauses[-1]) == pytest.approx(MAX_SHARE, rel=0.01)
    assert pauses == sorted(pauses)


def test_readings_that_are_only_interrupted_stay_as_many():
    """Their time is not their cost: a machine full of workers interrupts them all the time."""
    pace = Pace(0.08)
    assert [0.06 + pace.pause_s(0.06, 0.002) for _ in range(50)] == pytest.approx([0.08] * 50)


def test_a_look_costs_its_cpu_time_or_as_long_as_it_holds_a_lock():
    waiting = Scripted(lambda: time.sleep(0.05) or {})
    assert sampler_over(Scheduled(waiting)).sample() < 0.025
    assert sampler_over(Scheduled(waiting, holds_a_lock=True)).sample() >= 0.05


def test_a_hiccup_is_forgiven():
    """Interrupted for a moment, or hung in a driver for a minute: the readings after it are nearly as many."""
    pace = Pace(0.08)
    for took_s in (0.002, 0.03, 0.002):
        pause_s = pace.pause_s(took_s, took_s)
    assert pause_s == pytest.approx(0.078)
    assert pace.pause_s(60.0, 60.0) < MAX_PAUSE_S / 5
    assert sum(pace.pause_s(0.002, 0.002) for _ in range(20)) < 20 * 0.08 * 2


def looks(turn, costs_s, num_readings):
    """The readings in which it looks, and what each look costs."""
    taken = []
    for reading in range(num_readings):
        if turn.comes():
            taken.append(reading)
            turn.looked(costs_s[min(len(taken), len(costs_s)) - 1])
    return taken


@pytest.mark.parametrize(("every", "expected"), [(1, [0, 1, 2, 3, 4, 5, 6, 7]), (3, [0, 3, 6])])
def test_a_cheap_probe_looks_at_its_own_pace(every, expected):
    assert looks(Turn(every, 0.08), [0.00005], 8) == expected


def test_a_dear_probe_looks_as_often_as_its_share_of_a_core_allows():
    cost_s, num_readings = 0.0025, 600
    taken = looks(Turn(1, 0.08), [cost_s], num_readings)
    assert 0.8 * PROBE_SHARE < len(taken) * cost_s / (num_readings * 0.08) <= 1.1 * PROBE_SHARE


def test_a_first_look_and_one_that_was_interrupted_cost_no_turns():
    assert looks(Turn(1, 0.08), [0.5, 0.0001, 0.0001, 0.9, 0.0001, 0.0001], 8) == list(range(8))


def test_the_seams_are_kept():
    sensor: Sensor = sampler_over()
    clock: Clock = MonotonicClock()
    assert sensor.between(0.0, 1.0) is None
    assert clock.now() <= clock.now()


def test_every_figure_of_this_machine_is_there_or_has_its_reason():
    """What `doctor` shows. Here it is of this very process, which has no workers."""
    seen = read_telemetry(CPU, len(os.sched_getaffinity(0)))
    looked_for = {figure for scheduled in machine_probes(CPU, os.getpid, 2) for figure in scheduled.probe.figures}
    absent = {name for name in looked_for if getattr(seen, name, None) is None and hasattr(seen, name)}
    assert absent - set(seen.missing) <= {"workers_cpu_cores", "other_cpu_cores", "other_rss_bytes"}
    assert seen.main_rss_bytes == seen.bench_rss_bytes
    assert len(seen.core_utilization_fractions) == len(os.sched_getaffinity(0))
    assert not any(figure.startswith("gpu") for figure in seen.missing)  # none is looked for


NAMED_LIKE_A_LOADERS = """
import ctypes, os, threading, time
END = time.monotonic() + 60

def name(text):
    ctypes.CDLL(None).prctl(15, text, 0, 0, 0)  # PR_SET_NAME, of the calling thread

def spin():
    while time.monotonic() < END: pass

def pin():
    name(b"pt_data_pin")
    spin()

named = os.pipe()
for number in range(8):
    if os.fork() == 0:
        name(b"pt_data_worker")
        os.write(named[1], b"!")
        held = bytearray(32 << 20 if number == 3 else 1)
        spin() if number == 0 else time.sleep(60)
        os._exit(0)
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
threading.Thread(target=pin).start()
for number in range(8): os.read(named[0], 1)
print("up", flush=True)
"""


@pytest.fixture(scope="module")
def watched():
    """A tree of real processes named as a loader's, sampled for a while: what was seen, and what that cost."""
    # Started as a command: a fork of this process would have pytest's memory.
    command = [sys.executable, "-c", NAMED_LIKE_A_LOADERS]
    tree = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert tree.stdout is not None
        tree.stdout.readline()
        with Sampler(CPU, lambda: tree.pid, len(os.sched_getaffinity(0))) as sampler:
            time.sleep(1.0)  # the first look of every probe
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            time.sleep(2.5)
            ended_s, ended_cpu_s = time.monotonic(), time.process_time()
            seen = sampler.between(began_s, ended_s)
    finally:
        os.killpg(tree.pid, 9)
        tree.wait()
        tree.stdout.close()
    assert seen is not None
    return SimpleNamespace(seen=seen, share=(ended_cpu_s - began_cpu_s) / (ended_s - began_s))


def test_ten_readings_a_second_at_a_small_cost(watched):
    """Half the rate and twice the cost are let pass, for a machine that is busy with other tests as well."""
    assert watched.seen.num_readings / watched.seen.seconds > WANTED_HZ / 2
    assert watched.share < WANTED_SHARE * 2


def test_real_workers_are_told_apart(watched):
    seen = watched.seen
    assert len(seen.workers) == 8
    assert seen.workers[0].cpu_cores > 10 * max(worker.cpu_cores for worker in seen.workers[1:])
    assert seen.workers[0].cpu_cores < 1.2
    assert (
        seen.workers[3].rss_bytes > (32 << 20) + max(seen.workers[position].rss_bytes for position in (1, 2, 4, 5)) / 2
    )
    assert seen.other_cpu_cores < 0.1 < seen.workers_cpu_cores
    assert seen.other_rss_bytes > 0


def test_the_training_process_and_its_workers_are_all_that_is_used(watched):
    seen = watched.seen
    assert seen.main_cpu_cores + seen.workers_cpu_cores == pytest.approx(seen.bench_cpu_cores, rel=0.1)


def test_a_timeline_is_kept_of_what_was_seen(watched):
    timeline = watched.seen.timeline
    assert len(timeline.cpu_utilization_fraction) == watched.seen.num_readings
    # What came after the last reading is not known yet.
    known = [share for share in timeline.cpu_utilization_fraction if share is not None]
    assert len(known) >= len(timeline.cpu_utilization_fraction) - 1
    assert sum(known) / len(known) == pytest.approx(watched.seen.cpu_utilization_fraction, rel=0.1)
    assert timeline.gpu_utilization_fraction == ()


def test_a_busy_process_counts_as_others_unless_it_is_the_training():
    num_cores = len(os.sched_getaffinity(0))
    with (
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy,
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as idle,
    ):
        try:
            with (
                Sampler(CPU, lambda: idle.pid, num_cores) as beside,
                Sampler(CPU, lambda: busy.pid, num_cores) as of_it,
            ):
                time.sleep(0.5)  # both started, and were looked at once
                begun = time.monotonic()
                time.sleep(2.0)
                ended = time.monotonic()
                time.sleep(0.3)
            all_others, others = (each.between(begun, ended).others_cpu_cores for each in (beside, of_it))
        finally:
            busy.kill()
            idle.kill()
    assert all_others > others + 0.25, "on two cores with other tests on them it has its share"
