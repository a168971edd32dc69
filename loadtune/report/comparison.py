"""Two results side by side, as plain data. Judges nothing. In: a `Comparison`. Out: a `View`, which `text` renders."""

from loadtune.report.compare import Change, Comparison, Side, Value
from loadtune.report.tables import Section, Table, View
from loadtune.report.wording import UNIT_TEXT, field_text, gain_text
from loadtune.units import MISSING


def view(found: Comparison) -> View:
    same = () if found.changes else ("Machine, versions and workload are the same in both.",)
    ratio = "There is no winner on one side, so there is no ratio."
    if found.ratio is not None:
        told_apart = ": not told apart" if found.ratio.holds(1.0) else ""
        ratio = f"The second is {gain_text(found.ratio)} of the first{told_apart}."
    return View(
        title=f"{found.workload}: {found.before.created} → {found.after.created}",
        tables=tuple(
            table
            for table in (
                _sides(found.before, found.after),
                _changes("What moved with it", found.figures),
                _changes("What changed around it", found.changes),
            )
            if table.rows
        ),
        sections=(
            Section(title="Throughput", lines=(ratio,)),
            Section(title="Notes", lines=(*found.notes, *same)),
        ),
    )


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
