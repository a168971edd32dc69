"""What the final says of changes of the code: whether all of them together gain for sure, and what to write."""

from collections.abc import Sequence
from dataclasses import replace

from loadtune.changes import in_order
from loadtune.changes.stack import NO_TIME, Stack, failed_text
from loadtune.final.statistics import difference
from loadtune.records.answer import Failed
from loadtune.records.interval import Interval, around
from loadtune.records.result import Finalist, Remedies, TriedRemedy
from loadtune.run import Run

WORTH_KEEPING = 1.01
"""Measured gain from which on a change of the code is worth it."""


def judge_changes(run: Run, stack: Stack, best: Finalist, failed: Sequence[Failed]) -> Remedies:
    """What the contestant with changes gains over the best. ``failed``: of the final, those that never ran there."""
    objective, gain = run.config.objective, None
    changed = next((finalist for finalist in run.finalists if finalist.config.remedies), None)
    if changed is not None:
        ratio, low, high = difference(changed, best, run.finalists, 1, objective)
        gain = Interval(value=ratio, low=low, high=high)
    is_sure = gain is not None and gain.value >= WORTH_KEEPING and gain.low is not None and gain.low > 1.0
    kept = changed if changed is not None and is_sure and changed.unconfirmed is None else None
    tried = _tried(run, stack, best, changed, gain, [*failed, *run.failed])
    if kept is not None:
        tried = [replace(each, kept=each.name in kept.config.remedies) for each in tried]
    found = Remedies(tried=tuple(tried), left_out=tuple(stack.left_out.values()), gain=gain)
    if kept is None:
        return found
    return replace(
        found,
        config=kept.config,
        samples_per_s=around(kept.samples_per_s, kept.half_width_fraction),
    )


def _tried(
    run: Run, stack: Stack, best: Finalist, changed: Finalist | None, gain: Interval | None, failed: Sequence[Failed]
) -> list[TriedRemedy]:
    """Each that was stacked. Where one alone ran, what was measured is its own; else it is that of all together."""
    config = stack.config if changed is None else changed.config
    ran = () if changed is None else config.remedies
    why = {name: failed_text(failure) for other, failure in reversed(failed) for name in other.remedies}
    tried = list[TriedRemedy]()
    for number, step in enumerate(stack.steps):
        name = step.remedy.name
        why_not = why.get(name, NO_TIME if changed is None else "the model expects more without it")
        differs = [text for text in (step.remedy.changes, step.seen.difference) if text not in (None, "nothing")]
        one = TriedRemedy(
            name=name,
            title=step.remedy.title,
            changes="; ".join(differs) or "nothing",
            code=step.remedy.code(replace(stack.at, config=config), step.seen),
            base=replace(stack.at.config, remedies=in_order(stack.names[:number])),
            config=config,
            predicted=step.predicted if run.config.objective == "samples-per-s" else None,
            reason="measured with the others" if name in ran else why_not,
        )
        if changed is not None and ran == (name,):
            one = replace(one, base=best.config, gain=gain, reason=None)
        tried.append(one)
    return tried
