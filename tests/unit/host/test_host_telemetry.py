"""The sampler: it goes on whatever fails, tells what a span was like, and sees real processes as they are."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from loadtune.host import telemetry as telemetry_module
from loadtune.host.machine import machine_probes, read_telemetry
from loadtune.host.telemetry import LONGEST_PAUSE_S, MAX_SLICES, Count, Probe, Record, Sampler, Track
from loadtune.records.facts import Device

CPU = Device(kind="cpu", name="CPU")
CORES, DUTY, MEMORY = "workers_cpu_cores", "gpu_utilization_fraction", "training_rss_bytes"


class Scripted:
    """Answers what the test says; a callable is called for it. Counts its looks."""

    def __init__(self, answer, figures=(CORES,), every=1):
        self.answer, self.figures, self.every = answer, figures, every
        self.num_looks = 0

    def look(self):
        self.num_looks += 1
        return self.answer() if callable(self.answer) else self.answer


def sampler_over(*probes, now=time.monotonic, interval_s=0.001):
    made = [Probe(each.figures, each.look, each.every) for each in probes]
    return Sampler(made, interval_s=interval_s, now=now)


def test_each_probe_has_its_pace_and_a_dear_one_a_slower_one():
    def spend():
        until_s = time.thread_time() + 0.02
        while time.thread_time() < until_s:
            pass
        return {}

    clock = SimpleNamespace(at_s=0.0)
    each, third, dear = Scripted({}), Scripted({}, every=3), Scripted(spend)
    sampler = sampler_over(each, third, dear, now=lambda: clock.at_s, interval_s=0.1)
    for number in range(12):
        clock.at_s = 0.1 * number
        sampler.sample()
    assert (each.num_looks, third.num_looks, dear.num_looks) == (12, 4, 1)
    clock.at_s += LONGEST_PAUSE_S  # a trial must not go unseen, however dear a look is
    sampler.sample()
    assert dear.num_looks == 2


def test_a_probe_that_always_fails_leaves_reasons_and_a_thread_that_lives_until_it_is_closed():
    looks, before = threading.Semaphore(0), threading.active_count()

    def look():
        looks.release()
        return {MEMORY: 5}

    alive = Scripted(look)
    with sampler_over(Scripted(lambda: 1 / 0, (CORES, DUTY)), alive) as sampler:
        assert threading.active_count() == before + 1
        assert all(looks.acquire(timeout=30.0) for _ in range(4))
    assert threading.active_count() == before
    seen = sampler.between(0.0, time.monotonic())
    assert (seen.workers_cpu_cores, seen.training_rss_bytes) == (None, 5)
    assert seen.missing == {CORES: "division by zero", DUTY: "division by zero"}


def test_a_look_that_hangs_does_not_keep_a_run_from_ending(monkeypatch):
    monkeypatch.setattr(telemetry_module, "STOP_TIMEOUT_S", 0.01)
    hung, answered = threading.Event(), threading.Event()

    def driver():
        hung.set()
        assert answered.wait(30)
        return {CORES: 1.0}

    probe = Scripted(driver)
    with sampler_over(probe) as sampler:
        assert hung.wait(30)
    answered.set()
    sampler._thread.join(30)
    assert not sampler._thread.is_alive()


def seen(start_s, end_s, reading_s=(), **figures):
    """Of each figure's readings as (at, value), …, each standing for the time since the one before."""
    record = Record()
    for figure, readings in figures.items():
        for at_s, value in readings:
            record.add(at_s, {figure: value})
    for at_s in reading_s or [end_s]:
        record.add(at_s, {"another": None})
    return record.between(start_s, end_s)


def test_means_weigh_readings_with_the_time_they_stand_for_and_peaks_are_of_the_span_alone():
    cores = [(0.0, 999.0), (9.0, 100.0), (10.0, 200.0)]
    spans = ((0.0, 10.0), (8.0, 9.5), (9.5, 20.0))  # of the last one, what comes later is not known
    means = [seen(*span, workers_cpu_cores=cores).workers_cpu_cores for span in spans]
    assert means == pytest.approx([110.0, 400 / 3, 200.0])
    readings = [(0.0, 9), (1.0, 3), (2.0, 5)]
    peaks = [seen(*span, training_rss_bytes=readings).training_rss_bytes for span in ((0.5, 1.5), (1.2, 1.8))]
    assert peaks == [3, 5]  # of a span shorter than a look, what was read next
    assert seen(1.2, 1.8, [1.0, 2.0], training_rss_bytes=readings) is None


def test_workers_grow_at_the_least_pace_of_the_span():
    shapes = (lambda s: 5 * s, lambda s: min(5 * s, 40), lambda s: None)
    held = ([(at / 10, shape(at / 10)) for at in range(200)] for shape in shapes)
    found = [seen(2.0, 18.0, workers_own_bytes=each).workers_growth_bytes_per_s for each in held]
    assert found == [pytest.approx(5.0), pytest.approx(0.0), None]


def test_a_counter_is_its_growth_and_tells_nothing_of_a_gap_or_of_a_new_start():
    track = Track()
    for at_s, count in enumerate((Count(100.0), Count(101.0), None, Count(150.0), Count(2.0), Count(5.0))):
        track.add(at_s, count)
    assert track.means(range(6)) == [1.0, None, None, None, 3.0]
    assert track.means((0.0, 5.0)) == [2.0]
    for at_s, count in enumerate((Count(9.0, "one"), Count(12.0, "other"), Count(14.0, "other")), 6):
        track.add(at_s, count)
    assert track.means(range(5, 9)) == [None, None, 2.0]


def test_a_long_timeline_is_thinned_without_losing_a_moment():
    """Full for one reading in 500: every slice is a mean, so the spike is in one of them."""
    duty = [(float(at), float(at == 250)) for at in range(501)]
    timeline = seen(0.0, 500.0, range(1, 501), gpu_utilization_fraction=duty).timeline
    assert len(timeline.gpu_utilization_fraction) == MAX_SLICES
    assert sum(timeline.gpu_utilization_fraction) * timeline.slice_s == pytest.approx(1.0, rel=1e-3)


def test_what_others_took_is_what_neither_the_training_nor_this_process_did():
    busy, training, own = ([(0.0, value), (1.0, value)] for value in (6.0, 4.0, 0.5))
    found = seen(0.0, 1.0, busy_cpu_cores=busy, training_cpu_cores=training, watching_cpu_cores=own)
    assert found.others_cpu_cores == pytest.approx(1.5)
    swapped = seen(0.0, 1.0, busy_cpu_cores=training, training_cpu_cores=busy, watching_cpu_cores=own)
    assert swapped.others_cpu_cores == 0.0
    assert seen(0.0, 1.0, busy_cpu_cores=busy, watching_cpu_cores=own).others_cpu_cores is None


def test_every_figure_of_this_machine_is_there_or_has_its_reason():
    """What `info` shows. Here it is of this very process, which has no workers."""
    found = read_telemetry(CPU)
    looked_for = {figure for probe in machine_probes(CPU, os.getpid) for figure in probe.figures}
    absent = {name for name in looked_for if getattr(found, name, None) is None and hasattr(found, name)}
    assert absent - set(found.missing) <= {"workers_cpu_cores"}
    assert not any(figure.startswith("gpu") for figure in found.missing)  # none is looked for
