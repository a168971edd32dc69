"""What one loader's rate says of another's."""

import pytest

from loadtune.records import LoaderConfig, Measurement, Recipe, Trial, TrialConfig, Window
from loadtune.study.loader_bound import loader_bound, workers_bound


def config(num_workers: int, batch_size: int = 64, pin_memory: bool = True) -> TrialConfig:
    loader = LoaderConfig(batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory)
    return TrialConfig(loader=loader, recipe=Recipe())


def measured(asked: TrialConfig, rate: float, wait_fraction: float = 0.5) -> Trial:
    windows = tuple(
        Window(start_s=float(at), seconds=1.0, num_steps=10, num_samples=int(rate), wait_s=wait_fraction)
        for at in range(3)
    )
    timed = Measurement(windows=windows, first_batch_s=0.1, seconds=4.0)
    return Trial(number=0, config=asked, origin="search", measurement=timed)


def bound(asked: TrialConfig, *trials: Trial, compute: float | None = 5000.0) -> float | None:
    return loader_bound(asked, trials, lambda _: compute)


def test_fewer_workers_deliver_no_more_and_twice_as_many_at_most_twice() -> None:
    seen = measured(config(8), 2000.0)
    assert bound(config(4), seen) == pytest.approx(2400.0)
    assert bound(config(16), seen) == pytest.approx(4800.0)
    assert bound(config(8, batch_size=128), seen) == pytest.approx(2400.0)
    assert bound(config(0), seen) == pytest.approx(2400.0)


def test_of_several_the_tightest_counts() -> None:
    assert bound(config(6), measured(config(4), 1000.0), measured(config(8), 2000.0)) == pytest.approx(1800.0)


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        (config(4, pin_memory=False), measured(config(8), 2000.0)),
        (config(4, batch_size=256), measured(config(8), 2000.0)),
        (config(4, batch_size=16), measured(config(8), 2000.0)),
        (config(0), measured(config(1), 300.0)),
        (config(4), measured(config(0), 300.0)),
        (config(4), measured(config(8), 2000.0, wait_fraction=0.1)),
        (config(4), measured(config(8), 4000.0)),
    ],
    ids=["other pin", "far larger", "far smaller", "one worker to none", "none to some", "kept up", "near compute"],
)
def test_what_says_nothing(asked: TrialConfig, seen: Trial) -> None:
    assert bound(asked, seen) is None


def test_without_a_compute_rate_nothing_tells_who_the_wall_was() -> None:
    assert bound(config(4), measured(config(8), 2000.0), compute=None) is None


@pytest.mark.parametrize(("num_workers", "at_most"), [(0, 480.0), (1, 480.0), (3, 1440.0), (16, 7680.0)])
def test_workers_make_no_more_than_a_cached_sample_lets_them(num_workers: int, at_most: float) -> None:
    loader = LoaderConfig(batch_size=64, num_workers=num_workers)
    assert workers_bound(loader, [measured(config(8), 2000.0)], 1 / 400) == pytest.approx(at_most)
    assert workers_bound(loader, [], None) is None


def test_a_trial_that_was_faster_than_its_bound_refutes_it_for_all() -> None:
    assert workers_bound(config(2).loader, [measured(config(4), 2000.0)], 1 / 400) is None
