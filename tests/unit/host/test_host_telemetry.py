"""Readings integrated over time, a process tree that comes and goes, and the sampler over both."""

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtune.host import MonotonicClock, Sampler
from loadtune.host import processes as processes_module
from loadtune.host import telemetry as telemetry_module
from loadtune.host.processes import ProcessTree, TreeUse
from loadtune.host.telemetry import MAX_PAUSE_S, MAX_SHARE, NUM_KEPT, Probes, pause_s
from loadtune.host.timeline import telemetry
from loadtune.records import Device, Reading
from loadtune.seams import Clock, Sensor

CPU = Device(kind="cpu", name="CPU")


def test_means_weigh_readings_with_the_time_they_stand_for():
    readings = [
        Reading(at_s=0.0, gpu_power_w=999.0),
        Reading(at_s=9.0, gpu_power_w=100.0),
        Reading(at_s=10.0, gpu_power_w=200.0),
    ]
    seen = telemetry(readings, 0.0, 10.0)
    assert seen is not None
    assert seen.gpu_power_w == pytest.approx(110.0)
    assert (seen.seconds, seen.num_readings) == (10.0, 3)


def test_the_reading_after_a_span_stands_for_its_last_moments():
    readings = [Reading(at_s=t, cpu_utilization_fraction=u) for t, u in ((0.0, 0.0), (1.0, 0.0), (3.0, 1.0))]
    seen = telemetry(readings, 0.0, 2.0)
    assert seen is not None
    assert seen.cpu_utilization_fraction == pytest.approx(0.5)
    assert seen.num_readings == 2


def test_peaks_are_of_the_span_alone():
    readings = [Reading(at_s=t, bench_rss_bytes=b, gpu_memory_used_bytes=b) for t, b in ((0.0, 9), (1.0, 3), (2.0, 5))]
    seen = telemetry(readings, 0.5, 1.5)
    assert seen is not None
    assert (seen.bench_rss_bytes, seen.gpu_memory_used_bytes) == (3, 3)


def test_a_mean_is_over_the_time_it_is_known_for():
    readings = [Reading(at_s=0.0), Reading(at_s=1.0, bench_cpu_cores=4.0), Reading(at_s=5.0)]
    seen = telemetry(readings, 0.0, 5.0)
    assert seen is not None
    assert seen.bench_cpu_cores == 4.0
    assert seen.gpu_power_w is None


def test_a_single_reading_is_all_there_is():
    seen = telemetry([Reading(at_s=1.0, gpu_power_w=70.0)], 0.0, 2.0)
    assert seen is not None
    assert seen.gpu_power_w == 70.0


@pytest.mark.parametrize("span", [(-2.0, -1.0), (0.1, 0.9), (2.0, 3.0)])
def test_a_span_without_a_reading_is_none(span):
    assert telemetry([Reading(at_s=0.0), Reading(at_s=1.0)], *span) is None


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.none() | st.floats(0, 1)), min_size=1, max_size=30),
    st.floats(0, 100),
    st.floats(0, 100),
)
def test_a_mean_lies_between_the_readings_it_is_made_of(steps, start_s, length_s):
    at_s, readings = 0.0, []
    for step_s, value in steps:
        at_s += step_s
        readings.append(Reading(at_s=at_s, gpu_utilization_fraction=value))
    seen = telemetry(readings, start_s, start_s + length_s)
    known = [value for _, value in steps if value is not None]
    if seen is not None and seen.gpu_utilization_fraction is not None:
        assert min(known) - 1e-9 <= seen.gpu_utilization_fraction <= max(known) + 1e-9


@given(st.lists(st.floats(0.01, 5), min_size=2, max_size=20), st.floats(0, 8))
def test_cutting_time_finer_does_not_change_a_mean(steps, power):
    """Twice as many readings in one half must not count that half twice."""
    end_s = sum(steps)
    readings, at_s = [Reading(at_s=0.0)], 0.0
    for step_s in steps:
        at_s += step_s
        readings.append(Reading(at_s=at_s, gpu_power_w=power))
    last = end_s * 2
    readings.append(Reading(at_s=last, gpu_power_w=power + 2))
    seen = telemetry(readings, 0.0, last)
    assert seen is not None
    assert seen.gpu_power_w == pytest.approx(power + 1)


class FakeProcess:
    """As much of psutil's process as the tree needs; ``gone`` makes every call fail."""

    def __init__(self, pid, cpu_s=0.0, rss=100):
        self.pid, self.cpu_s, self.rss = pid, cpu_s, rss
        self.below, self.gone = [], False

    def alive(self):
        if self.gone:
            raise psutil.NoSuchProcess(self.pid)

    def children(self, recursive):
        self.alive()
        return list(self.below)

    def cpu_times(self):
        self.alive()
        return SimpleNamespace(user=self.cpu_s, system=0.0)

    def memory_info(self):
        self.alive()
        return SimpleNamespace(rss=self.rss)


@pytest.fixture
def world(monkeypatch):
    """A clock and a process table, both in the test's hands; the bench is process 1."""

    made = SimpleNamespace(now_s=0.0, pid=1, table={1: FakeProcess(1), 2: FakeProcess(2)})
    monkeypatch.setattr(processes_module, "_process", made.table.get)
    made.tree = ProcessTree(lambda: made.pid, now=lambda: made.now_s)
    return made


def test_cpu_time_of_bench_and_workers_is_cores(world):
    bench, worker = world.table[1], FakeProcess(11, cpu_s=50.0)
    bench.below = [worker]
    assert world.tree.read() == TreeUse(cores=None, rss_bytes=200)
    world.now_s, bench.cpu_s, worker.cpu_s = 0.1, 0.1, 50.05
    assert world.tree.read().cores == pytest.approx(1.5)


def test_a_worker_that_ends_takes_nothing_back(world):
    bench, worker = world.table[1], FakeProcess(11, cpu_s=50.0)
    bench.below = [worker]
    world.tree.read()
    world.now_s, bench.cpu_s, worker.gone = 0.1, 0.1, True
    assert world.tree.read() == TreeUse(cores=pytest.approx(1.0), rss_bytes=100)


def test_a_new_worker_counts_from_when_it_is_seen(world):
    bench = world.table[1]
    world.tree.read()
    worker = FakeProcess(11, cpu_s=7.0)
    bench.below = [worker]
    world.now_s = 0.4
    assert world.tree.read().rss_bytes == 100  # not looked for again yet
    world.now_s = 0.6
    assert world.tree.read() == TreeUse(cores=0.0, rss_bytes=200)
    world.now_s, worker.cpu_s = 0.7, 7.1
    assert world.tree.read().cores == pytest.approx(1.0)


def test_a_replaced_bench_is_followed_at_once(world):
    world.tree.read()
    world.now_s, world.pid, world.table[2].cpu_s = 0.1, 2, 30.0
    assert world.tree.read() == TreeUse(cores=None, rss_bytes=100)
    world.now_s, world.table[2].cpu_s = 0.2, 30.1
    assert world.tree.read().cores == pytest.approx(1.0)


@pytest.mark.parametrize("pid", [None, 99])
def test_no_bench_is_no_figure(world, pid):
    world.pid = pid
    assert world.tree.read() == TreeUse()
    world.pid, world.now_s = 1, 1.0
    assert world.tree.read().rss_bytes == 100


def test_a_bench_that_dies_under_the_sampler_is_no_figure(world):
    world.tree.read()
    world.table[1].gone = True
    for world.now_s in (0.1, 1.0, 2.0):
        assert world.tree.read() == TreeUse()


def constant_probes(**figures):
    defaults = dict.fromkeys(Probes.__dataclass_fields__, lambda: None)
    return Probes(**{**defaults, **{name: (lambda value=value: value) for name, value in figures.items()}})


def fail():
    raise RuntimeError("the driver is gone")


def open_sampler(probes, now=time.monotonic, interval_s=0.001):
    return Sampler(CPU, lambda: None, 2, interval_s, probes=probes, now=now)


def wait_for(condition, patience_s=30.0):
    """Until it holds; the patience is only there to fail instead of hanging."""
    end_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.002)


def test_each_probes_answer_is_in_the_reading():
    probes = constant_probes(
        gpu_utilization_fraction=0.5,
        gpu_memory_used_bytes=7,
        gpu_power_w=70.0,
        cpu_utilization_fraction=0.25,
        bench=TreeUse(cores=3.0, rss_bytes=9),
    )
    sampler = open_sampler(probes, now=lambda: 42.0)
    assert sampler.latest() is None
    assert (
        sampler.sample()
        == sampler.latest()
        == Reading(
            at_s=42.0,
            gpu_utilization_fraction=0.5,
            gpu_memory_used_bytes=7,
            gpu_power_w=70.0,
            cpu_utilization_fraction=0.25,
            bench_cpu_cores=3.0,
            bench_rss_bytes=9,
        )
    )


def test_sensors_that_always_fail_leave_none_and_a_living_thread():
    probes = Probes(**dict.fromkeys(Probes.__dataclass_fields__, fail))
    with open_sampler(probes) as sampler:
        wait_for(lambda: len(sampler._readings) > 3)
        reading = sampler.latest()
    assert reading == Reading(at_s=reading.at_s)
    seen = sampler.between(reading.at_s - 1, reading.at_s)
    assert seen is not None
    assert seen.cpu_utilization_fraction is None


def test_closing_ends_the_thread_and_keeps_what_was_seen():
    before = threading.active_count()
    with open_sampler(constant_probes()) as sampler:
        assert threading.active_count() == before + 1
        wait_for(lambda: sampler.latest() is not None)
    assert threading.active_count() == before
    assert sampler.latest() is not None


def test_a_sampler_can_be_opened_again():
    sampler = open_sampler(constant_probes())
    with sampler:
        wait_for(lambda: sampler.latest() is not None)
    before = sampler.latest().at_s
    with sampler:
        wait_for(lambda: sampler.latest().at_s > before)
    assert sampler.latest().at_s > before


def test_a_thread_that_hung_when_it_was_closed_does_not_go_on_with_the_next(monkeypatch):
    monkeypatch.setattr(telemetry_module, "STOP_TIMEOUT_S", 0.01)
    hung, answered = threading.Event(), threading.Event()

    def driver():
        hung.set()
        assert answered.wait(30)

    probes = dict.fromkeys(Probes.__dataclass_fields__, lambda: None)
    sampler = open_sampler(Probes(**{**probes, "gpu_power_w": driver}))
    with sampler:
        assert hung.wait(30)
        first = sampler._thread
    with sampler:
        answered.set()
        first.join(30)
        assert not first.is_alive()
        second = sampler._thread
        assert second.is_alive()
    second.join(30)
    assert not second.is_alive()


def test_quick_readings_keep_the_interval_and_slow_ones_become_rarer():
    assert pause_s(0.002, 0.1) == pytest.approx(0.098)
    for took_s in (0.02, 0.1, 0.2):
        assert took_s / (took_s + pause_s(took_s, 0.1)) == pytest.approx(MAX_SHARE)
    assert pause_s(60.0, 0.1) == MAX_PAUSE_S


def test_old_readings_make_room():
    sampler = open_sampler(constant_probes())
    for _ in range(NUM_KEPT + 5):
        sampler.sample()
    assert len(sampler._readings) == NUM_KEPT


def test_the_seams_are_kept():
    sensor: Sensor = open_sampler(constant_probes())
    clock: Clock = MonotonicClock()
    assert sensor.between(0.0, 1.0) is None
    assert clock.now() <= clock.now()


BUSY_AND_CHILD = """
import subprocess, sys, time
hold = "import time; held = bytearray(64 << 20); print('up', flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", hold])
end = time.monotonic() + 60
while time.monotonic() < end: pass
"""


def test_a_real_busy_process_is_seen_with_its_child():
    busy = subprocess.Popen([sys.executable, "-c", BUSY_AND_CHILD], start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        with Sampler(CPU, lambda: busy.pid, len(os.sched_getaffinity(0)), 0.05) as sampler:
            start_s = time.monotonic()
            wait_for(lambda: time.monotonic() > start_s + 1.5)
            seen = sampler.between(start_s, time.monotonic())
    finally:
        os.killpg(busy.pid, 9)
        busy.wait()
        busy.stdout.close()
    assert seen is not None
    assert 0.2 < seen.bench_cpu_cores < 1.5  # one busy loop, on a machine that may be busy with others
    assert 0.1 < seen.cpu_utilization_fraction <= 1
    assert seen.bench_rss_bytes > 64 << 20
    assert seen.gpu_power_w is None
