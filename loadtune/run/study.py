"""The search of a run, and that of changes of the code: the trials of an Optuna study, each stored before the next."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from loadtune.changes import Situation
from loadtune.changes.stack import EXAMINE_S, OF_LEFT, Stack
from loadtune.decide.final import MIN_RUNS
from loadtune.decide.search import Search, model_job, rules_out
from loadtune.decide.space import EPOCH_STEPS, SearchSpace, largest_batches
from loadtune.model.workers import fits_host, shm_refusal
from loadtune.records.config import TrialConfig
from loadtune.records.facts import HostFacts, WorkloadFacts
from loadtune.records.measurement import raise_for_the_user
from loadtune.records.result import Failed, Remedies, Trial
from loadtune.run.state import Resumable, Run
from loadtune.store import STUDY_FILE
from loadtune.units import counted, seconds_text

if TYPE_CHECKING:
    from loadtune.run.sampler import SearchStudy, ThroughputSampler

CODE_TRIALS = 2
"""With changes of the code, beyond those of the settings."""

_NO_TIME = "No time was left to try changes of your code. A larger --time-budget tries them."

FEW = 6
"""Trials, below which a search that time ended is worth a word."""


def study(run: Run, facts: WorkloadFacts, searched: SearchSpace, stack: Stack | None = None) -> Search:
    """Search the space; the user's own loader settings come first. Returns what was learned. ``stack``: the changes of
    the code that the space has."""
    # Late: half a second that the training's start hides.
    from loadtune.run.sampler import SearchStudy, ThroughputSampler

    state, journal, trials = run.state, run.journal, run.state.trials
    with journal.stage("changes" if searched.codes else "study"):
        search = _search(run, facts, searched, stack)
        sampler = ThroughputSampler(search)
        kept = SearchStudy(searched, sampler, trials)
        keep = partial(journal.aside, f"{STUDY_FILE} lacks trials", partial(kept.write, journal.folder / STUDY_FILE))
        keep()
        if state.search_notes is None and (searched.codes or not state.steps):
            ended = _run_trials(run, search, sampler, kept, keep)
            journal.tell(f"The search ended: {ended or 'the time left is needed for the confirmation'}.")
            state.search_notes = tuple(_end_notes(state, search, is_short=not ended))
            journal.save()
        journal.note(*(state.search_notes or ()))
    return search


def _search(run: Run, facts: WorkloadFacts, searched: SearchSpace, stack: Stack | None) -> Search:
    """With all that the run knows."""
    state, budget = run.state, run.budget
    if (yours := state.yours) is not None:
        now = run.host_now()
        most = replace(yours.loader, num_workers=min(max(searched.num_workers), now.num_usable_cores))
        refused = [shm_refusal(loader, facts.sample_bytes, now) for loader in (yours.loader, most)]
        run.journal.note(*[f"{each} What does not fit was not tried." for each in refused if each is not None][:1])
        yours = replace(yours, recipe=searched.recipes.get(yours.precision, yours.recipe))  # as it was chosen
    is_waiting = 2 * (facts.sample_s if facts.sample_cpu_s is None else facts.sample_cpu_s) < facts.sample_s
    may_change = _may_change(state) and not (searched.codes or state.steps or is_waiting)  # they save CPU time
    search = Search(
        job=model_job(facts, state.host, state.device, searched.recipes, state.compute_points, stack),
        space=searched,
        yours=yours if yours and searched.has(yours) else None,
        feasible=partial(feasible, state, facts, run.host_now),
        left_s=lambda: budget.measuring_s - (changes_s() if may_change and run.journal.stage_name == "study" else 0.0),
        batch_size=state.config.yours.batch_size,
        trials=state.trials,  # also of before an interruption, or of the search without changes of the code
    )

    def changes_s() -> float:
        """For changes of the code, after this search: a start at the worst, examining them, and trials."""
        needed_s = run.journal.stage_seconds.get("start", 0.0) + EXAMINE_S + CODE_TRIALS * search.trial_s
        return min(needed_s, OF_LEFT * max(0.0, budget.measuring_s))

    return search


def _may_change(state: Resumable) -> bool:
    """Whether changes of the code are for a run to try: a script is tuned with its own."""
    return not state.config.workload.command and state.config.remedies != "none"


def _run_trials(
    run: Run, search: Search, sampler: "ThroughputSampler", kept: "SearchStudy", keep: Callable[[], object]
) -> str:
    """Why there are no more. Empty: for want of time."""
    state, journal, trials, of_code = run.state, run.journal, run.state.trials, bool(search.space.codes)
    num_before = [*(bool(each.config.remedies) for each in trials), True].index(True)
    most = max(state.config.num_trials, num_before + CODE_TRIALS if of_code else 0)
    while len(trials) < most:
        upcoming = sampler.upcoming()
        if isinstance(upcoming, str):
            return upcoming
        config = kept.ask(upcoming.config if upcoming.config == search.yours else None)
        # What cannot be run again twice in the time left is of no use, unless it is the user's own.
        limit_s = math.inf if config == state.yours else run.budget.left_s / (1 + MIN_RUNS)
        outcome = run.timed(config, limit_s)
        raise_for_the_user(None if config.remedies else outcome)
        trial = Trial.of(config, outcome, number=len(trials), predicted=upcoming.predicted)
        trials.append(trial)
        journal.save()
        journal.tell(trial)
        kept.tell(trial)
        keep()
    return f"{counted(most, 'trial')} {'was' if most == 1 else 'were'} measured"


# What can run: by the memory ceilings, the host's memory now, and the trials that failed


def feasible(
    state: Resumable, facts: WorkloadFacts, host_now: Callable[[], HostFacts], configs: Sequence[TrialConfig]
) -> list[TrialConfig]:
    """Those of them that can run, by all that is known now."""
    largest, failed, share = largest_batches(state.config, state.ceilings), state.failed, state.share
    able = [
        config
        for config in configs
        if config.batch_size <= largest.get(config.precision, config.batch_size)
        and not any(rules_out(tried, failure, config, facts) for tried, failure in failed)
    ]
    fitting = {config for config in able if fits_host(config.loader, facts.sample_bytes, share)}
    if len(fitting) == len(able):
        return able
    now = host_now()  # virtual machines show 31 GiB at first and grow to 256
    return [each for each in able if each in fitting or fits_host(each.loader, facts.sample_bytes, now)]


# Changes of the code


def changes(run: Run, facts: WorkloadFacts, search: Search) -> Stack | None:
    """Those that are worth trying. None: nothing ran, time is short, ``--remedies none``, or the job is a command."""
    state, budget, journal = run.state, run.budget, run.journal
    best = next((config for config in search.ranked() if not config.remedies), None)
    # Where examining takes too long, the training is ended and starts again.
    spare_s = budget.measuring_s - search.final_s(MIN_RUNS)
    is_too_late = not state.steps and spare_s < journal.stage_seconds.get("start", 0.0)
    if not _may_change(state) or best is None:
        return None
    if is_too_late:
        journal.note(_NO_TIME)
        return None
    with journal.stage("changes"):
        stack = Stack(
            at=Situation(
                config=search.roomiest([best]) or best,
                spec=state.config.workload,
                facts=facts,
                device=state.device,
                precisions=tuple(search.space.recipes),
            ),
            training=run.training,
            model=search.model(),
            able=search.able(),
            left_s=lambda: budget.left_s,
            tries_all=state.config.remedies == "all",
            steps=list(state.steps),
        )
        if not state.steps:  # else they were examined before an interruption
            run.training.until_s = budget.until(OF_LEFT)
            journal.aside("Not all changes of the code were examined", stack.build)  # after Ctrl-C nothing is asked
            run.training.until_s = budget.until(1.0)
            state.steps = tuple(stack.steps)
            if stack.is_short:
                journal.note(_NO_TIME)
            if stack.steps and not state.confirmed:
                state.search_notes = None  # it goes on, with them
                journal.tell(f"Changes of your code to try: {'; '.join(step.change.title for step in stack.steps)}.")
        tried = partial(stack.tried, stack.config)  # for a run that is cut short before the final
        state.remedies = Remedies(tried=journal.aside("Changes of the code are not shown", tried) or ())
    return stack


# What the end of a search left untried, in words


def _end_notes(state: Resumable, search: Search, *, is_short: bool) -> Iterator[str]:
    """What of the search's end a user should know, a line each. ``is_short``: time ended it."""
    num_trials = len(state.trials)
    if search.broken is not None:
        yield f"The search ended early: {search.broken}."
    if is_short and (why := hung(state.failed)):
        yield f"The search ended early because {why}."
    elif is_short and num_trials < FEW:
        yield (
            f"The search ended after {counted(num_trials, 'trial')}, because the rest of the time budget of "
            f"{seconds_text(state.config.time_budget_s)} was needed for the confirmation. A larger --time-budget may "
            "find a faster configuration."
        )
    tried, sizes = search.ranked(), search.space.batch_sizes
    if tried and len(sizes) > 1 and tried[0].batch_size == sizes[-1] < max(search.space.ceilings.values()):
        yield (
            f"Batch sizes above {sizes[-1]} were not tried: an epoch would have fewer than {EPOCH_STEPS} steps. Give "
            "one with --fix batch_size=… to try it."
        )


def hung(failed: Sequence[Failed]) -> str:
    """What hung, in words, and took the time that others lack: a larger budget would go the same way. Empty: none."""
    found = [failure for _, failure in failed if failure.kind == "hang"]
    return f"{counted(len(found), 'trial')} hung: {found[-1].message.rstrip('.')}" if found else ""
