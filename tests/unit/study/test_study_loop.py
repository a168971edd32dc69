"""When a search ends by the clock: before enough trials only where all time is spent, after them where its own is."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from loadtune.records import LoaderConfig, Measurement, Recipe, TrialConfig, TrialFailure, Window
from loadtune.study.loop import ENOUGH_TRIALS, Asked, StudyLoop
from loadtune.testing import FakeClock

TRIAL_S = 10.0


@dataclass
class Rising:
    """Asks for ever more workers."""

    number: Iterator[int] = field(default_factory=lambda: iter(range(1000)))

    def ask(self) -> Asked:
        number = next(self.number)
        loader = LoaderConfig(batch_size=8, num_workers=number)
        return Asked(number=number, config=TrialConfig(loader=loader, recipe=Recipe()), origin="search")

    def tell_measured(self, asked: Asked, score: float) -> None: ...
    def tell_screened(self, asked: Asked, bound: float, reason: str) -> None: ...
    def tell_infeasible(self, asked: Asked, excess: float, reason: str) -> None: ...


@pytest.mark.parametrize(
    ("until_s", "enough_until_s", "num_run"),
    [
        (35.0, 1000.0, 3),
        (1000.0, 35.0, ENOUGH_TRIALS),
        (1000.0, 10.0 * TRIAL_S, 10),
        (8.0 * TRIAL_S, 9.0 * TRIAL_S, 8),
    ],
)
def test_a_search_ends_with_its_own_time_once_it_has_run_enough(
    until_s: float, enough_until_s: float, num_run: int
) -> None:
    clock = FakeClock()

    def run(config: TrialConfig, best: float | None) -> Measurement | TrialFailure:
        clock.spend(TRIAL_S)
        window = Window(start_s=0.0, seconds=1.0, num_steps=1, num_samples=100 + 10 * config.loader.num_workers)
        return Measurement(windows=(window,), first_batch_s=0.1, seconds=TRIAL_S)

    loop = StudyLoop(
        study=Rising(),
        run=run,
        refuse=lambda config, best: None,
        clock=clock,
        num_trials=50,
        until_s=clock.now() + until_s,
        enough_until_s=clock.now() + enough_until_s,
    )
    assert len(list(loop.trials())) == num_run
    assert loop.out_of_time
