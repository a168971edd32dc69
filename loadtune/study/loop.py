"""The study's loop: ask, refuse or run, tell, and know when to end. Pure over a study and a way to run.

In: an ask/tell study, `refuse` (what the bounds say), `run` (what the bench says). Out: `Trial`s, one by one, so that
whoever iterates shows progress and keeps what there is when interrupted.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loadtune.errors import WorkloadError
from loadtune.records import Measurement, Objective, Telemetry, Trial, TrialConfig, TrialFailure, TrialOrigin
from loadtune.records.confirmed import MISREAD
from loadtune.seams import Clock
from loadtune.units import counted

MIN_TRIALS = 2
"""Run however little time there is: the user's own settings and the first prediction, so that there are two to compare.
A run that was resumed for more trials runs one more."""

NEAR_CEILING = 0.97
"""The incumbent trains at this share of the best compute-only rate: no loader setting can add more than 3%."""

PATIENCE = 5
"""Trials without a gain of 1% after which the search ends. Replayed over the first five tables (100 seeds each), eight
take two trials more and end no closer to the best: where runs differ by a tenth, the luckiest of more is no better."""

ENOUGH_TRIALS = 6
"""Run as long as there is time at all; those after them only within the time meant for a search."""

MIN_GAIN = 1.01
"""A gain below 1% is noise: windows of one run differ by more."""

MAX_IDLE = 25
"""Answers in a row that needed no run (refused, or measured before): the sampler has nothing new to ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a configuration is not run."""

    reason: str
    excess: float = 0.0
    """Above 0: it cannot run, by this much."""
    bound: float | None = None
    """It could run, but its score cannot exceed this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One configuration the study wants to know about."""

    number: int
    config: TrialConfig
    origin: TrialOrigin


class Study(Protocol):
    """What the loop needs of `OptunaStudy`."""

    def ask(self) -> Asked: ...
    def tell_measured(self, asked: Asked, score: float, seen: Telemetry | None = None) -> None: ...
    def tell_screened(self, asked: Asked, bound: float, reason: str) -> None: ...
    def tell_infeasible(self, asked: Asked, excess: float, reason: str) -> None: ...


Run = Callable[[TrialConfig, float | None], Measurement | TrialFailure]
"""Runs a configuration; the second argument is the incumbent's score, None while there is none."""

Refuse = Callable[[TrialConfig, float | None], Refusal | None]

Outcome = Measurement | TrialFailure | Refusal


@dataclass(slots=True)
class StudyLoop:
    """Runs a study until its trials or its time are spent, or nothing more can be gained."""

    study: Study
    run: Run
    refuse: Refuse
    clock: Clock
    num_trials: int
    until_s: float
    """No trial begins that is expected to end later."""
    enough_until_s: float = math.inf
    """The same once enough trials were run, all seeds among them."""
    num_seeds: int = 0
    """Trials that are run in any case: a ceiling that one of them seems to reach may itself have been misread."""
    num_configs: int | None = None
    """Configurations that fit. None: more than can be looked at."""
    ceiling_per_s: float | None = None
    """Best compute-only rate of all. None: not known, or no bound of what is looked for."""
    known: Sequence[Trial] = ()
    """Of before an interruption: they count as run, and are not run again."""
    ahead: Trial | None = None
    """Timed before the study asks for it, and then not run."""
    keep: Callable[[Trial], None] = lambda trial: None
    """Told each trial before the study is: what the study knows is then never lost."""
    objective: Objective = "samples-per-s"
    best: float | None = None
    """Score of the incumbent."""
    ended: str = ""
    """Why it ended, for people."""
    out_of_time: bool = False
    """It ended because `until_s`, or after enough trials `enough_until_s`, was near."""
    yours_suffices: bool = False
    """It ended because the user's own loader settings leave nothing to be gained."""
    _seen: dict[TrialConfig, Outcome] = field(default_factory=dict)
    _seconds: list[float] = field(default_factory=list)
    _num_run: int = 0
    _num_known: int = 0
    _num_asked: int = 0
    _idle: int = 0
    _stale: int = 0

    def __post_init__(self) -> None:
        for trial in self.known:
            outcome = trial.outcome
            if outcome is None:
                continue  # screened: another bound may hold by now
            self._seen[trial.config] = outcome
            self._num_known = self._num_asked = self._num_run = self._num_run + 1
            if isinstance(outcome, Measurement):
                self._seconds.append(outcome.seconds)
                self.best = max(self.best or 0.0, outcome.score(self.objective))

    def trials(self) -> Iterator[Trial]:
        """Each configuration the study looks at, with its outcome; ones seen before are answered from memory."""
        while not (ended := self._end()):
            asked = self.study.ask()
            self._num_asked += 1
            if asked.config in self._seen:
                self._idle += 1
                self._tell(asked, self._seen[asked.config])
                continue
            outcome = self.refuse(asked.config, self.best) or self._run(asked.config)
            trial = _trial(asked, outcome)
            self.keep(trial)
            self._seen[asked.config] = outcome
            self._tell(asked, outcome)
            self._count(outcome)
            self._judge_yours(asked, outcome)
            yield trial
        self.ended = ended

    def _end(self) -> str:
        if self._num_run >= self.num_trials:
            return f"{counted(self.num_trials, 'trial')} {'was' if self.num_trials == 1 else 'were'} measured"
        if self.yours_suffices:
            share = f"{NEAR_CEILING:.0%} of the compute-only rate"
            return f"the baseline's loader settings reach {share} or more"
        if self.num_configs is not None and self._num_fitting >= self.num_configs:
            return "every configuration was considered"
        if self._idle >= MAX_IDLE and self._num_asked >= self.num_seeds:  # no seed is passed over
            return "no configuration was left that could be faster"
        if self._stale >= PATIENCE:
            return f"{PATIENCE} trials in a row brought no gain"
        if self._num_run >= self.num_seeds and self._reaches_ceiling(self.best):
            return "the compute-only rate was reached"
        if self._num_run < max(MIN_TRIALS, self._num_known + 1) or not self._seconds:
            return ""
        enough = self._num_run >= max(ENOUGH_TRIALS, self.num_seeds)
        until_s = min(self.until_s, self.enough_until_s) if enough else self.until_s
        self.out_of_time = self.clock.now() + statistics.fmean(self._seconds) > until_s
        return "its share of the time budget was used" if self.out_of_time else ""

    @property
    def _num_fitting(self) -> int:
        """Configurations looked at that the space says fit."""
        return sum(not isinstance(seen, Refusal) or seen.bound is not None for seen in self._seen.values())

    def _reaches_ceiling(self, rate: float | None) -> bool:
        return bool(self.ceiling_per_s and rate and rate >= NEAR_CEILING * self.ceiling_per_s)

    def _judge_yours(self, asked: Asked, outcome: Outcome) -> None:
        """Whether the search may end with its first trial: a rate that is above the ceiling says it was misread."""
        if asked.origin == "yours" and isinstance(outcome, Measurement) and self.ceiling_per_s:
            rate = outcome.epoch_samples_per_s
            self.yours_suffices = self._reaches_ceiling(rate) and rate <= MISREAD * self.ceiling_per_s

    def _run(self, config: TrialConfig) -> Measurement | TrialFailure:
        started = self.clock.now()
        outcome = self.ahead.outcome if self.ahead is not None and self.ahead.config == config else None
        if outcome is None:
            outcome = self.run(config, self.best)
            self._seconds.append(self.clock.now() - started)
        elif isinstance(outcome, Measurement):
            self._seconds.append(outcome.seconds)
        self._num_run += 1
        raise_for_the_user(outcome)
        return outcome

    def _tell(self, asked: Asked, outcome: Outcome) -> None:
        if isinstance(outcome, Measurement):
            self.study.tell_measured(asked, outcome.score(self.objective), outcome.telemetry)
        elif isinstance(outcome, TrialFailure):
            self.study.tell_infeasible(asked, 1.0, outcome.message)
        elif outcome.bound is None:
            self.study.tell_infeasible(asked, outcome.excess, outcome.reason)
        else:
            self.study.tell_screened(asked, outcome.bound, outcome.reason)

    def _count(self, outcome: Outcome) -> None:
        """Keep the incumbent, and how long nothing came of asking."""
        if isinstance(outcome, Refusal):
            self._idle += 1
            return
        self._idle = 0
        score = outcome.score(self.objective) if isinstance(outcome, Measurement) else 0.0
        if score > MIN_GAIN * (self.best or 0.0) or self._num_run <= self.num_seeds:
            self._stale = 0  # seeds are predictions: that one of them is the best says nothing yet of the search
        else:
            self._stale += 1
        if score > (self.best or 0.0):
            self.best = score


def raise_for_the_user(outcome: Measurement | TrialFailure) -> None:
    """Raise WorkloadError where it is the user's own code that failed: so would every other trial."""
    if isinstance(outcome, TrialFailure) and outcome.kind == "user_error":
        raise WorkloadError(
            f"{outcome.message.rstrip('.')}. Every sample must load and every batch must train. Correct the dataset "
            "or the model, and run again.",
            outcome.log_tail or None,
        )


def _trial(asked: Asked, outcome: Outcome) -> Trial:
    return Trial(
        number=asked.number,
        config=asked.config,
        origin=asked.origin,
        measurement=outcome if isinstance(outcome, Measurement) else None,
        failure=outcome if isinstance(outcome, TrialFailure) else None,
        screened=outcome.reason if isinstance(outcome, Refusal) else None,
    )
