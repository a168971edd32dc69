"""When a search ends: by the clock before enough trials only where all time is spent, after them where its own is; and
where nothing is proposed any more."""

from dataclasses import dataclass, field

import pytest

from loadtune.records import LoaderConfig, Measurement, Recipe, Trial, TrialConfig, TrialFailure, Window
from loadtune.search.search import Next
from loadtune.search.searching import StudyLoop
from loadtune.testing import FakeClock

TRIAL_S = 10.0


@dataclass
class Rising:
    """A search that proposes ever more workers, up to ``most``, and the study that asks it."""

    most: int = 1000
    ended: str = ""
    rooms: list[int] = field(default_factory=list)
    seen: list[Trial] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    run_s: float = 1e9

    def left_s(self) -> float:
        return self.run_s

    def next(self, room: int, left_s: float) -> Next | None:
        self.rooms.append(room)
        if len(self.seen) >= self.most:
            self.ended = "everything was tried"
            return None
        return self.upcoming()

    def expected_s(self, config: TrialConfig) -> float:
        return 0.0

    def upcoming(self) -> Next:
        return Next(config=workers(len(self.seen)), origin="search")

    def saw(self, trial: Trial) -> None:
        self.seen.append(trial)

    def ask(self) -> int:
        return len(self.seen)

    def tell(self, trial: Trial) -> None:
        self.told.append("measured" if trial.failure is None else trial.failure.message)


def workers(number: int) -> TrialConfig:
    return TrialConfig(loader=LoaderConfig(batch_size=8, num_workers=number), recipe=Recipe())


def measured(config: TrialConfig) -> Measurement:
    window = Window(start_s=0.0, seconds=1.0, num_steps=1, num_samples=100 + 10 * config.loader.num_workers)
    return Measurement(windows=(window,), first_batch_s=0.1, seconds=TRIAL_S)


def loop_over(rising: Rising, until_s: float = 1e6, **more: object) -> StudyLoop:
    clock = FakeClock()
    end_s = clock.now() + until_s

    def run(config: TrialConfig) -> Measurement | TrialFailure:
        clock.spend(TRIAL_S)
        if config.loader.num_workers == 1:
            return TrialFailure(kind="crash", phase="training", message="planted")
        return measured(config)

    return StudyLoop(
        study=rising,
        search=rising,  # type: ignore[arg-type]
        run=run,
        clock=clock,
        num_trials=20,
        until_s=lambda expected: end_s,
        **more,
    )


@pytest.mark.parametrize(("until_s", "num_run"), [(5.0, 2), (35.0, 3), (8.0 * TRIAL_S, 8)])
def test_a_search_ends_with_its_time_and_has_two_trials_whatever_it_is(until_s: float, num_run: int) -> None:
    loop = loop_over(Rising(), until_s)
    assert len(list(loop.trials())) == num_run
    assert loop.out_of_time


def test_it_ends_where_nothing_is_proposed_and_says_why() -> None:
    rising = Rising(most=4)
    loop = loop_over(rising)
    trials = list(loop.trials())
    assert [trial.config for trial in trials] == [workers(number) for number in range(4)]
    assert rising.told == ["measured", "planted", "measured", "measured"]
    assert (loop.ended, loop.out_of_time) == ("everything was tried", False)
