"""What a measurement is judged by."""

from dataclasses import replace

import pytest

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.interval import Interval
from loadtune.records.measurement import Measurement, Window
from loadtune.records.result import Winner
from loadtune.records.telemetry import Telemetry


def measured(energy_j: float | None, telemetry_s: float = 4.0) -> Measurement:
    """100 samples/s over 4 s."""
    seen = Telemetry(seconds=telemetry_s, gpu_energy_j=energy_j)
    window = Window(start_s=0.0, seconds=4.0, num_steps=10, num_samples=400)
    return Measurement(windows=(window,), first_batch_s=0.1, seconds=5.0, telemetry=seen)


def test_samples_per_joule_are_the_rate_over_the_mean_power() -> None:
    assert measured(2000.0).samples_per_joule == pytest.approx(100 / 500)


@pytest.mark.parametrize("energy_j", [None, 0.0])
def test_what_was_not_read_is_no_score(energy_j: float | None) -> None:
    assert measured(energy_j).samples_per_joule is None
    with pytest.raises(ValueError, match="no energy was read"):
        measured(energy_j).score("samples-per-joule")


def test_a_winner_says_what_it_was_picked_by() -> None:
    config = TrialConfig(loader=LoaderConfig(batch_size=8), recipe=Recipe())
    fast = Winner(config=config, samples_per_s=200.0, half_width_fraction=0.1, speedup=Interval(value=2.0))
    assert (fast.picked_by.value, fast.picked_by.half_width) == (200.0, pytest.approx(20.0))
    sparing = replace(fast, samples_per_joule=Interval(value=4.0), efficiency_gain=Interval(value=3.0))
    assert (sparing.picked_by.value, sparing.picked_by.half_width) == (4.0, None)
    assert (fast.gain, sparing.gain) == (Interval(value=2.0), Interval(value=3.0))
    assert sparing.throughput == fast.throughput == fast.picked_by
