"""Two results side by side, and a stored winner measured again, as plain data. Judges nothing.

In: a `Comparison` or a `Check`. Out: a `View`, which `text` renders.
"""

from collections.abc import Mapping

from loadtune.records.config import Objective
from loadtune.records.interval import Interval
from loadtune.report.compare import Change, Check, CheckOutcome, Comparison, Side, Value
from loadtune.report.tables import Section, Table, View
from loadtune.report.wording import UNIT_TEXT, field_text, gain_text, interval_text, settings_text
from loadtune.units import MISSING

_OUTCOME: Mapping[CheckOutcome, str] = {"held": "Held", "fell": "Fell", "unclear": "Could not tell"}


def view(found: Comparison | Check) -> View:
    return _compared(found) if isinstance(found, Comparison) else _checked(found)


def _compared(found: Comparison) -> View:
    same = () if found.changes else ("Machine, versions and workload are the same in both.",)
    ratio = "There is no winner on one side, so there is no ratio."
    if found.ratio is not None:
        told_apart = ": not told apart" if found.ratio.holds(1.0) else ""
        ratio = f"The second is {gain_text(found.ratio)} of the first{told_apart}."
    return View(
        title=f"{found.workload}: {found.before.created} → {found.after.created}",
        tables=(
            _sides(found.before, found.after),
            _changes("What changed around it", found.changes),
        ),
        sections=(
            Section(title="Throughput", lines=(ratio,)),
            Section(title="Notes", lines=(*found.notes, *same)),
        ),
    )


def _checked(found: Check) -> View:
    same = () if found.changes or not found.runs else ("Machine and versions are those of the baseline.",)
    figures = [("throughput", _known(found.baseline.throughput), _known(found.throughput))]
    if found.objective == "samples-per-joule":
        then, now = (_known(each, found.objective) for each in (found.baseline.picked_by, found.efficiency))
        figures.append(("samples per joule", then, now))
    names, before, after = zip(*figures, strict=True)
    ratios = [*[""] * (len(figures) - 1), MISSING if found.ratio is None else _ratio(found.ratio)]  # below its figure
    rows = (
        (f"baseline, {found.baseline_created}", *before, str(found.baseline_num_runs)),
        ("now", *after, str(len(found.runs))),
        ("ratio", *ratios, ""),
    )
    return View(
        title=found.workload,
        tables=(
            Table(title=settings_text(found.baseline.config), columns=("", *names, "runs"), rows=rows),
            _changes("What moved with it", found.figures),
            _changes("What changed around it", found.changes),
        ),
        sections=(Section(title=_OUTCOME[found.outcome], lines=(found.reason, *same)),),
    )


def _ratio(ratio: Interval) -> str:
    """``0.82× (0.79–0.85)``; what the interval does not tell apart from 1 is called so."""
    return f"{gain_text(ratio)}{', not told apart' if ratio.holds(1.0) else ''}"


def _known(found: Interval | None, objective: Objective = "samples-per-s") -> str:
    return MISSING if found is None else interval_text(found, objective)


def _sides(*sides: Side) -> Table:
    names = dict.fromkeys(name for side in sides for name in side.figures)
    figures = ((name, *(side.figures.get(name, MISSING) for side in sides)) for name in names)
    rows = (("device", *(side.device for side in sides)), *figures)
    return Table(title="Winners", columns=("", *(f"{side.hostname}\n{side.created}" for side in sides)), rows=rows)


def _changes(title: str, changes: tuple[Change, ...]) -> Table:
    rows = tuple((field_text(c.name), _value(c.name, c.before), _value(c.name, c.after)) for c in changes)
    return Table(title=title, columns=("", "before", "after"), rows=rows)


def _value(name: str, value: Value) -> str:
    """By the unit that the field's name ends in."""
    if value is None:
        return MISSING
    if isinstance(value, (bool, str)):
        return str(value)
    plain = "{:,.3g}".format if isinstance(value, float) else str
    return next((text for unit, text in UNIT_TEXT.items() if name.endswith(unit)), plain)(value)
