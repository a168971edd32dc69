"""The final: contestants measured in turn, and what their figures say. Only these are reported."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadtune.changes.stack import Stack
from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.final.doubts import note_disturbance, note_failures, note_skipped_steps, ruled_out
from loadtune.final.rounds import alternate, barred, contestants, needed
from loadtune.final.winner import Outcome, Verdict, as_finalist, difference, finalists
from loadtune.records.answer import compute_fraction, compute_rate
from loadtune.records.config import TrialConfig
from loadtune.records.interval import Interval
from loadtune.records.measurement import ComputePoint, Measurement, TrialFailure, raise_for_the_user
from loadtune.records.result import Attempt, Finalist, Remedies, TriedRemedy, Winner
from loadtune.run import FINAL_SHARE, Run
from loadtune.search.search import Search
from loadtune.search.segment import outcome_text, timed

ROUGH = 0.15
"""Half width of a 95% interval, as a share of the throughput, above which the final may last as long as the budget."""

COMPUTE_STEPS = 4
"""Fewest steps of a compute point: one or more to warm up, two to time."""

MOST_TIMINGS = 3
"""Of one compute-only rate that the trained rate exceeds: on a CPU with other load a timing may be 100 times too slow,
because the threads of a step wait for each other at every operation."""

WORTH_KEEPING = 1.01
"""Measured gain from which on a change of the code is worth it."""


def confirmation(run: Run, search: Search) -> None:
    """Measure the contestants, the user's settings among them, in turn; judge by those figures alone."""
    with run.stage("confirm"):
        end = None
        try:
            _measure(run, search)
            run.confirmed_whole = True
        except OutOfTimeError as error:
            end = error  # says where it waited for samples that did not return
        verdict = _verdict(run, _outcomes(run))
        run.finalists = verdict.finalists
        if end is None or all(verdict.is_confirmed(size) for size in _sizes(run)):
            _conclude(run)
        note_failures(run)
        note_disturbance(run)
        if end is not None:
            raise end
        for each in run.confirmed if run.best is None else ():  # the user's own code failed, as in a search
            raise_for_the_user(None if each.config.remedies else each.failure)


def _outcomes(run: Run) -> list[Outcome]:
    """All runs of the confirmation until now, also those of before an interruption."""
    return [(each.config, outcome) for each in run.confirmed if (outcome := each.outcome)]


def _measure(run: Run, search: Search) -> None:
    """The rounds, to their end."""
    at_your_batch, known = run.config.yours.batch_size is not None, _outcomes(run)
    configs = contestants(run, search, known)
    _compile_ahead(run, [config for config in configs if config not in barred(known)])

    def measured(config: TrialConfig) -> Measurement | TrialFailure:
        outcome = timed(run, config)
        measurement, failure = (outcome, None) if isinstance(outcome, Measurement) else (None, outcome)
        run.confirmed.append(Attempt(config=config, measurement=measurement, failure=failure))
        run.save()
        run.finalists = finalists(_outcomes(run), run.trials)
        run.tell(outcome_text(config, outcome))
        return outcome

    def undecided(seen: Sequence[Outcome]) -> set[TrialConfig]:
        """Who has to be run again for the answers, and for what changes of the code gain."""
        verdict = _verdict(run, seen)
        return {config for size in _sizes(run) for config in verdict.undecided(size)} | {*verdict.undecided_change()}

    def is_rough(seen: Sequence[Outcome]) -> bool:
        ran = max(finalists(seen, run.trials), key=lambda each: len(each.runs), default=None)
        return ran is not None and (ran.half_width_fraction or 1.0) > ROUGH

    alternate(
        configs,
        measured,
        run.clock,
        run.confirm_until_s,
        needed=lambda seen, able: needed(seen, able, run.yours, at_your_batch=at_your_batch),
        undecided=undecided,
        is_rough=is_rough,
        answer_by_s=run.answer_until_s,
        known=known,
        seed=run.config.seed,
    )


def _verdict(run: Run, outcomes: Sequence[Outcome], points: Sequence[ComputePoint] = ()) -> Verdict:
    """Of these runs of the final, each finalist with what rules it out."""
    judged = ruled_out(finalists(outcomes, run.trials), run.failed, points)
    return Verdict(judged, run.yours, keeps_precision="precision" not in run.assumed)


def _sizes(run: Run) -> set[int | None]:
    """There are two answers where the user gave a batch size: at any, and at that."""
    return {None, run.config.yours.batch_size}


def _conclude(run: Run) -> None:
    """The winners, their share of the compute-only rate, and what the changes of the code gain."""
    for finalist in run.finalists:
        if finalist.config == run.yours or _is_doubted(run, finalist):
            _time_compute_of(run, finalist)
    run.best = _winner(run, None)
    if run.config.yours.batch_size is not None:
        at_yours = _winner(run, run.config.yours.batch_size)
        run.best_at_your_batch = run.best if run.best and at_yours and at_yours.config == run.best.config else at_yours
    best = as_finalist(run.best, run.finalists)
    if best is None:
        return
    note_skipped_steps(run, best)
    if run.changes is not None:
        run.remedies = _judge_changes(run, run.changes, best)


def _winner(run: Run, batch_size: int | None) -> Winner | None:
    """The best finalist that nothing rules out, also not its compute-only rate, which is timed here."""
    before = None
    while True:
        verdict = _verdict(run, _outcomes(run), run.compute_points)
        run.finalists, picked = verdict.finalists, verdict.winner(batch_size)
        best = as_finalist(picked, run.finalists)
        if picked is None or best is None:
            return None
        if picked == before:
            share = compute_fraction(run.compute_points, picked.config, picked.samples_per_s)
            return replace(picked, compute_fraction=share)
        before = picked
        _time_compute_of(run, best)


# Changes of the code


def _judge_changes(run: Run, stack: Stack, best: Finalist) -> Remedies:
    """What the contestant with changes gains over the best."""
    changed = next((finalist for finalist in run.finalists if finalist.config.remedies), None)
    gain = None if changed is None else difference(changed, best, run.finalists, 1)
    is_sure = gain is not None and gain.value >= WORTH_KEEPING and gain.low is not None and gain.low > 1.0
    kept = changed if changed is not None and is_sure and changed.unconfirmed is None else None
    return Remedies(
        tried=tuple(_tried(run, stack, changed, gain, kept)),
        config=None if kept is None else kept.config,
        samples_per_s=None if kept is None else kept.throughput,
        gain=gain,
    )


def _tried(
    run: Run, stack: Stack, changed: Finalist | None, gain: Interval | None, kept: Finalist | None
) -> Iterator[TriedRemedy]:
    """Each that was stacked. Where one alone ran, what was measured is its own; else it is that of all together."""
    config = stack.config if changed is None else changed.config
    ran = () if changed is None else config.remedies
    why = {
        name: f"it failed: {failure.message.rstrip('.')}" for other, failure in run.failed for name in other.remedies
    }
    missing = "too little of the time budget was left" if changed is None else "the model expects more without it"
    for step in stack.steps:
        name = step.remedy.name
        differs = [text for text in (step.remedy.changes, step.seen.difference) if text not in (None, "nothing")]
        is_alone = ran == (name,)
        yield TriedRemedy(
            name=name,
            title=step.remedy.title,
            changes="; ".join(differs) or "nothing",
            code=step.remedy.code(replace(stack.at, config=config), step.seen),
            config=config,
            predicted=step.predicted,
            gain=gain if is_alone else None,
            kept=kept is not None and name in ran,
            reason=None if is_alone else "measured with the others" if name in ran else why.get(name, missing),
        )


# Steps without a loader


def _time_compute_of(run: Run, finalist: Finalist) -> None:
    """The compute-only rate of exactly this finalist, where it was not timed, or reads less than training did.

    It is timed again then, because other load may have slowed the timing down. Nothing happens where the time is spent.
    """
    config = finalist.config
    for _ in range(MOST_TIMINGS):
        if compute_rate(run.compute_points, config) and not _is_doubted(run, finalist):
            return
        takes_s = _compile_seconds(run, config) + COMPUTE_STEPS * config.batch_size / finalist.samples_per_s
        point = _compute_point(run, config, min(1.0, 0.1 * run.left_s)) if takes_s <= run.left_s else None
        if point is None:
            return
        # One point for each recipe and batch size: the fastest timing of it, and how many there were.
        same = [p for p in run.compute_points if (p.recipe, p.batch_size) == (point.recipe, point.batch_size)]
        fastest = max([*(p for p in same if p.num_timings), point], key=lambda each: each.samples_per_s)
        kept = replace(fastest, num_timings=sum(p.num_timings for p in (*same, point)))
        run.compute_points = (*(p for p in run.compute_points if p not in same), kept)
        run.save()


def _compute_point(run: Run, config: TrialConfig, seconds: float) -> ComputePoint | None:
    """None: it could not be timed, and the answer does not depend on it."""
    try:
        point = run.training.time_compute(config.recipe, config.batch_size, seconds)
    except LoadtuneError:
        return None
    if isinstance(point, TrialFailure):
        return None
    run.trained.add((config.recipe, config.batch_size))
    return point


def _is_doubted(run: Run, finalist: Finalist) -> bool:
    """Whether the compute-only rate was timed and is too low to be true beside the trained one, as far as is known."""
    points, config = run.compute_points, finalist.config
    return compute_rate(points, config) is not None and compute_fraction(points, config, finalist.samples_per_s) is None


def _compile_seconds(run: Run, config: TrialConfig) -> float:
    """Predicted for compiling this batch size now, by the longest that was seen; 0: the training has it, or need not.
    The training of a resumed run has compiled nothing of what was kept."""
    if not config.recipe.compile or (config.recipe, config.batch_size) in run.trained:
        return 0.0
    points = (*run.compute_points, *(point for choice in run.recipes for point in choice.points))
    return max((point.compile_s or 0.0 for point in points), default=0.0)


def _compile_ahead(run: Run, configs: Sequence[TrialConfig]) -> None:
    """Compile what is about to be timed, because that takes longer than any run: the first in any case, the others
    while the final's time is left. A failure here is left alone: the run that times it fails too, and reports it."""
    for number, config in enumerate(configs):
        needed_s = _compile_seconds(run, config)
        if not needed_s or (number > 0 and needed_s + FINAL_SHARE * run.config.time_budget_s > run.left_s):
            continue
        run.tell(f"torch.compile runs again for batch {config.batch_size}")
        if _compute_point(run, config, 0.0) is None:
            return
