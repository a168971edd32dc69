"""Two results side by side, and a stored winner measured again, as plain data. Judges nothing.

In: a `Comparison` or a `Check`. Out: a `HandoverView` of tables and sections, which `text` renders.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadtune.records import Change, Check, CheckOutcome, Comparison, Ratio, Score, Side, Value
from loadtune.report.bottleneck import RESOURCE_TEXT
from loadtune.report.figures import Table
from loadtune.report.view import Section
from loadtune.report.wording import interval_text, settings_text
from loadtune.units import MISSING, bytes_text, efficiency_text, percent_text, rate_text, ratio_text, seconds_text

_LABELS: Mapping[str, str] = {
    "cpu_name": "CPU",
    "ram_limit": "RAM limit",
    "shm_total": "/dev/shm",
    "gpu_memory_total": "GPU memory",
    "python": "Python",
    "cuda": "CUDA",
    "os": "OS",
    "num_usable_cores": "usable cores",
    "dataset_length": "samples in an epoch",
    "wait": "blocked in next(loader)",
    "bench_rss": "resident memory of the bench",
    "compute_only_samples": "compute only",
}
"""Names that read badly with their underscores taken out; without the suffix of their unit."""

_KEPT_AS_THEY_ARE = ("batch_size", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "in_order")
"""PyTorch's own spelling."""

_UNITS: Mapping[str, Callable[[float], str]] = {
    "_bytes_per_s": lambda value: f"{bytes_text(value)}/s",
    "_per_s": rate_text,
    "_per_joule": efficiency_text,
    "_bytes": bytes_text,
    "_fraction": percent_text,
    "_hz": lambda value: f"{value / 1e6:,.0f} MHz",
    "_w": lambda value: f"{value:,.0f} W",
    "_j": lambda value: f"{value:,.0f} J",
    "_s": seconds_text,
}
"""By the ending of a field's name; the longer endings come first."""

_OUTCOME: Mapping[CheckOutcome, str] = {"held": "Held", "fell": "Fell", "unclear": "Could not tell"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverView:
    """Top to bottom."""

    title: str
    tables: tuple[Table, ...]
    sections: tuple[Section, ...]


def view(found: Comparison | Check) -> HandoverView:
    return _check_view(found) if isinstance(found, Check) else _comparison_view(found)


def _comparison_view(comparison: Comparison) -> HandoverView:
    same = () if comparison.changes else ("Machine, versions and workload are the same in both.",)
    found = tuple(f"{settings_text(each.config)}: {ratio_words(each.ratio)}" for each in comparison.same_configs)
    return _view(
        f"{comparison.workload}: {comparison.before.created} → {comparison.after.created}",
        _sides((comparison.before, comparison.after)),
        _changes("What changed in the winner", comparison.settings),
        _changes("Ceilings", comparison.ceilings),
        _changes("What changed around it", comparison.changes),
        Section(title="Throughput", lines=(_throughput(comparison.ratio),)),
        Section(title="At the same settings", lines=found),
        Section(title="Notes", lines=(*comparison.notes, *same)),
    )


def _check_view(check: Check) -> HandoverView:
    same = () if check.changes or not check.runs else ("Machine and versions are those of the baseline.",)
    return _view(
        check.workload,
        _then_and_now(check),
        _changes("What moved with it", check.figures),
        _changes("What changed around it", check.changes),
        Section(title=_OUTCOME[check.outcome], lines=(check.reason, *same)),
    )


def _view(title: str, *parts: Table | Section) -> HandoverView:
    """Without what is empty."""
    return HandoverView(
        title=title,
        tables=tuple(part for part in parts if isinstance(part, Table) and part.rows),
        sections=tuple(part for part in parts if isinstance(part, Section) and part.lines),
    )


def _then_and_now(check: Check) -> Table:
    """The ratio stands below what it is of."""
    ratio = MISSING if check.ratio is None else ratio_words(check.ratio)
    figures = [("throughput", check.baseline.throughput, check.throughput)]
    if check.objective == "samples-per-joule":
        figures.append(("samples per joule", check.baseline.picked_by, check.efficiency))
    columns = [("", f"baseline, {check.baseline_created}", "now", "ratio")]
    columns += [(name, interval_text(then), _known(now), "") for name, then, now in figures]
    columns[-1] = (*columns[-1][:-1], ratio)
    names, *rows = zip(*columns, ("runs", str(check.baseline_num_runs), str(len(check.runs)), ""), strict=True)
    return Table(title=settings_text(check.baseline.config), columns=names, rows=tuple(rows))


def ratio_words(ratio: Ratio) -> str:
    """``0.82× (0.79× to 0.85×)``; what the interval does not tell apart from 1 is called so."""
    return ", ".join(words for words in (_interval(ratio), _remark(ratio)) if words)


def _throughput(ratio: Ratio | None) -> str:
    if ratio is None:
        return "There is no winner on one side, so there is no ratio."
    remark = _remark(ratio)
    return f"The second is {_interval(ratio)} of the first{f': {remark}' if remark else ''}."


def _interval(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return ratio_text(ratio.ratio)
    return f"{ratio_text(ratio.ratio)} ({ratio_text(ratio.low)} to {ratio_text(ratio.high)})"


def _remark(ratio: Ratio) -> str:
    if ratio.different is None:
        return "too few runs for an interval"
    return "" if ratio.different else "not told apart"


def _known(score: Score | None) -> str:
    return MISSING if score is None else interval_text(score)


def _sides(sides: tuple[Side, Side]) -> Table:
    winners = [side.winner for side in sides]
    rows = [
        ("device", *(side.device for side in sides)),
        ("throughput", *(_known(winner.throughput if winner else None) for winner in winners)),
        ("runs", *(value_text("runs", side.num_runs) for side in sides)),
        ("of compute-only rate", *(percent_text(winner.compute_fraction if winner else None) for winner in winners)),
        ("blocked in next(loader)", *(percent_text(side.wait_fraction) for side in sides)),
        ("limited by", *(RESOURCE_TEXT[side.bottleneck] if side.bottleneck else MISSING for side in sides)),
    ]
    headings = ("", *(f"{side.hostname}\n{side.created}" for side in sides))
    return Table(title="Winners", columns=headings, rows=tuple(rows))


def _changes(title: str, changes: tuple[Change, ...]) -> Table:
    rows = tuple((_label(c.name), value_text(c.name, c.before), value_text(c.name, c.after)) for c in changes)
    return Table(title=title, columns=("", "before", "after"), rows=rows)


def _label(name: str) -> str:
    """A field's name in words."""
    if name in _KEPT_AS_THEY_ARE:
        return name
    bare = next((name.removesuffix(suffix) for suffix in _UNITS if name.endswith(suffix)), name)
    return _LABELS.get(bare, bare.replace("_", " ").replace("gpu ", "GPU ").replace("cpu ", "CPU "))


def value_text(name: str, value: Value) -> str:
    """By the unit that the field's name ends in."""
    if value is None:
        return MISSING
    if isinstance(value, (bool, str)):
        return str(value)
    plain = "{:,.3g}".format if isinstance(value, float) else str
    return next((text for suffix, text in _UNITS.items() if name.endswith(suffix)), plain)(value)
