"""The search: the study that tries configurations of the space, as the throughput model proposes them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from loadtune.findings import Findings
from loadtune.records import Measurement, Trial, TrialConfig, TrialFailure, WorkloadFacts
from loadtune.report.run_file import Searched
from loadtune.report.store import STUDY_FILE, write_whole
from loadtune.stages.feasible import feasible, tell_shm
from loadtune.stages.gpu_contention import check_budget
from loadtune.stages.run import STUDY_SHARE, TRIAL_SHARE, Run
from loadtune.stages.search_notes import end_notes
from loadtune.stages.timing import outcome_text, timed
from loadtune.study.alternation import MIN_RUNS
from loadtune.study.loop import Study, StudyLoop
from loadtune.study.search import Next, Search
from loadtune.study.space import SearchSpace
from loadtune.study.throughput import job_of

CODE_TRIALS = 2
"""With changes of the code, beyond those of the settings."""


def study(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> None:
    """Search the space; the user's own loader settings come first."""
    from loadtune.study.optuna_study import OptunaStudy  # late: half a second that the bench's start hides

    found = run.found
    with found.stage("study"):
        check_budget(run)
        tell_shm(run, facts, max(searched.num_workers))
        search = search_of(run, facts, searched)

        def save(content: Callable[[], bytes]) -> None:
            found.aside(f"{STUDY_FILE} lacks trials", lambda: write_whole(run.folder / STUDY_FILE, content()))

        asked = OptunaStudy(searched, search.upcoming, save, known=found.trials, objective=found.config.objective)
        if _has_ended(run):
            return
        loop = study_loop(run, search, asked)
        for trial in loop.trials():
            found.trials.append(trial)
            found.searched, found.confirmed = None, []  # the finalists may be others now
            found.concluded_s, found.remedies = None, None
            run.save()
            found.tell(_trial_line(found, trial))
        found.tell(f"The search ended: {loop.ended}.")
        notes = end_notes(loop, found, searched)
        for note in notes:
            found.note(note)
        found.searched = Searched(
            num_trials=found.config.num_trials, time_budget_s=found.config.time_budget_s, notes=tuple(notes)
        )
        run.save()


def search_of(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> Search:
    """The search, as far as the trials of this run brought it."""
    found = run.found
    job = job_of(facts, found.host, found.device, searched.recipes, found.compute_points)
    search = Search(
        job=replace(job, changed=found.changes.jobs(job)) if found.changes is not None else job,
        space=searched,
        first=_first(found, searched),
        feasible=lambda configs: feasible(run, facts, configs),
        left_s=lambda: found.left_s,
        objective=found.config.objective,
    )
    for trial in run.standing:
        search.saw(trial)
    return search


def _first(found: Findings, searched: SearchSpace) -> Sequence[Next]:
    """What others settled on: the user, and another machine's run, in a precision that there is here."""
    first, own = list[Next](), _in_space(found.yours, searched)
    if own is not None and searched.excess(own) <= 0:
        first.append(Next(config=own, origin="yours"))
    if found.warm is not None:
        here = found.warm
        if here.precision not in searched.recipes:
            here = replace(here, recipe=next(iter(searched.recipes.values())))
        first.append(Next(config=searched.clip(here), origin="warm start"))
    return first


def _has_ended(run: Run) -> bool:
    """Whether the search of a resumed run had come to its end, no more is asked for, and nothing is asked again."""
    before = run.found.searched
    if before is None or not before.covers(run.found.config) or len(run.standing) < len(run.found.trials):
        return False
    for note in before.notes:
        run.found.note(note)
    return True


def study_loop(run: Run, search: Search, asked: Study) -> StudyLoop:
    """The loop over a study."""
    found = run.found
    return StudyLoop(
        study=asked,
        search=search,
        run=lambda config: _tried(run, config),
        clock=run.clock,
        num_trials=max(found.config.num_trials, len(run.standing) + CODE_TRIALS if search.space.codes else 0),
        until_s=run.search_until_s,
        late_until_s=run.until(STUDY_SHARE),
        objective=found.config.objective,
        known=run.standing,
    )


def _tried(run: Run, config: TrialConfig) -> Measurement | TrialFailure:
    """What cannot be run again twice in the time left is of no use, unless it is the user's own."""
    limit_s = math.inf if config == run.found.yours else run.found.left_s / (1 + MIN_RUNS)
    return timed(run, config, TRIAL_SHARE, limit_s)


def _trial_line(found: Findings, trial: Trial) -> str:
    outcome = outcome_text(trial.config, trial.outcome, found.config.objective)
    return f"trial {len(found.trials)}/{found.config.num_trials}: {outcome}"


def _in_space(yours: TrialConfig | None, searched: SearchSpace) -> TrialConfig | None:
    """The user's loader settings under the chosen recipe, or None where the space has no such point."""
    if yours is None or yours.precision not in searched.recipes:
        return None
    near = searched.clip(replace(yours, recipe=searched.recipes[yours.precision]))
    # Persistence does not change the rate, so the baseline keeps its own value.
    near = replace(near, loader=replace(near.loader, persistent_workers=yours.loader.persistent_workers))
    return near if near.loader == yours.loader else None
