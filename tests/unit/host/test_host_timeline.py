"""Figures integrated over time: what a span was like, whatever the pace they were read at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtune.host.sensing import Stretch
from loadtune.host.timeline import (
    BUSY_CORES,
    EACH_WORKERS_CORES,
    EACH_WORKERS_RSS,
    KEPT_S,
    MAX_SLICES,
    OWN_CORES,
    Tracks,
    telemetry,
)
from loadtune.records import Telemetry, WorkerUse

CPU, GPU, POWER = "cpu_utilization_fraction", "gpu_utilization_fraction", "gpu_power_w"


def seen(start_s, end_s, missing=None, num_readings=1, **figures):
    """Each figure as (start, end, value), … or, as readings, (at, value), …, each standing for the time before it."""
    tracks = Tracks()
    for figure, stretches in figures.items():
        since_s = None
        for *span, value in stretches:
            begin_s = span[0] if len(span) == 2 else span[0] if since_s is None else since_s
            since_s = span[-1]
            tracks.add(figure, Stretch(begin_s, since_s, value))
    found = telemetry(tracks, missing or {}, num_readings, start_s, end_s)
    assert found is not None
    return found


def test_means_weigh_readings_with_the_time_they_stand_for():
    found = seen(0.0, 10.0, num_readings=3, gpu_power_w=[(0.0, 999.0), (9.0, 100.0), (10.0, 200.0)])
    assert found.gpu_power_w == pytest.approx(110.0)
    assert (found.seconds, found.num_readings) == (10.0, 3)


def test_peaks_are_of_the_span_alone():
    readings = [(0.0, 9), (1.0, 3), (2.0, 5)]
    found = seen(0.5, 1.5, bench_rss_bytes=readings, gpu_memory_used_bytes=readings, ram_available_bytes=readings)
    assert (found.bench_rss_bytes, found.gpu_memory_used_bytes, found.ram_available_bytes) == (3, 3, 3)


def test_a_span_between_two_rare_readings_takes_the_later_one():
    found = seen(0.4, 0.6, shm_used_bytes=[(0.0, 9), (1.0, 3)], core_utilization_fractions=[(0.0, 1.0, (0.5, 1.0))])
    assert found.shm_used_bytes == 3
    assert found.core_utilization_fractions == (0.5, 1.0)


def test_no_reading_is_no_telemetry_and_no_figure_is_none():
    assert telemetry(Tracks(), {}, 0, 0.0, 1.0) is None
    found = seen(0.0, 1.0)
    known = {
        name: value for name in Telemetry.__dataclass_fields__ if (value := getattr(found, name)) not in (None, ())
    }
    assert set(known) == {"seconds", "num_readings", "timeline", "missing"}
    assert found.missing == {}


def test_what_is_missing_keeps_its_reason_unless_it_was_seen_after_all():
    reasons = {GPU: "not supported under MIG", POWER: "a hiccup", EACH_WORKERS_CORES: "no field of that name"}
    found = seen(0.0, 1.0, missing=reasons, gpu_power_w=[(0.0, 1.0, 5.0)])
    assert found.missing == {GPU: "not supported under MIG"}


def test_percentiles_and_time_at_zero_are_of_time_not_of_samples():
    """Ten short samples at full and one long at zero: counted by samples, it would hardly ever idle."""
    full = [(position / 100, (position + 1) / 100, 1.0) for position in range(10)]
    found = seen(0.0, 1.0, gpu_utilization_fraction=[*full, (0.1, 0.9, 0.0), (0.9, 1.0, 0.5)])
    assert found.gpu_utilization_fraction == pytest.approx(0.15)
    assert found.gpu_idle_fraction == pytest.approx(0.8)
    assert (found.gpu_utilization_p5_fraction, found.gpu_utilization_p95_fraction) == (0.0, 1.0)
    assert seen(0.0, 0.1, gpu_utilization_fraction=full).gpu_idle_fraction == 0.0


def test_amounts_add_up_and_the_uncovered_ends_count_like_the_rest():
    joules = [(0.0, 1.0, 100.0), (1.0, 2.0, 300.0)]
    assert seen(0.0, 2.0, gpu_energy_j=joules).gpu_energy_j == pytest.approx(400.0)
    assert seen(0.5, 1.5, gpu_energy_j=joules).gpu_energy_j == pytest.approx(200.0)
    assert seen(0.0, 2.5, gpu_energy_j=joules).gpu_energy_j == pytest.approx(500.0)
    assert seen(0.0, 2.0, num_cpu_throttles=[(0.0, 1.0, 3), (1.0, 2.0, 1)]).num_cpu_throttles == 4


def test_of_a_stretch_across_an_end_nobody_knows_how_it_is_spread():
    """A GPU that waits for its first batch takes 100 W, then 500: what began before the span is not split evenly."""
    joules = [(0.0, 0.5, 0.3 * 100 + 0.2 * 500), *((at, at + 0.5, 250.0) for at in (0.5, 1.0, 1.5, 2.0, 2.5))]
    assert seen(0.3, 2.8, gpu_energy_j=joules).gpu_energy_j == pytest.approx(2.5 * 500)
    assert seen(0.3, 0.9, gpu_energy_j=joules).gpu_energy_j == pytest.approx(0.2 * 260 + 0.4 * 500)


def test_workers_are_told_apart_also_where_one_came_later():
    cores = [(0.0, 1.0, (1.0, None)), (1.0, 3.0, (0.4, 0.5))]
    rss = [(1.0, (10, 20)), (3.0, (30, 5))]
    found = seen(0.0, 3.0, **{EACH_WORKERS_CORES: cores, EACH_WORKERS_RSS: rss})
    first, second = found.workers
    assert first == WorkerUse(cpu_cores=pytest.approx(0.6), rss_bytes=30)
    assert second == WorkerUse(cpu_cores=0.5, rss_bytes=20)


def test_a_timeline_has_a_slice_for_each_reading_and_its_mean_is_the_span_s():
    stretches = [(position / 10, (position + 1) / 10, position / 10) for position in range(10)]
    found = seen(0.0, 1.0, num_readings=10, gpu_utilization_fraction=stretches)
    timeline = found.timeline
    assert timeline.slice_s == pytest.approx(0.1)
    assert timeline.gpu_utilization_fraction == pytest.approx([position / 10 for position in range(10)])
    assert timeline.cpu_utilization_fraction == ()  # never known


def test_a_long_timeline_is_thinned_without_losing_a_moment():
    """Full for one reading in 500: every slice is a mean, so the spike is in one of them."""
    stretches = [(float(at), at + 1.0, float(at == 250)) for at in range(500)]
    found = seen(0.0, 500.0, num_readings=500, gpu_utilization_fraction=stretches)
    values = found.timeline.gpu_utilization_fraction
    assert len(values) == MAX_SLICES
    assert sum(values) * found.timeline.slice_s == pytest.approx(1.0, rel=1e-3)


def test_old_stretches_make_room():
    tracks = Tracks()
    for at_s in range(int(3 * KEPT_S)):
        tracks.add(POWER, Stretch(at_s, at_s + 1.0, 1.0))
    assert tracks.within(POWER, 0.0, KEPT_S) == []
    assert len(tracks.within(POWER, 0.0, 3 * KEPT_S)) == pytest.approx(KEPT_S, rel=0.01)


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.none() | st.floats(0, 1)), min_size=1, max_size=30),
    st.floats(0, 100),
    st.floats(0.1, 100),
)
def test_means_and_percentiles_lie_between_the_readings(steps, start_s, length_s):
    at_s, stretches = 0.0, []
    for step_s, value in steps:
        if value is not None:
            stretches.append((at_s, at_s + step_s, value))
        at_s += step_s
    found = seen(start_s, start_s + length_s, num_readings=5, gpu_utilization_fraction=stretches)
    known = [value for _, _, value in stretches]
    low, mean, high = (
        found.gpu_utilization_p5_fraction,
        found.gpu_utilization_fraction,
        found.gpu_utilization_p95_fraction,
    )
    if mean is not None and low is not None:
        assert min(known) <= low <= high <= max(known)
        assert min(known) - 1e-9 <= mean <= max(known) + 1e-9


def test_what_others_took_is_what_neither_the_training_nor_this_process_did():
    busy, bench, own = ([(0.0, 1.0, value)] for value in (6.0, 4.0, 0.5))
    found = seen(0.0, 1.0, **{BUSY_CORES: busy, "bench_cpu_cores": bench, OWN_CORES: own})
    assert found.others_cpu_cores == pytest.approx(1.5)
    assert seen(0.0, 1.0, **{BUSY_CORES: bench, "bench_cpu_cores": busy, OWN_CORES: own}).others_cpu_cores == 0.0
    assert seen(0.0, 1.0, **{BUSY_CORES: busy, OWN_CORES: own}).others_cpu_cores is None
