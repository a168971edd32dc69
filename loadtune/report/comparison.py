"""Two results side by side, and a stored winner measured again, as plain data. Judges nothing.

In: a `Comparison` or a `Check`. Out: a `View`, which `text` renders.
"""

from collections.abc import Callable, Mapping

from loadtune.records.config import Objective
from loadtune.records.interval import Interval
from loadtune.report.compare import Change, Check, CheckOutcome, Comparison, Side, Value
from loadtune.report.figures import Section, Table, View
from loadtune.report.sentences import RESOURCE_TEXT
from loadtune.report.wording import gain_text, interval_text, settings_text
from loadtune.units import MISSING, bytes_text, efficiency_text, percent_text, rate_text, seconds_text

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


def view(found: Comparison | Check) -> View:
    if isinstance(found, Comparison):
        title, parts = f"{found.workload}: {found.before.created} → {found.after.created}", _comparison_parts(found)
    else:
        title, parts = found.workload, _check_parts(found)
    return View(
        title=title,
        tables=tuple(part for part in parts if isinstance(part, Table) and part.rows),
        sections=tuple(part for part in parts if isinstance(part, Section) and part.lines),
    )


def _comparison_parts(found: Comparison) -> list[Table | Section]:
    same = () if found.changes else ("Machine, versions and workload are the same in both.",)
    settings = tuple(f"{settings_text(each.config)}: {ratio_words(each.ratio)}" for each in found.same_configs)
    ratio = "There is no winner on one side, so there is no ratio."
    if found.ratio is not None:
        remark = _remark(found.ratio)
        ratio = f"The second is {gain_text(found.ratio)} of the first{f': {remark}' if remark else ''}."
    return [
        _sides((found.before, found.after)),
        _changes("What changed in the winner", found.settings),
        _changes("Ceilings", found.ceilings),
        _changes("What changed around it", found.changes),
        Section(title="Throughput", lines=(ratio,)),
        Section(title="At the same settings", lines=settings),
        Section(title="Notes", lines=(*found.notes, *same)),
    ]


def _check_parts(found: Check) -> list[Table | Section]:
    same = () if found.changes or not found.runs else ("Machine and versions are those of the baseline.",)
    return [
        _then_and_now(found),
        _changes("What moved with it", found.figures),
        _changes("What changed around it", found.changes),
        Section(title=_OUTCOME[found.outcome], lines=(found.reason, *same)),
    ]


def _then_and_now(check: Check) -> Table:
    """The ratio stands below what it is of."""
    figures = [("throughput", _known(check.baseline.throughput), _known(check.throughput))]
    if check.objective == "samples-per-joule":
        then, now = (_known(each, check.objective) for each in (check.baseline.picked_by, check.efficiency))
        figures.append(("samples per joule", then, now))
    ratios = [*[""] * (len(figures) - 1), MISSING if check.ratio is None else ratio_words(check.ratio)]
    names, before, after = zip(*figures, strict=True)
    rows = (
        (f"baseline, {check.baseline_created}", *before, str(check.baseline_num_runs)),
        ("now", *after, str(len(check.runs))),
        ("ratio", *ratios, ""),
    )
    return Table(title=settings_text(check.baseline.config), columns=("", *names, "runs"), rows=rows)


def ratio_words(ratio: Interval) -> str:
    """``0.82× (0.79–0.85)``; what the interval does not tell apart from 1 is called so."""
    return ", ".join(words for words in (gain_text(ratio), _remark(ratio)) if words)


def _remark(ratio: Interval) -> str:
    return "not told apart" if ratio.holds(1.0) else ""


def _known(found: Interval | None, objective: Objective = "samples-per-s") -> str:
    return MISSING if found is None else interval_text(found, objective)


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
