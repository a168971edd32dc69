"""What changes of the code bring, in words: a table, the best with those that gain, and the lines to paste.

In: a `TuningResult`. Out: a `RemediesView`, plain data that `text` and the page render.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtune.records import Estimate, Remedies, TrialConfig, TriedRemedy, TuningResult
from loadtune.report.export import changed_statements
from loadtune.report.figures import Table
from loadtune.report.view import Section
from loadtune.report.wording import remedy_text
from loadtune.units import MISSING, counted, rate_text, ratio_text

TITLE = "What a change in your code would bring"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediesView:
    """In the order it is read."""

    table: Table | None
    lines: tuple[str, ...]
    code: tuple[Section, ...]
    """What to paste for each, in the order in which they were tried, in which they can be pasted."""


def remedies_view(result: TuningResult) -> RemediesView | None:
    """All of them. None: there are none."""
    found = result.remedies
    if found is None or result.best is None or not (found.tried or found.left_out):
        return None
    measured = "measured (99% CI)" if result.config.objective == "samples-per-s" else "measured, samples/J (99% CI)"
    columns = ("change", "predicted", measured, "what changes for training")
    rows = tuple(
        (
            f"{remedy_text(each.name)}{_other_settings(each.config, each.base)}",
            _predicted(each.predicted),
            gain_text(each.gain.ratio, each.gain.low, each.gain.high) if each.gain else each.reason or "not measured",
            each.changes,
        )
        for each in sorted(found.tried, key=_importance)
    )
    return RemediesView(
        table=Table(title=TITLE, columns=columns, rows=rows) if rows else None,
        lines=(*best_with_changes(result), *_without_gain(found), *_not_tried(found)),
        code=(*_code(found.tried, result), *_settings(found, result)),
    )


def kept_code(result: TuningResult) -> tuple[Section, ...]:
    """Of those that gain, in the order in which they can be pasted."""
    found = result.best and result.remedies
    if not found:
        return ()
    return (*_code([each for each in found.tried if each.kept], result), *_settings(found, result))


def best_with_changes(result: TuningResult) -> tuple[str, ...]:
    """One sentence: what all changes that gain bring together, over the best alone. Empty: none gains."""
    found, best = result.remedies, result.best
    if found is None or best is None or found.gain is None:
        return ()
    if found.config is None:
        return _may_gain(result, found)
    kept = [each for each in found.tried if each.kept]
    rate = rate_text(found.samples_per_s)
    of = "" if result.config.objective == "samples-per-s" else " in samples/J"
    on = "" if best == (result.best_at_your_batch or best) else f" of batch {best.config.batch_size}"
    settings = _other_settings(found.config, best.config).replace(" and ", ", with ", 1)
    low, high = found.gain.low, found.gain.high
    interval = "no interval" if low is None or high is None else f"99%: {low:.2f} to {high:.2f}"
    said = f"{ratio_text(found.gain.ratio)}{of} on top{on} ({interval}; {rate})"
    caution = "" if found.config.batch_size == best.config.batch_size else "; tune the learning rate again"
    return (f"Changing your code gains {said}: {'; '.join(each.title for each in kept)}{settings}{caution}.",)


def gain_text(value: float, low: float | None, high: float | None) -> str:
    """``1.27× (1.22–1.32)``."""
    interval = "no interval" if low is None or high is None else f"{low:.2f}–{high:.2f}"
    return f"{ratio_text(value)} ({interval})"


def _predicted(found: Estimate | None) -> str:
    return MISSING if found is None else gain_text(found.value, found.low, found.high)


def _other_settings(config: TrialConfig, best: TrialConfig) -> str:
    """`` and 8 workers, fp16``: what it is measured with, where the best configuration has something else."""
    parts = []
    if config.batch_size != best.batch_size:
        parts.append(f"batch {config.batch_size}")
    if config.loader.num_workers != best.loader.num_workers:
        parts.append(counted(config.loader.num_workers, "worker"))
    if config.loader.pin_memory != best.loader.pin_memory:
        parts.append("pinned" if config.loader.pin_memory else "not pinned")
    if config.precision != best.precision:
        parts.append(config.precision)
    return f" and {', '.join(parts)}" if parts else ""


def _may_gain(result: TuningResult, found: Remedies) -> tuple[str, ...]:
    """What was measured faster and is not proven so. Empty: it was not faster."""
    changed = next((each for each in result.finalists if each.config.remedies), None)
    if changed is None or found.gain is None or found.gain.ratio < 1.0:
        return ()
    titles = [each.title for each in found.tried if each.name in changed.config.remedies]
    gain = gain_text(found.gain.ratio, found.gain.low, found.gain.high)
    return (
        f"Not proven: changing your code gained {gain} in {counted(len(changed.runs), 'run')}: {'; '.join(titles)}.",
    )


def _without_gain(found: Remedies) -> tuple[str, ...]:
    """What was measured and did not gain, in one sentence. Empty: there is none."""
    if found.config is not None or found.gain is None or found.gain.ratio >= 1.0 or not found.tried:
        return ()
    names = " and ".join(map(remedy_text, found.tried[0].config.remedies))
    gain = gain_text(found.gain.ratio, found.gain.low, found.gain.high)
    return (f"No change of the code gained: {names}, {gain}.",)


def _not_tried(found: Remedies) -> tuple[str, ...]:
    """Those that are expected to gain too little, and those that do not apply, in a sentence each."""
    little = [each for each in found.left_out if each.reason is None]
    others = [each for each in found.left_out if each.reason is not None]
    predicted = (f"{remedy_text(each.name)} ({_predicted(each.predicted)})" for each in little)
    reasons = (f"{remedy_text(each.name)} ({each.reason})" for each in others)
    return (
        *([f"Not tried, because too little gain is expected: {', '.join(predicted)}."] if little else []),
        *([f"Not tried: {'; '.join(reasons)}."] if others else []),
    )


def _importance(each: TriedRemedy) -> tuple[bool, float]:
    """Measured ones first; of these, as of the others, the one with the largest gain first."""
    if each.gain is not None:
        return False, -each.gain.ratio
    return True, 0.0 if each.predicted is None else -each.predicted.value


def _code(tried: Sequence[TriedRemedy], result: TuningResult) -> tuple[Section, ...]:
    return tuple(
        Section(
            title=f"{remedy_text(each.name)}: {each.title}",
            note=f"What changes for training: {each.changes}.",
            lines=(
                *each.code.rstrip("\n").split("\n"),
                *([] if each.kept else _settings_lines(each.config, each.base, result)),
            ),
        )
        for each in tried
        if each.code
    )


def _settings(found: Remedies, result: TuningResult) -> tuple[Section, ...]:
    """Settings that those which gain were measured with, where the best configuration has others."""
    if found.config is None or result.best is None:
        return ()
    lines = tuple(_settings_lines(found.config, result.best.config, result))
    note = "These changes of the code were measured with other settings."
    return (Section(title="settings for these changes", note=note, lines=lines),) if lines else ()


def _settings_lines(config: TrialConfig, base: TrialConfig, result: TuningResult) -> list[str]:
    """Without what the changes themselves set in the recipe: their own lines have that."""
    before, plain = base.loader.kwargs(), replace(base.recipe, compile=config.recipe.compile)
    if "fused_optimizer" in config.remedies:
        plain = replace(plain, fused_optimizer=config.recipe.fused_optimizer)
    changed = [f"{name}={value!r}" for name, value in config.loader.kwargs().items() if before.get(name) != value]
    loader = [f"# loader = DataLoader(..., {', '.join(changed)})"] if changed else []
    return [*loader, *changed_statements(result, config, plain)]
