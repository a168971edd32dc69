"""The search's loop: ask, run, tell, and know when to end. Pure over a study, a search and a way to run.

Out: `Trial`s, one by one, so that whoever iterates shows progress and keeps what there is when interrupted.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loadtune.records import (
    Measurement,
    Objective,
    Predicted,
    Telemetry,
    Trial,
    TrialConfig,
    TrialFailure,
    TrialOrigin,
    raise_for_the_user,
)
from loadtune.seams import Clock
from loadtune.study.search import Search
from loadtune.units import counted

MIN_TRIALS = 2
"""Run however little time there is: the user's own settings and the first proposal, so that there are two to compare.
A run that was resumed for more trials runs one more."""


LARGE = 0.15
"""Expected improvement, on the logarithm, that is worth more time than a search is meant to take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One configuration the study wants to know about."""

    number: int
    config: TrialConfig
    origin: TrialOrigin
    predicted: Predicted | None = None


class Study(Protocol):
    """What the loop needs of `OptunaStudy`."""

    def ask(self) -> Asked: ...
    def tell_measured(self, asked: Asked, score: float, seen: Telemetry | None = None) -> None: ...
    def tell_infeasible(self, asked: Asked, reason: str) -> None: ...


@dataclass(slots=True)
class StudyLoop:
    """Runs a study until its trials or its time are spent, or nothing more can be gained."""

    study: Study
    search: Search
    """What the study's sampler asks. It has seen ``known``."""
    run: Callable[[TrialConfig], Measurement | TrialFailure]
    clock: Clock
    num_trials: int
    until_s: float
    """No trial begins that is expected to end later."""
    late_until_s: float | None = None
    """The same while a `LARGE` improvement is expected. None: as `until_s`."""
    known: Sequence[Trial] = ()
    """Of before an interruption: they count as run, and are not run again."""
    objective: Objective = "samples-per-s"
    ended: str = ""
    """Why it ended, for people."""
    out_of_time: bool = False
    """It ended because `until_s` was near."""
    _seconds: list[float] = field(default_factory=list)
    _num_run: int = 0

    def __post_init__(self) -> None:
        for trial in self.known:
            self._count(trial)

    def trials(self) -> Iterator[Trial]:
        """Each configuration that was tried, with its outcome. The study gets it after the caller."""
        while not (ended := self._end()):
            asked = self.study.ask()
            outcome = self._run(asked.config)
            trial = _trial(asked, outcome)
            yield trial
            if isinstance(outcome, Measurement):
                self.study.tell_measured(asked, outcome.score(self.objective), outcome.telemetry)
            else:
                self.study.tell_infeasible(asked, outcome.message)
            self.search.saw(trial)
            self._count(trial)
        self.ended = ended

    def _end(self) -> str:
        """Why the search is over; empty: it goes on."""
        room = self.num_trials - self._num_run
        if room <= 0:
            return f"{counted(self.num_trials, 'trial')} {'was' if self.num_trials == 1 else 'were'} measured"
        must = self._num_run < max(MIN_TRIALS, len(self.known) + 1) or not self._seconds
        ends = [(self.until_s, -math.inf)]
        ends += [] if must or self.late_until_s is None else [(self.late_until_s, LARGE)]
        for until_s, least in ends:
            in_time = room if must else self._in_time(until_s)
            if in_time < 1:
                continue
            left_s = math.inf if must else until_s - self.clock.now()
            if self.search.next(min(room, in_time), left_s) is not None and self.search.expected >= least:
                return ""
            if self.search.ended:
                break
        self.out_of_time = not self.search.ended
        return self.search.ended or "its share of the time budget was used"

    def _in_time(self, until_s: float) -> int:
        """Trials that end before, if they take as long as those so far."""
        return math.floor((until_s - self.clock.now()) / max(1e-3, statistics.fmean(self._seconds or [0.0])))

    def _run(self, config: TrialConfig) -> Measurement | TrialFailure:
        started = self.clock.now()
        outcome = self.run(config)
        self._seconds.append(outcome.seconds if isinstance(outcome, Measurement) else self.clock.now() - started)
        if not config.remedies:
            raise_for_the_user(outcome)
        return outcome

    def _count(self, trial: Trial) -> None:
        self._num_run += trial.outcome is not None


def _trial(asked: Asked, outcome: Measurement | TrialFailure) -> Trial:
    return Trial(
        number=asked.number,
        config=asked.config,
        origin=asked.origin,
        predicted=asked.predicted,
        measurement=outcome if isinstance(outcome, Measurement) else None,
        failure=outcome if isinstance(outcome, TrialFailure) else None,
    )
