"""When a search ends: by the clock before enough trials only where all time is spent, after them where its own is; by a
first trial that leaves nothing to gain; and where nothing new is asked for."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from loadtune.records import LoaderConfig, Measurement, Recipe, TrialConfig, TrialFailure, TrialOrigin, Window
from loadtune.records.confirmed import MISREAD
from loadtune.study.loop import ENOUGH_TRIALS, MAX_IDLE, NEAR_CEILING, Asked, Refusal, StudyLoop
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

    def tell_measured(self, asked: Asked, score: float, seen=None) -> None: ...
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


@dataclass
class Repeating:
    """Asks for the same workers over and over; keeps how often."""

    num_workers: tuple[int, ...]
    origin: TrialOrigin = "search"
    num_asked: int = 0

    def ask(self) -> Asked:
        loader = LoaderConfig(batch_size=8, num_workers=self.num_workers[self.num_asked % len(self.num_workers)])
        self.num_asked += 1
        return Asked(number=self.num_asked - 1, config=TrialConfig(loader=loader, recipe=Recipe()), origin=self.origin)

    def tell_measured(self, asked: Asked, score: float, seen=None) -> None: ...
    def tell_screened(self, asked: Asked, bound: float, reason: str) -> None: ...
    def tell_infeasible(self, asked: Asked, excess: float, reason: str) -> None: ...


def at_rate(rate: int) -> Measurement:
    window = Window(start_s=0.0, seconds=1.0, num_steps=1, num_samples=rate)
    return Measurement(windows=(window,), first_batch_s=0.1, seconds=1.0)


def loop_over(study: Repeating, rate: int = 100, ceiling_per_s: float | None = None, num_seeds: int = 0) -> StudyLoop:
    """In which time stands still, and what has more than 8 workers does not run."""
    return StudyLoop(
        study=study,
        run=lambda config, best: at_rate(rate),
        refuse=lambda config, best: Refusal(reason="", excess=1.0) if config.loader.num_workers > 8 else None,
        clock=FakeClock(),
        num_trials=50,
        until_s=1e9,
        num_seeds=num_seeds,
        ceiling_per_s=ceiling_per_s,
    )


@pytest.mark.parametrize(
    ("share", "suffices"),
    [
        (NEAR_CEILING - 0.02, False),
        (NEAR_CEILING + 0.01, True),
        (MISREAD - 0.01, True),
        (MISREAD + 0.01, False),
        (2.0, False),
    ],
)
def test_yours_end_the_search_near_the_ceiling_and_not_where_they_are_clearly_above_it(
    share: float, suffices: bool
) -> None:
    """A ceiling that the first trial exceeds by a tenth was misread, and says nothing of what is left to gain."""
    study = Repeating((1, 2, 3), origin="yours")
    loop = loop_over(study, rate=round(1000 * share), ceiling_per_s=1000.0, num_seeds=3)
    trials = list(loop.trials())
    assert loop.yours_suffices == suffices
    assert len(trials) == (1 if suffices else 3)
    assert ("baseline" in loop.ended) == suffices


def test_others_than_yours_end_no_search_by_one_trial() -> None:
    loop = loop_over(Repeating((1, 2, 3)), rate=1000, ceiling_per_s=1000.0, num_seeds=3)
    assert len(list(loop.trials())) == 3
    assert not loop.yours_suffices


def test_a_study_that_repeats_itself_is_asked_so_often_and_no_more() -> None:
    study = Repeating((2,))
    loop = loop_over(study)
    assert [trial.config.loader.num_workers for trial in loop.trials()] == [2]
    assert study.num_asked == 1 + MAX_IDLE
    assert "no configuration was left" in loop.ended


def test_what_needs_no_run_is_passed_over_while_there_are_seeds() -> None:
    """The first that fits comes behind more of those that do not than a search would take."""
    refused = tuple(range(9, 9 + MAX_IDLE + 5))
    study = Repeating((1, *refused, 2))
    ran = [trial.config.loader.num_workers for trial in loop_over(study, num_seeds=2 + len(refused)).trials()]
    assert ran == [1, *refused, 2]
    without_seeds = list(loop_over(Repeating((1, *refused, 2))).trials())
    assert len(without_seeds) == 1 + MAX_IDLE
