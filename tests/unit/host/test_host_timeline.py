"""Figures integrated over time: what a span was like, whatever the pace they were read at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtune.host.sensing import (
    BUSY_CORES,
    MAX_SLICES,
    OWN_CORES,
    Stretch,
    Tracks,
    telemetry,
)

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


def test_what_is_missing_keeps_its_reason_unless_it_was_seen_after_all():
    reasons = {GPU: "not supported under MIG", POWER: "a hiccup", OWN_CORES: "no field of that name"}
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


def test_a_long_timeline_is_thinned_without_losing_a_moment():
    """Full for one reading in 500: every slice is a mean, so the spike is in one of them."""
    stretches = [(float(at), at + 1.0, float(at == 250)) for at in range(500)]
    found = seen(0.0, 500.0, num_readings=500, gpu_utilization_fraction=stretches)
    values = found.timeline.gpu_utilization_fraction
    assert len(values) == MAX_SLICES
    assert sum(values) * found.timeline.slice_s == pytest.approx(1.0, rel=1e-3)


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
