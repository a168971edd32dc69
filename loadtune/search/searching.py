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
from loadtune.limits.memory import fits_host, prefetch_bytes, shm_refusal
from loadtune.model.resources import Job
from loadtune.records.config import TrialConfig
from loadtune.records.facts import HostFacts, WorkloadFacts
from loadtune.records.measurement import Measurement, TrialFailure, raise_for_the_user
from loadtune.records.result import Trial
from loadtune.report.store import STUDY_FILE, write_whole
from loadtune.run import Run
from loadtune.search.search import MIN_RUNS, Next, Search, job_of, points_at
from loadtune.search.segment import outcome_text, timed
from loadtune.search.space import EPOCH_STEPS, Code, SearchSpace, is_alike, largest_batch
from loadtune.units import counted, seconds_text

MIN_TRIALS = 2
"""Run where the final can still run as many: the user's own settings and the first proposal, so that there are two to
compare. A search that goes on runs one more."""

CODE_TRIALS = 2
"""With changes of the code, beyond those of the settings."""

FEW = 6
"""Trials, below which a search that time ended is worth a word."""


def study(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> Search:
    """Search the space; the user's own loader settings come first. Returns what was learned."""
    from loadtune.search.study import OptunaStudy  # late: half a second that the training's start hides

    with run.stage("changes" if searched.codes else "study"):
        _note_shm(run, facts, max(searched.num_workers))
        search = Search(
            job=known_job(run, facts, searched),
            space=searched,
            yours=_in_space(run.yours, searched),
            feasible=lambda configs: feasible(run, facts, configs),
            left_s=lambda: run.left_s,
        )
        for trial in run.trials:  # of before an interruption, or of the search without changes of the code
            search.saw(trial)

        def save(content: Callable[[], bytes]) -> None:
            run.aside(f"{STUDY_FILE} lacks trials", lambda: write_whole(run.folder / STUDY_FILE, content()))

        kept = OptunaStudy(searched, save, known=run.trials)
        if run.search_notes is not None:  # before an interruption
            run.note(*run.search_notes)
            return search
        num_before, begun_s = len(run.trials), run.clock.now()
        while (asked := _upcoming(run, search, begun_s, num_before)) is not None:
            kept.ask(asked.config)
            trial = _tried(run, asked)
            run.trials.append(trial)
            run.save()
            run.tell(f"trial {len(run.trials)}/{run.config.num_trials}: {outcome_text(trial.config, trial.outcome)}")
            kept.tell(trial)
            search.saw(trial)
        notes = tuple(_end_notes(run, search))
        run.tell(f"The search ended: {search.ended or 'its share of the time budget was used'}.")
        run.note(*notes)
        run.search_notes = notes
        run.save()
    return search


def _upcoming(run: Run, search: Search, begun_s: float, num_before: int) -> Next | None:
    """What to try now. None: the search is over, and `Search.ended` says why; it is empty where time is short.

    ``num_before``: trials of before this search, which began at ``begun_s``.
    """
    of_code, num_run = bool(search.space.codes), len(run.trials)
    most = max(run.config.num_trials, num_before + CODE_TRIALS if of_code else 0)
    if num_run >= most:
        search.ended = f"{counted(most, 'trial')} {'was' if most == 1 else 'were'} measured"
        return None
    now, each_s = run.clock.now(), statistics.fmean([measured.seconds for _, measured in run.tried] or [1.0])
    if not run.tried and run.yours is not None:
        each_s = max(each_s, search.expected_s(run.yours))
    # The final needs two runs; where there is no time for a third, it makes do with what the model expects.
    must, left_s = num_run < max(MIN_TRIALS, num_before + 1) and run.left_s >= (1 + MIN_TRIALS) * each_s, math.inf
    if not must:  # as many as end before, if they take as long as those so far; and then two are still run again
        until_s = run.search_until_s(begun_s, math.inf, of_code=of_code)
        left_s = min(until_s - now, run.left_s - 2 * MIN_RUNS * each_s)
    asked = search.next(left_s) if left_s >= each_s else None
    if asked is None or must:
        return asked
    # On a CPU, trials of larger batches take longer.
    lasts_s = max(each_s, search.expected_s(asked.config)) if asked.origin == "search" else each_s
    return asked if now + lasts_s <= run.search_until_s(begun_s, asked.expected, of_code=of_code) else None


def _tried(run: Run, asked: Next) -> Trial:
    """Run it. What cannot be run again twice in the time left is of no use, unless it is the user's own. Raises
    WorkloadError for an error that the user can correct."""
    outcome = timed(run, asked.config, math.inf if asked.config == run.yours else run.left_s / (1 + MIN_RUNS))
    measured, failure = (outcome, None) if isinstance(outcome, Measurement) else (None, outcome)
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


def _in_space(yours: TrialConfig | None, searched: SearchSpace) -> TrialConfig | None:
    """The user's loader settings under the chosen recipe, or None where the space has no such point."""
    if yours is None or yours.precision not in searched.recipes:
        return None
    own = replace(yours, recipe=searched.recipes[yours.precision])
    return own if is_alike(searched.nearest(own), own) and searched.fits(own) else None


# What can run: by the memory ceilings, the host's memory now, and the trials that failed


def feasible(run: Run, facts: WorkloadFacts, configs: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Those of them that can run, by all that is known now."""
    largest = {ceiling.precision: largest_batch(run, ceiling) for ceiling in run.ceilings}
    failed = run.failed
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
    return fits_host(config.loader, facts.sample_bytes, host)


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
    if run.yours is not None:
        own, now = run.yours.loader, run.host_now()
        most = replace(own, num_workers=min(most_workers, now.num_usable_cores))
        refusals = [shm_refusal(loader, facts.sample_bytes, now) for loader in (own, most)]
        run.note(*[f"{refused} What does not fit was not tried." for refused in refusals if refused is not None][:1])


# Changes of the code


def changes(run: Run, facts: WorkloadFacts, search: Search) -> SearchSpace:
    """The space of a search with the changes that are worth trying; as it was with ``--remedies none``, and without
    time."""
    searched = search.space
    best = next(iter(search.ranked()), None)
    # Where examining takes too long, the training is ended and starts again.
    if run.config.remedies == "none" or best is None or run.spare_s < run.stage_seconds.get("start", 0.0):
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
        if stack.steps and not run.confirmed and not any(trial.config.remedies for trial in run.trials):
            run.search_notes = None  # it goes on, with them
    codes = (Code(in_order(names), partial(applied, names, at=stack.at)) for names in stack.codes)
    return replace(searched, codes=tuple(codes))


# What the end of a search left untried, in words


def _end_notes(run: Run, search: Search) -> list[str]:
    """What of the search's end a user should know, a line each."""
    notes = [] if search.broken is None else [f"The search ended early: {search.broken}."]
    failed, num_trials = hung(run), len(run.trials)
    if not search.ended and failed:
        why = failed[-1].message.rstrip(".")
        notes.append(f"The search ended early because {counted(len(failed), 'trial')} hung: {why}.")
    elif not search.ended and num_trials < FEW:
        notes.append(
            f"The search ended after {counted(num_trials, 'trial')}, when its part of the time budget of "
            f"{seconds_text(run.config.time_budget_s)} was used. A larger --time-budget may find a faster "
            "configuration."
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
    return [failure for _, failure in run.failed if failure.kind == "hang"]
