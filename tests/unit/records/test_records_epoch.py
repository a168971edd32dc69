"""What is ranked: samples ÷ seconds of an epoch, the start of workers that do not outlive it included."""

from dataclasses import replace

import pytest

from loadtune.records import Finalist, LoaderConfig, Measurement, Recipe, TrialConfig, Window
from loadtune.study.confirm import finalists
from loadtune.study.winner import pick_winner


def measured(rate: float, start_s: float = 0.0, epoch_samples: int | None = 50_000) -> Measurement:
    window = Window(start_s=0.0, seconds=10.0, num_steps=10, num_samples=round(10 * rate))
    return Measurement(
        windows=(window,), first_batch_s=2.6, seconds=12.0, epoch_samples=epoch_samples, restart_s=start_s
    )


def test_a_start_each_epoch_counts_and_one_that_happens_once_does_not():
    anew, kept = measured(4300, 2.6), measured(4300)
    assert kept.epoch_s == pytest.approx(50_000 / 4300)
    assert anew.epoch_s == pytest.approx(kept.epoch_s + 2.6)
    assert anew.samples_per_s == kept.samples_per_s == kept.score("samples-per-s") == 4300
    assert anew.score("samples-per-s") == pytest.approx(4300 / 1.22, rel=0.01), "22% of an epoch"


def test_of_an_unknown_length_the_rate_alone_counts():
    assert measured(4300, 2.6, None).epoch_s is None
    assert measured(4300, 2.6, None).score("samples-per-s") == 4300


def test_the_interval_is_of_the_rate_that_it_stands_beside():
    """The start of workers is the same in each epoch; it must not make a rate look steadier than it is."""
    config = TrialConfig(loader=LoaderConfig(batch_size=64), recipe=Recipe())
    quick, slow = (
        finalists([(config, measured(rate, start_s, 1000)) for rate in (900, 1000, 1100)])[0] for start_s in (0.0, 9.0)
    )
    assert slow.half_width_fraction == quick.half_width_fraction


def test_the_shorter_epoch_wins_over_the_higher_rate():
    loader = LoaderConfig(batch_size=64, num_workers=8)
    fast = TrialConfig(loader=replace(loader, persistent_workers=False), recipe=Recipe())
    kept = TrialConfig(loader=loader, recipe=Recipe())
    sides = {fast: [measured(4400, 2.6), measured(4420, 2.6)], kept: [measured(4300), measured(4310)]}
    found = [Finalist(config=config, runs=tuple(runs), half_width_fraction=0.01) for config, runs in sides.items()]
    winner = pick_winner(found, yours=fast)
    assert winner is not None
    assert (winner.config, winner.samples_per_s) == (kept, 4305)
    assert winner.speedup == pytest.approx(4305 / (4410 / 1.23), rel=0.01)
