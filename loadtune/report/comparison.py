"""Two results side by side, and a stored winner measured again, as plain data. Judges nothing.

In: a `Comparison` or a `Check`. Out: a `HandoverView` of tables and sections, which `text` renders.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadtune.records import Change, Check, CheckOutcome, Comparison, PrecisionChange, Ratio, Resource, Side, Value
from loadtune.report.bottleneck import RESOURCE_TEXT
from loadtune.report.figures import Table
from loadtune.report.view import Section
from loadtune.report.wording import settings_text
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


def comparison_view(comparison: Comparison) -> HandoverView:
    before, after = comparison.before, comparison.after
    tables = [_sides(comparison)]
    tables += [_changes("What changed in the winner", comparison.settings)] if comparison.settings else []
    tables += [_precisions(comparison.precisions)] if comparison.precisions else []
    tables += [_changes("What changed around it", comparison.changes)] if comparison.changes else []
    same = () if comparison.changes else ("Machine, versions and workload are the same in both.",)
    sections = (
        Section(title="Throughput", lines=(_throughput(comparison),)),
        Section(
            title="At the same settings",
            lines=tuple(f"{settings_text(s.config)}: {ratio_words(s.ratio)}" for s in comparison.same_configs),
        ),
        Section(title="Notes", lines=(*comparison.notes, *same)),
    )
    return HandoverView(
        title=f"{comparison.workload}: {before.created} → {after.created}",
        tables=tuple(tables),
        sections=tuple(section for section in sections if section.lines),
    )


def check_view(check: Check) -> HandoverView:
    tables = [_then_and_now(check)]
    tables += [_changes("What moved with it", check.figures)] if check.figures else []
    tables += [_changes("What changed around it", check.changes)] if check.changes else []
    same = () if check.changes or not check.runs else ("Machine and versions are those of the baseline.",)
    verdict = Section(title=_OUTCOME[check.outcome], lines=(check.reason, *same))
    return HandoverView(title=check.workload, tables=tuple(tables), sections=(verdict,))


def _then_and_now(check: Check) -> Table:
    """The ratio stands below what it is of."""
    by_energy = check.objective == "samples-per-joule"
    ratio = MISSING if check.ratio is None else ratio_words(check.ratio)
    then = _rate(check.baseline_samples_per_s, check.baseline_half_width_fraction)
    now = _rate(check.samples_per_s, check.half_width_fraction)
    efficiency = (efficiency_text(check.baseline_samples_per_joule), efficiency_text(check.samples_per_joule), ratio)
    columns = [
        ("", f"baseline, {check.baseline_created}", "now", "ratio"),
        ("throughput", then, now, "" if by_energy else ratio),
        *([("samples per joule", *efficiency)] if by_energy else []),
        ("runs", str(check.baseline_num_runs), str(len(check.runs)), ""),
    ]
    names, *rows = zip(*columns, strict=True)
    return Table(title=settings_text(check.config), columns=names, rows=tuple(rows))


def ratio_words(ratio: Ratio) -> str:
    """``0.82× (0.79× to 0.85×)``; what the interval does not tell apart from 1 is called so."""
    return ", ".join(words for words in (_interval(ratio), _remark(ratio)) if words is not None)


def _remark(ratio: Ratio) -> str | None:
    if ratio.different is None:
        return "too few runs for an interval"
    return None if ratio.different else "not told apart"


def _interval(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return ratio_text(ratio.ratio)
    return f"{ratio_text(ratio.ratio)} ({ratio_text(ratio.low)} to {ratio_text(ratio.high)})"


def _throughput(comparison: Comparison) -> str:
    if comparison.ratio is None:
        return "There is no winner on one side, so there is no ratio."
    remark = _remark(comparison.ratio)
    return f"The second is {_interval(comparison.ratio)} of the first{'' if remark is None else f': {remark}'}."


def _sides(comparison: Comparison) -> Table:
    sides = (comparison.before, comparison.after)
    rows = [
        ("device", *(side.device for side in sides)),
        ("throughput", *(_rate(side.samples_per_s, side.half_width_fraction) for side in sides)),
        ("runs", *(MISSING if side.num_runs is None else str(side.num_runs) for side in sides)),
        ("of compute-only rate", *(percent_text(side.compute_fraction) for side in sides)),
        ("blocked in next(loader)", *(percent_text(side.wait_fraction) for side in sides)),
        ("limited by", *(_bound(side.bottleneck) for side in sides)),
    ]
    return Table(title="Winners", columns=("", *(_heading(side) for side in sides)), rows=tuple(rows))


def _heading(side: Side) -> str:
    return f"{side.hostname}\n{side.created}"


def _bound(resource: Resource | None) -> str:
    return MISSING if resource is None else RESOURCE_TEXT[resource]


def _rate(samples_per_s: float | None, half_width_fraction: float | None) -> str:
    if samples_per_s is None or half_width_fraction is None:
        return rate_text(samples_per_s)
    return f"{rate_text(samples_per_s)} ± {rate_text(samples_per_s * half_width_fraction)}"


def _precisions(precisions: tuple[PrecisionChange, ...]) -> Table:
    rows = tuple(
        (
            change.precision,
            f"{rate_text(change.compute_before_per_s)} → {rate_text(change.compute_after_per_s)}",
            MISSING if change.compute_ratio is None else _interval(change.compute_ratio),
            f"{_count(change.safe_batch_before)} → {_count(change.safe_batch_after)}",
        )
        for change in precisions
    )
    return Table(title="Ceilings", columns=("", "compute only", "ratio", "safe batch"), rows=rows)


def _count(count: int | None) -> str:
    return MISSING if count is None else str(count)


def _changes(title: str, changes: tuple[Change, ...]) -> Table:
    rows = tuple((_label(c.name), value_text(c.name, c.before), value_text(c.name, c.after)) for c in changes)
    return Table(title=title, columns=("", "before", "after"), rows=rows)


def _label(name: str) -> str:
    """A field's name in words."""
    if name in _KEPT_AS_THEY_ARE:
        return name
    bare = next((name.removesuffix(suffix) for suffix in _UNITS if name.endswith(suffix)), name)
    words = _LABELS.get(bare, bare.replace("_", " "))
    return words.replace("gpu ", "GPU ").replace("cpu ", "CPU ")


def value_text(name: str, value: Value) -> str:
    """By the unit that the field's name ends in."""
    if value is None:
        return MISSING
    if isinstance(value, (bool, str)):
        return str(value)
    text = next((text for suffix, text in _UNITS.items() if name.endswith(suffix)), None)
    if text is not None:
        return text(value)
    return f"{value:,.3g}" if isinstance(value, float) else str(value)
