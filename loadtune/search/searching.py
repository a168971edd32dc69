"""The search: configurations of the space are tried as the throughput model proposes them, until nothing more is worth
a trial, or trials or time are spent. Changes of the code are its last dimension.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from loadtune.changes import Situation, in_order
from loadtune.changes.stack import OF_LEFT, Stack, applied
from loadtune.limits.bounds import host_memory_refusal, prefetch_bytes, shm_refusal
from loadtune.model.resources import Job
from loadtune.records.config import TrialConfig
from loadtune.records.facts import HostFacts, WorkloadFacts
from loadtune.records.measurement import Measurement, TrialFailure, raise_for_the_user
from loadtune.records.result import Trial
from loadtune.report.store import STUDY_FILE, write_whole
from loadtune.run import Run, Searched
from loadtune.search.search import MIN_RUNS, Next, Search, job_of, points_at
from loadtune.search.segment import outcome_text, timed
from loadtune.search.space import EPOCH_STEPS, Code, SearchSpace, is_alike, largest_batch
from loadtune.units import counted, seconds_text

MIN_TRIALS = 2
"""Run however little time there is: the user's own settings and the first proposal, so that there are two to compare.
A run that was resumed for more trials runs one more."""

CODE_TRIALS = 2
"""With changes of the code, beyond those of the settings."""

FEW = 6
"""Trials, below which a search that time ended is worth a word."""


def study(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> Search:
    """Search the space; the user's own loader settings come first. Returns what was learned."""
    from loadtune.search.study import OptunaStudy  # late: half a second that the training's start hides

    with run.stage("study"):
        _note_shm(run, facts, max(searched.num_workers))
        search = _search(run, facts, searched)

        def save(content: Callable[[], bytes]) -> None:
            run.aside(f"{STUDY_FILE} lacks trials", lambda: write_whole(run.folder / STUDY_FILE, content()))

        kept = OptunaStudy(searched, save, known=run.trials)
        if run.searched is not None:  # before an interruption
            run.note(*run.searched.notes)
            return search
        before, begun_s = tuple(run.trials), run.clock.now()
        took_s = [trial.measurement.seconds for trial in before if trial.measurement is not None]
        while (asked := _upcoming(run, search, took_s, begun_s, len(before))) is not None:
            kept.ask(asked.config)
            trial = _tried(run, asked, took_s)
            run.trials.append(trial)
            run.confirmed, run.concluded_s, run.remedies = [], None, None  # the finalists may be others now
            run.save()
            outcome = outcome_text(trial.config, trial.outcome)
            run.tell(f"trial {len(run.trials)}/{run.config.num_trials}: {outcome}")
            kept.tell(trial)
            search.saw(trial)
        notes = _end_notes(run, search)
        run.tell(f"The search ended: {search.ended or 'its share of the time budget was used'}.")
        run.note(*notes)
        run.searched = Searched(
            num_trials=run.config.num_trials, time_budget_s=run.config.time_budget_s, notes=tuple(notes)
        )
        run.save()
    return search


def _upcoming(run: Run, search: Search, took_s: Sequence[float], begun_s: float, num_before: int) -> Next | None:
    """What to try now. None: the search is over, and `Search.ended` says why; it is empty where time is short.

    ``took_s``: seconds of the trials so far. ``num_before``: trials of before this search, which began at ``begun_s``.
    """
    of_code, num_run = bool(search.space.codes), len(run.trials)
    most = max(run.config.num_trials, num_before + CODE_TRIALS if of_code else 0)
    room, left_s = most - num_run, math.inf
    if room <= 0:
        search.ended = f"{counted(most, 'trial')} {'was' if most == 1 else 'were'} measured"
        return None
    now, each_s = run.clock.now(), max(1e-3, statistics.fmean(took_s or [0.0]))
    must = num_run < max(MIN_TRIALS, num_before + 1) or not took_s
    if not must:  # as many as end before, if they take as long as those so far; and then two are still run again
        until_s = run.search_until_s(begun_s, math.inf, of_code=of_code)
        left_s = min(until_s - now, run.left_s - 2 * MIN_RUNS * each_s)
        room = min(room, math.floor(left_s / each_s))
    asked = search.next(room, left_s) if room > 0 else None
    if asked is None or must:
        return asked
    # On a CPU, trials of larger batches take longer.
    lasts_s = max(each_s, search.expected_s(asked.config)) if asked.origin == "search" else each_s
    return asked if now + lasts_s <= run.search_until_s(begun_s, asked.expected, of_code=of_code) else None


def _tried(run: Run, asked: Next, took_s: list[float]) -> Trial:
    """Run it; its seconds go into ``took_s``. What cannot be run again twice in the time left is of no use, unless it
    is the user's own. Raises WorkloadError for an error that the user can correct."""
    begun, limit_s = run.clock.now(), math.inf if asked.config == run.yours else run.left_s / (1 + MIN_RUNS)
    outcome = timed(run, asked.config, limit_s)
    measured, failure = (outcome, None) if isinstance(outcome, Measurement) else (None, outcome)
    took_s.append(run.clock.now() - begun if measured is None else measured.seconds)
    if not asked.config.remedies:
        raise_for_the_user(outcome)
    return Trial(
        number=len(run.trials),
        config=asked.config,
        origin=asked.origin,
        predicted=asked.predicted,
        measurement=measured,
        failure=failure,
    )


def known_job(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> Job:
    """As the model takes it, with what has been measured without a loader until now."""
    job = job_of(facts, run.host, run.device, searched.recipes, run.compute_points)
    return job if run.changes is None else replace(job, changed=run.changes.jobs(job))


def _search(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> Search:
    """As far as the trials of this run brought it."""
    search = Search(
        job=known_job(run, facts, searched),
        space=searched,
        yours=_in_space(run.yours, searched),
        feasible=lambda configs: feasible(run, facts, configs),
        left_s=lambda: run.left_s,
    )
    for trial in run.trials:
        search.saw(trial)
    return search


def _in_space(yours: TrialConfig | None, searched: SearchSpace) -> TrialConfig | None:
    """The user's loader settings under the chosen recipe, or None where the space has no such point."""
    if yours is None or yours.precision not in searched.recipes:
        return None
    own = replace(yours, recipe=searched.recipes[yours.precision])
    near = searched.at(searched.point(own))
    return own if is_alike(near, own) and searched.excess(own) <= 0 else None


# What can run: by the memory ceilings, the host's memory now, and the trials that failed


def feasible(run: Run, facts: WorkloadFacts, configs: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Those of them that can run, by all that is known now."""
    largest = {ceiling.precision: largest_batch(run, ceiling) for ceiling in run.ceilings}
    failed = [(trial.config, trial.failure) for trial in run.trials if trial.failure is not None]
    able = [
        config
        for config in configs
        if config.batch_size <= largest.get(config.precision, config.batch_size)
        and not any(_rules_out(tried, failure, config, facts) for tried, failure in failed)
    ]
    if all(_has_room(config, facts, run.host) for config in able):
        return able
    now = run.host_now()  # virtual machines show 31 GiB at first and grow to 256
    return [config for config in able if _has_room(config, facts, run.host) or _has_room(config, facts, now)]


def _has_room(config: TrialConfig, facts: WorkloadFacts, host: HostFacts) -> bool:
    return host_memory_refusal(config.loader, facts.sample_bytes, host) is None


def _rules_out(tried: TrialConfig, failure: TrialFailure, config: TrialConfig, facts: WorkloadFacts) -> bool:
    """Whether the failure of a trial says that a configuration cannot run either."""
    if tried.remedies and not failure.is_of_memory:
        return set(tried.remedies) <= set(config.remedies)
    if tried.remedies and tried.remedies != config.remedies:
        return False
    if failure.kind == "non_finite_loss":
        return tried.precision in ("fp32", config.precision)
    if failure.kind == "oom":  # in its precision, as ceilings are
        return config.precision == tried.precision and config.batch_size >= tried.batch_size
    if failure.is_of_memory:
        return prefetch_bytes(config.loader, facts.sample_bytes) >= prefetch_bytes(tried.loader, facts.sample_bytes)
    return config == tried


def _note_shm(run: Run, facts: WorkloadFacts, most_workers: int) -> None:
    """Name workers that do not fit into /dev/shm: the user's own, or else as many as there are cores, or may be."""
    now = run.host_now()
    if run.yours is None:
        return
    own = run.yours.loader
    most = replace(own, num_workers=min(most_workers, now.num_usable_cores))
    refusals = (shm_refusal(loader, facts.sample_bytes, now) for loader in (own, most))
    refused = next((each for each in refusals if each is not None), None)
    if refused is not None:
        run.note(f"{refused} What does not fit was not tried.")


# Changes of the code


def changes(run: Run, facts: WorkloadFacts, search: Search) -> SearchSpace:
    """The space of a search with the changes that are worth trying; as it was with ``--remedies none``, and without
    time."""
    searched = search.space
    best = next(iter(search.ranked()), None)
    if run.config.remedies == "none" or best is None or (run.concluded_s is not None and run.remedies is not None):
        return searched
    with run.stage("changes"):
        stack = Stack(
            at=Situation(
                config=best,
                spec=run.config.workload,
                facts=facts,
                device=run.device,
                precisions=tuple(searched.recipes),
            ),
            training=run.training,
            model=search.model(),
            able=search.able(),
            points=lambda configs: points_at(configs, search.job),
            left_s=lambda: run.left_s,
            tries_all=run.config.remedies == "all",
        )
        run.training.finish_by(run.until(OF_LEFT))
        try:
            run.aside("Not all changes of the code were examined", stack.build)
        finally:
            run.training.finish_by(run.until(1.0))
        run.changes = stack
        if stack.steps and not any(trial.config.remedies for trial in run.trials):
            run.searched = None  # it goes on, with them
    codes = (Code(in_order(names), partial(applied, names, at=stack.at)) for names in stack.codes)
    return replace(searched, codes=tuple(codes))


# What the end of a search left untried, in words


def _end_notes(run: Run, search: Search) -> list[str]:
    """What of the search's end a user should know, a line each."""
    notes = [] if search.broken is None else [f"The search ended early: {search.broken}."]
    out_of_time = not search.ended
    if out_of_time and (failed := hung(run)):
        notes = [
            f"The search ended early because {counted(len(failed), 'trial')} hung: {failed[-1].message.rstrip('.')}."
        ]
    elif out_of_time and len(run.trials) < FEW:
        notes = [
            f"The search ended after {counted(len(run.trials), 'trial')}, when its part of the time budget of "
            f"{seconds_text(run.config.time_budget_s)} was used. A larger --time-budget may find a faster "
            "configuration."
        ]
    if search.too_long:
        largest = max(search.too_long, key=lambda config: config.batch_size)
        notes.append(
            f"The model predicts that {counted(len(search.too_long), 'more configuration')} may be faster, such as "
            f"batch size {largest.batch_size} with {counted(largest.loader.num_workers, 'worker')}. The time left was "
            "too short to measure them. Raise --time-budget to try them."
        )
    tried, sizes = search.ranked(), search.space.batch_sizes
    if tried and len(sizes) > 1 and tried[0].batch_size == sizes[-1] < max(search.space.ceilings.values()):
        notes.append(
            f"Batch sizes above {sizes[-1]} were not tried: an epoch would have fewer than {EPOCH_STEPS} steps. Give "
            "one with --fix batch_size=… to try it."
        )
    return notes


def hung(run: Run) -> list[TrialFailure]:
    """They took the time that others lack: a larger budget would go the same way."""
    return [trial.failure for trial in run.trials if trial.failure is not None and trial.failure.kind == "hang"]
