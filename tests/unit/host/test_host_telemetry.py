"""The sampler: it goes on whatever fails, keeps its pace, and sees real processes as they are."""

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from loadtune.host import Sampler, read_telemetry
from loadtune.host import telemetry as telemetry_module
from loadtune.host.sensing import Probe, Stretch
from loadtune.host.telemetry import CPU_SHARE, LOCK_SHARE, LONGEST_PAUSE_S, Scheduled, machine_probes
from loadtune.records.facts import Device
from loadtune.records.telemetry import Reading

CPU = Device(kind="cpu", name="CPU")
POWER, DUTY, MEMORY = "gpu_power_w", "gpu_utilization_fraction", "gpu_memory_used_bytes"


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
    alive = Scripted({MEMORY: 5})
    with sampler_over(Scripted(fail, (POWER, DUTY)), alive) as sampler:
        wait_for(lambda: alive.num_looks > 3)
        reading = sampler.latest()
    assert reading == Reading(at_s=reading.at_s, gpu_memory_used_bytes=5)
    seen = sampler.between(reading.at_s - 1, reading.at_s)
    assert (seen.gpu_power_w, seen.gpu_memory_used_bytes) == (None, 5)
    assert seen.missing == {POWER: "the driver is gone", DUTY: "the driver is gone"}


def test_closing_ends_the_thread_gives_back_and_keeps_what_was_seen():
    probe, before = Scripted({POWER: 1.0}), threading.active_count()
    with sampler_over(probe) as sampler:
        assert threading.active_count() == before + 1
        wait_for(lambda: sampler.latest() is not None)
    assert threading.active_count() == before
    assert probe.num_closed == 1
    assert sampler.latest() is not None


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


def looks(turns, costs_s, num_readings, took_s=0.0):
    """The readings in which it looks, and what each look costs of CPU time."""
    taken = []
    for reading in range(num_readings):
        if turns.comes():
            taken.append(reading)
            turns.cost(costs_s[min(len(taken), len(costs_s)) - 1], took_s, 0.08)
    return taken


@pytest.mark.parametrize(("every", "expected"), [(1, [0, 1, 2, 3, 4, 5, 6, 7]), (3, [0, 3, 6])])
def test_a_cheap_probe_looks_at_its_own_pace(every, expected):
    assert looks(Scheduled(Scripted({}), every), [0.00005], 8) == expected


def test_a_dear_probe_looks_as_often_as_its_share_of_a_core_allows():
    cost_s, num_readings = 0.0025, 600
    taken = looks(Scheduled(Scripted({})), [cost_s], num_readings)
    assert 0.8 * CPU_SHARE < len(taken) * cost_s / (num_readings * 0.08) <= 1.1 * CPU_SHARE


def test_waiting_costs_only_where_others_wait_for_the_lock():
    """A machine full of workers interrupts looks all the time: their time is not their cost."""
    took_s, num_readings = 0.01, 600
    assert looks(Scheduled(Scripted({})), [0.0001], num_readings, took_s) == list(range(num_readings))
    taken = looks(Scheduled(Scripted({}), holds_a_lock=True), [0.0001], num_readings, took_s)
    assert 0.8 * LOCK_SHARE < len(taken) * took_s / (num_readings * 0.08) <= 1.1 * LOCK_SHARE


def test_however_slow_a_driver_answers_a_trial_does_not_go_unseen():
    num_readings = 600
    taken = looks(Scheduled(Scripted({}), holds_a_lock=True), [0.5], num_readings, took_s=0.5)
    assert len(taken) >= num_readings * 0.08 / LONGEST_PAUSE_S


def test_every_figure_of_this_machine_is_there_or_has_its_reason():
    """What `doctor` shows. Here it is of this very process, which has no workers."""
    seen = read_telemetry(CPU, len(os.sched_getaffinity(0)))
    looked_for = {figure for scheduled in machine_probes(CPU, os.getpid, 2) for figure in scheduled.probe.figures}
    absent = {name for name in looked_for if getattr(seen, name, None) is None and hasattr(seen, name)}
    assert absent - set(seen.missing) <= {"workers_cpu_cores", "other_cpu_cores"}
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


@pytest.fixture(scope="module", name="seen")
def watched():
    """A tree of real processes named as a loader's, sampled for a while."""
    # Started as a command: a fork of this process would have pytest's memory.
    command = [sys.executable, "-c", NAMED_LIKE_A_LOADERS]
    tree = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert tree.stdout is not None
        tree.stdout.readline()
        with Sampler(CPU, lambda: tree.pid, len(os.sched_getaffinity(0))) as sampler:
            time.sleep(1.0)  # the first look of every probe
            began_s = time.monotonic()
            time.sleep(2.5)
            seen = sampler.between(began_s, time.monotonic())
    finally:
        os.killpg(tree.pid, 9)
        tree.wait()
        tree.stdout.close()
    assert seen is not None
    return seen


def test_real_workers_are_told_apart(seen):
    assert {reading.num_workers for reading in seen.memory} == {8}
    assert seen.main_cpu_cores + seen.workers_cpu_cores == pytest.approx(seen.bench_cpu_cores, rel=0.1)
    assert all(reading.workers_bytes > 32 << 20 for reading in seen.memory)
    assert seen.other_cpu_cores < 0.1 < seen.workers_cpu_cores < 1.2


def test_a_timeline_is_kept_of_what_was_seen(seen):
    timeline = seen.timeline
    assert len(timeline.cpu_utilization_fraction) == seen.num_readings
    # What came after the last reading is not known yet.
    known = [share for share in timeline.cpu_utilization_fraction if share is not None]
    assert len(known) >= len(timeline.cpu_utilization_fraction) - 1
    assert sum(known) / len(known) == pytest.approx(seen.cpu_utilization_fraction, rel=0.1)
    assert timeline.gpu_utilization_fraction == ()
