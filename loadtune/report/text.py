"""Views as rich renderables, made for 80 columns. Adds layout and colour, never a word or a figure."""

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from loadtune.records import MemoryCeiling
from loadtune.report.comparison import HandoverView
from loadtune.report.figures import Table
from loadtune.report.footprint import FootprintView
from loadtune.report.memory import (
    ALLOCATED,
    BUDGET_END,
    RESERVED,
    CeilingView,
    CurveRow,
    ceiling_view,
    ceilings_table,
)
from loadtune.report.view import Banner, Section, Summary

_WIDTH = 80
_GAP = 2


def banner_text(view: Banner) -> RenderableType:
    table = RichTable.grid(padding=(0, _GAP))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in view.rows:
        table.add_row(name, Text(value))
    return table


def summary_text(view: Summary) -> RenderableType:
    """Top to bottom: what it is, figures, what to beware of, limits, code."""
    parts: list[RenderableType] = [Text(view.title, style="bold")]
    if view.warning is not None:
        parts.append(Text(view.warning, style="bold yellow"))
    parts += [_table(table) for table in (view.figures, view.ceilings) if table is not None]
    parts += [] if view.curve is None else [_curve(view.curve)]
    parts += [_lines(section) for section in view.sections]
    parts += [_code(block) for block in view.code]
    return Group(*(Group(Text(), part) for part in parts))


def footprint_text(view: FootprintView) -> RenderableType:
    """Tables, then what is said of them."""
    parts: list[RenderableType] = [_table(table) for table in view.tables]
    parts.append(Group(*(Padding(Text(line), (0, 0, 0, 2)) for line in view.lines)))
    return Group(*(Group(Text(), part) for part in parts))


def handover_text(view: HandoverView) -> RenderableType:
    """Tables, then what is said of them."""
    parts: list[RenderableType] = [Text(view.title, style="bold"), *map(_table, view.tables)]
    parts += [_lines(section) for section in view.sections]
    return Group(*(Group(Text(), part) for part in parts))


def ceiling_text(ceiling: MemoryCeiling, *, device_kind: str | None = None) -> str:
    """One ceiling by itself, for ``print``; with ``device_kind``, ``cuda`` or ``cpu``, it says whose memory it is."""
    table = ceilings_table([ceiling], device_kind)
    parts = [*([] if table is None else [_table(table), Text()]), _curve(ceiling_view(ceiling))]
    # A notebook's own console would print instead of being captured.
    console = Console(width=_WIDTH, color_system=None, force_jupyter=False, force_terminal=False)
    with console.capture() as capture:
        console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in capture.get().rstrip().split("\n"))


def _table(view: Table) -> RenderableType:
    table = RichTable(title=view.title, title_justify="left", title_style="bold", box=None, padding=(0, _GAP, 0, 0))
    for number, column in enumerate(view.columns):
        table.add_column(column, style="" if number else "dim", header_style="bold")
    for row in view.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _curve(view: CeilingView) -> RenderableType:
    """Figures to the right of their columns; bars take what is left of the width."""
    table = RichTable(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    *figures, bars = view.columns
    for column in figures:
        table.add_column(column, justify="right", no_wrap=True, header_style="bold", vertical="bottom")
    table.add_column(bars, no_wrap=True, header_style="bold")
    width = _bar_width(view)
    for row in view.rows:
        table.add_row(*(Text(cell) for cell in row.cells), Text(_bar(row, width)))
    body = (Padding(Text(line), (0, 0, 0, 2)) for line in view.lines)
    return Group(Text(view.title, style="bold"), table, *body)


def _bar_width(view: CeilingView) -> int:
    """Of a full bar, without its end and the mark behind it."""
    *figures, _ = view.columns
    cells = [tuple(max(column.split("\n"), key=len) for column in figures), *(row.cells for row in view.rows)]
    taken = sum(max(map(len, column)) + _GAP for column in zip(*cells, strict=True))
    marks = max((len(row.mark) for row in view.rows if row.allocated_fraction is not None), default=0)
    return max(1, _WIDTH - taken - marks - len(f"{BUDGET_END} "))


def _bar(row: CurveRow, width: int) -> str:
    if row.allocated_fraction is None:
        return row.mark
    allocated, reserved = (_cells(share, width) for share in (row.allocated_fraction, row.reserved_fraction or 0.0))
    filled = ALLOCATED * allocated + RESERVED * (reserved - allocated)
    return f"{filled:<{width}}{BUDGET_END} {row.mark}".rstrip()


def _cells(share: float, width: int) -> int:
    return round(min(1.0, share) * width)


def _lines(section: Section) -> RenderableType:
    body = (Padding(Text(line), (0, 0, 0, 2)) for line in section.lines)
    return Group(Text(section.title, style="bold"), *body)


def _code(block: Section) -> RenderableType:
    """Without indentation or wrapping, so that it can be copied as it stands."""
    return Group(
        Text(block.title, style="bold"), *(Text(line, no_wrap=True, overflow="ignore") for line in block.lines)
    )
