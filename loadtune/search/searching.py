"""The search: a study that tries configurations of the space, as the throughput model proposes them, until its time is
spent or nothing more is worth a trial."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from loadtune.contention import check_budget
from loadtune.model.resources import Job
from loadtune.records import Measurement, Trial, TrialConfig, TrialFailure, WorkloadFacts, raise_for_the_user
from loadtune.report.store import STUDY_FILE, write_whole
from loadtune.run import Run
from loadtune.run_file import Searched
from loadtune.seams import Clock
from loadtune.search.baseline import in_space
from loadtune.search.feasible import feasible, tell_shm
from loadtune.search.notes import end_notes
from loadtune.search.search import MIN_RUNS, Next, Search
from loadtune.search.space import SearchSpace
from loadtune.search.throughput import job_of
from loadtune.search.timing import outcome_text, timed
from loadtune.units import counted

if TYPE_CHECKING:
    from loadtune.search.study import OptunaStudy

MIN_TRIALS = 2
"""Run however little time there is: the user's own settings and the first proposal, so that there are two to compare.
A run that was resumed for more trials runs one more."""

CODE_TRIALS = 2
"""With changes of the code, beyond those of the settings."""


def study(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> Search:
    """Search the space; the user's own loader settings come first. Returns what was learned."""
    from loadtune.search.study import OptunaStudy  # late: half a second that the bench's start hides

    with run.stage("study"):
        check_budget(run)
        tell_shm(run, facts, max(searched.num_workers))
        search = _search(run, facts, searched)

        def save(content: Callable[[], bytes]) -> None:
            run.aside(f"{STUDY_FILE} lacks trials", lambda: write_whole(run.folder / STUDY_FILE, content()))

        kept = OptunaStudy(
            searched, lambda: search.upcoming().config, save, known=run.trials, objective=run.config.objective
        )
        if _has_ended(run):
            return search
        most, begun_s = run.config.num_trials, run.clock.now()
        loop = StudyLoop(
            study=kept,
            search=search,
            # What cannot be run again twice in the time left is of no use, unless it is the user's own.
            run=lambda config: timed(run, config, math.inf if config == run.yours else run.left_s / (1 + MIN_RUNS)),
            clock=run.clock,
            num_trials=max(most, len(run.standing) + CODE_TRIALS if searched.codes else 0),
            until_s=lambda expected: run.search_until_s(begun_s, expected, of_code=bool(searched.codes)),
            known=run.standing,
        )
        for trial in loop.trials():
            run.trials.append(trial)
            run.searched, run.confirmed = None, []  # the finalists may be others now
            run.concluded_s, run.remedies = None, None
            run.save()
            outcome = outcome_text(trial.config, trial.outcome, run.config.objective)
            run.tell(f"trial {len(run.trials)}/{most}: {outcome}")
        run.tell(f"The search ended: {loop.ended}.")
        notes = end_notes(run, search, ended=loop.ended, out_of_time=loop.out_of_time)
        run.note(*notes)
        run.searched = Searched(num_trials=most, time_budget_s=run.config.time_budget_s, notes=tuple(notes))
        run.save()
    return search


def known_job(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> Job:
    """As the model takes it, with what has been measured without a loader until now."""
    job = job_of(facts, run.host, run.device, searched.recipes, run.compute_points)
    return job if run.changes is None else replace(job, changed=run.changes.jobs(job))


def _search(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> Search:
    """The search, as far as the trials of this run brought it."""
    search = Search(
        job=known_job(run, facts, searched),
        space=searched,
        first=_first(run, searched),
        feasible=lambda configs: feasible(run, facts, configs),
        left_s=lambda: run.left_s,
        objective=run.config.objective,
    )
    for trial in run.standing:
        search.saw(trial)
    return search


def _first(run: Run, searched: SearchSpace) -> Sequence[Next]:
    """What others settled on: the user, and another machine's run, in a precision that there is here."""
    first, own = list[Next](), in_space(run.yours, searched)
    if own is not None and searched.excess(own) <= 0:
        first.append(Next(config=own, origin="yours"))
    if run.warm is not None:
        here = run.warm
        if here.precision not in searched.recipes:
            here = replace(here, recipe=next(iter(searched.recipes.values())))
        first.append(Next(config=searched.clip(here), origin="warm start"))
    return first


def _has_ended(run: Run) -> bool:
    """Whether the search of a resumed run had come to its end, no more is asked for, and nothing is asked again."""
    before = run.searched
    if before is None or not before.covers(run.config) or len(run.standing) < len(run.trials):
        return False
    run.note(*before.notes)
    return True


@dataclass(slots=True)
class StudyLoop:
    """Ask, run, tell, until trials or time are spent, or nothing more can be gained."""

    study: "OptunaStudy"
    search: Search
    """What the study's sampler asks. It has seen ``known``."""
    run: Callable[[TrialConfig], Measurement | TrialFailure]
    clock: Clock
    num_trials: int
    until_s: Callable[[float], float]
    """Given the improvement that a trial is expected to bring, when it has to end."""
    known: Sequence[Trial] = ()
    """Of before an interruption: they count as run, and are not run again."""
    ended: str = ""
    """Why it ended, for people."""
    out_of_time: bool = False
    """It ended because that was near."""
    _num_run: int = 0
    _seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._num_run = sum(trial.outcome is not None for trial in self.known)
        self._seconds += [trial.measurement.seconds for trial in self.known if trial.measurement is not None]

    def trials(self) -> Iterator[Trial]:
        """Each configuration that was tried, with its outcome. The study gets it after the caller."""
        while not (ended := self._end()):
            asked, number, begun = self.search.upcoming(), self.study.ask(), self.clock.now()
            outcome = self.run(asked.config)
            measured = outcome if isinstance(outcome, Measurement) else None
            self._seconds.append(self.clock.now() - begun if measured is None else measured.seconds)
            if not asked.config.remedies:
                raise_for_the_user(outcome)
            trial = Trial(
                number=number,
                config=asked.config,
                origin=asked.origin,
                predicted=asked.predicted,
                measurement=measured,
                failure=None if isinstance(outcome, Measurement) else outcome,
            )
            yield trial
            self.study.tell(trial)
            self.search.saw(trial)
            self._num_run += 1
        self.ended = ended

    def _end(self) -> str:
        """Why the search is over; empty: it goes on."""
        room = self.num_trials - self._num_run
        if room <= 0:
            return f"{counted(self.num_trials, 'trial')} {'was' if self.num_trials == 1 else 'were'} measured"
        must = self._num_run < max(MIN_TRIALS, len(self.known) + 1) or not self._seconds
        now, each_s = self.clock.now(), max(1e-3, statistics.fmean(self._seconds or [0.0]))
        left_s = math.inf
        if not must:  # as many as end before, if they take as long as those so far; and then two are still run again
            left_s = min(self.until_s(math.inf) - now, self.search.left_s() - 2 * MIN_RUNS * each_s)
            room = min(room, math.floor(left_s / each_s))
        asked = self.search.next(room, left_s) if room > 0 else None
        if asked is not None and (must or now + self._takes_s(asked, each_s) <= self.until_s(asked.expected)):
            return ""
        self.out_of_time = not self.search.ended
        return self.search.ended or "its share of the time budget was used"

    def _takes_s(self, asked: Next, each_s: float) -> float:
        """As long as those so far, or as the model expects: on a CPU, trials of larger batches take longer."""
        return max(each_s, self.search.expected_s(asked.config)) if asked.origin == "search" else each_s
