"""The sampler: it goes on whatever fails, tells what a span was like, and sees real processes as they are."""

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtune.host import Sampler, read_telemetry
from loadtune.host import telemetry as telemetry_module
from loadtune.host.sensing import BUSY_CORES, MAX_SLICES, OWN_CORES, READING, Count, Probe, Track, telemetry
from loadtune.host.telemetry import LONGEST_PAUSE_S, Paced, machine_probes
from loadtune.records.facts import Device
from loadtune.records.telemetry import Reading

CPU = Device(kind="cpu", name="CPU")
CLOCK, DUTY, MEMORY = "gpu_sm_clock_hz", "gpu_utilization_fraction", "ram_used_bytes"


class Scripted(Probe):
    """Answers what the test says; a callable is called for it. Counts its looks and its closings."""

    def __init__(self, answer, figures=(CLOCK,)):
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
    paced = [probe if isinstance(probe, Paced) else Paced(probe) for probe in probes]
    return Sampler(CPU, lambda: None, 2, interval_s, probes=paced, now=now)


def wait_for(condition, patience_s=30.0):
    """Until it holds; the patience is only there to fail instead of hanging."""
    end_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.002)


def test_what_probes_see_is_in_the_newest_reading_and_in_the_span():
    clock = SimpleNamespace(at_s=40.0)
    sampler = sampler_over(Scripted({CLOCK: 70.0, DUTY: 0.5}), now=lambda: clock.at_s)
    assert sampler.latest() is None
    for clock.at_s in (40.0, 42.0):
        sampler.sample(everything=True)
    assert sampler.latest() == Reading(gpu_utilization_fraction=0.5)
    seen = sampler.between(40.0, 42.0)
    assert (seen.gpu_sm_clock_hz, seen.gpu_utilization_fraction) == (70.0, 0.5)
    assert sampler.between(40.5, 41.5) is None  # no reading falls into it


def spend(cpu_s):
    """So much CPU time of this thread."""
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass
    return {}


def test_each_probe_has_its_pace_and_a_dear_one_a_slower_one():
    clock = SimpleNamespace(at_s=0.0)
    each, third, dear = Scripted({}), Scripted({}), Scripted(lambda: spend(0.02))
    sampler = sampler_over(each, Paced(third, 3), dear, now=lambda: clock.at_s, interval_s=0.1)
    for number in range(12):
        clock.at_s = 0.1 * number
        sampler.sample()
    assert (each.num_looks, third.num_looks, dear.num_looks) == (12, 4, 1)
    clock.at_s += LONGEST_PAUSE_S  # a trial must not go unseen, however dear a look is
    sampler.sample()
    assert dear.num_looks == 2


def test_a_probe_that_always_fails_leaves_reasons_and_a_living_thread():
    alive = Scripted({MEMORY: 5})
    with sampler_over(Scripted(fail, (CLOCK, DUTY)), alive) as sampler:
        wait_for(lambda: alive.num_looks > 3)
        assert sampler.latest() == Reading()
    seen = sampler.between(0.0, time.monotonic())
    assert (seen.gpu_sm_clock_hz, seen.ram_used_bytes) == (None, 5)
    assert seen.missing == {CLOCK: "the driver is gone", DUTY: "the driver is gone"}


def test_closing_ends_the_thread_gives_back_and_keeps_what_was_seen():
    probe, before = Scripted({CLOCK: 1.0}), threading.active_count()
    with sampler_over(probe) as sampler:
        assert threading.active_count() == before + 1
        wait_for(lambda: sampler.latest() is not None)
    assert threading.active_count() == before
    assert probe.num_closed == 1
    assert sampler.latest() is not None


def test_a_look_that_hangs_keeps_what_it_holds_of_the_driver(monkeypatch):
    monkeypatch.setattr(telemetry_module, "STOP_TIMEOUT_S", 0.01)
    hung, answered = threading.Event(), threading.Event()

    def driver():
        hung.set()
        assert answered.wait(30)
        return {CLOCK: 1.0}

    probe = Scripted(driver)
    with sampler_over(probe) as sampler:
        assert hung.wait(30)
    assert probe.num_closed == 0
    answered.set()
    sampler._thread.join(30)
    assert not sampler._thread.is_alive()


def seen(start_s, end_s, missing=None, **figures):
    """Of each figure's readings as (at, value), …, each standing for the time since the one before."""
    tracks = {figure: Track(figure) for figure in figures}
    for figure, readings in figures.items():
        for at_s, value in readings:
            tracks[figure].add(at_s, value)
    tracks.setdefault(READING, Track()).add(end_s, 1.0)
    found = telemetry(tracks, missing or {}, start_s, end_s)
    assert found is not None
    return found


def test_means_weigh_readings_with_the_time_they_stand_for():
    clock = [(0.0, 999.0), (9.0, 100.0), (10.0, 200.0)]
    spans = ((0.0, 10.0), (8.0, 9.5), (9.5, 20.0))  # of the last one, what comes later is not known
    means = [seen(*span, gpu_sm_clock_hz=clock).gpu_sm_clock_hz for span in spans]
    assert means == pytest.approx([110.0, 400 / 3, 200.0])


def test_a_counter_is_its_growth_and_tells_nothing_of_a_gap_or_of_a_new_start():
    counts = [(0.0, Count(100.0)), (1.0, Count(101.0)), (2.0, None), (3.0, Count(150.0)), (4.0, Count(2.0))]
    counts.append((5.0, Count(5.0)))
    track = Track()
    for at_s, count in counts:
        track.add(at_s, count)
    assert [track.mean(at, at + 1.0) for at in range(5)] == [1.0, None, None, None, 3.0]
    assert track.mean(0.0, 5.0) == 2.0


def test_peaks_are_of_the_span_alone():
    readings = [(0.0, 9), (1.0, 3), (2.0, 5)]
    found = seen(0.5, 1.5, training_rss_bytes=readings, ram_used_bytes=readings)
    assert (found.training_rss_bytes, found.ram_used_bytes) == (3, 3)
    assert seen(1.2, 1.8, training_rss_bytes=readings).training_rss_bytes == 5, (
        "shorter than a look: what was read next"
    )


def test_a_long_timeline_is_thinned_without_losing_a_moment():
    """Full for one reading in 500: every slice is a mean, so the spike is in one of them."""
    duty = [(float(at), float(at == 250)) for at in range(501)]
    reading = [(float(at), 1.0) for at in range(1, 501)]
    timeline = seen(0.0, 500.0, gpu_utilization_fraction=duty, **{READING: reading}).timeline
    assert len(timeline.gpu_utilization_fraction) == MAX_SLICES
    assert sum(timeline.gpu_utilization_fraction) * timeline.slice_s == pytest.approx(1.0, rel=1e-3)


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.none() | st.floats(0, 1)), min_size=1, max_size=30),
    st.floats(0, 100),
    st.floats(0.1, 100),
)
def test_means_lie_between_the_readings(steps, start_s, length_s):
    at_s, readings = 0.0, []
    for step_s, value in steps:
        at_s += step_s
        readings.append((at_s, value))
    mean = seen(start_s, start_s + length_s, gpu_utilization_fraction=readings).gpu_utilization_fraction
    known = [value for _, value in readings if value is not None]
    if mean is not None:
        assert min(known) - 1e-6 <= mean <= max(known) + 1e-6


def test_what_others_took_is_what_neither_the_training_nor_this_process_did():
    busy, training, own = ([(0.0, value), (1.0, value)] for value in (6.0, 4.0, 0.5))
    found = seen(0.0, 1.0, **{BUSY_CORES: busy, "training_cpu_cores": training, OWN_CORES: own})
    assert found.others_cpu_cores == pytest.approx(1.5)
    assert seen(0.0, 1.0, **{BUSY_CORES: training, "training_cpu_cores": busy, OWN_CORES: own}).others_cpu_cores == 0.0
    assert seen(0.0, 1.0, **{BUSY_CORES: busy, OWN_CORES: own}).others_cpu_cores is None


def test_every_figure_of_this_machine_is_there_or_has_its_reason():
    """What `info` shows. Here it is of this very process, which has no workers."""
    found = read_telemetry(CPU, len(os.sched_getaffinity(0)))
    looked_for = {figure for paced in machine_probes(CPU, os.getpid, 2) for figure in paced.probe.figures}
    absent = {name for name in looked_for if getattr(found, name, None) is None and hasattr(found, name)}
    assert absent - set(found.missing) <= {"workers_cpu_cores"}
    assert not any(figure.startswith("gpu") for figure in found.missing)  # none is looked for


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


def test_real_workers_are_told_apart_and_a_timeline_is_kept():
    """A tree of real processes named as a loader's, started as a command: a fork would have pytest's memory."""
    command = [sys.executable, "-c", NAMED_LIKE_A_LOADERS]
    tree = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert tree.stdout is not None
        tree.stdout.readline()
        with Sampler(CPU, lambda: tree.pid, len(os.sched_getaffinity(0))) as sampler:
            time.sleep(1.0)  # the first look of every probe
            began_s = time.monotonic()
            time.sleep(2.5)
            found = sampler.between(began_s, time.monotonic())
    finally:
        os.killpg(tree.pid, 9)
        tree.wait()
        tree.stdout.close()
    assert 0.1 < found.workers_cpu_cores < min(1.2, found.training_cpu_cores)
    timeline = found.timeline
    # What came after the last reading is not known yet.
    known = [share for share in timeline.cpu_utilization_fraction if share is not None]
    assert len(known) >= len(timeline.cpu_utilization_fraction) - 1
    assert sum(known) / len(known) == pytest.approx(found.cpu_utilization_fraction, rel=0.1)
    assert timeline.gpu_utilization_fraction == ()
