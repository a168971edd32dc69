"""Views as rich renderables, made for 80 columns. Adds layout and colour, never a word or a figure.

On less than 80 columns bars are left out, and tables whose words do not fit side by side become lists: nothing is cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from loadtune.report.answer import Answer
from loadtune.report.comparison import HandoverView
from loadtune.report.figures import Table
from loadtune.report.footprint import FootprintView
from loadtune.report.memory import (
    ALLOCATED,
    BUDGET_END,
    RESERVED,
    CeilingView,
    CurveRow,
)
from loadtune.report.remedies import RemediesView
from loadtune.report.view import Banner, Section, Summary

_WIDTH = 80
_UNBOUNDED = 10_000  # columns: wider than any table of ours
_GAP = 2


def banner_text(view: Banner) -> RenderableType:
    table = RichTable.grid(padding=(0, _GAP))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in view.rows:
        table.add_row(name, Text(value))
    return table


def answer_text(view: Answer) -> RenderableType:
    """The answer: a table, the bottleneck, code to paste, where the rest is."""
    table = () if view.table is None else (_table(view.table),)
    warned = () if view.warning is None else (Text(view.warning, style="bold yellow"),)
    blocks: list[Sequence[RenderableType]] = [
        (Text(view.title, style="bold"), *warned, *table),
        [Text(line) for line in view.lines],
        [Text(line, no_wrap=True, overflow="ignore") for line in view.code],
        *_remedies(view.remedies, indent=0),
        [Text(line, no_wrap=True, overflow="ignore") for line in view.files],
    ]
    return Group(*(Group(Text(), *block) for block in blocks if block))


def summary_text(view: Summary) -> RenderableType:
    """Everything that was measured, top to bottom: title, figures, memory, notes, code."""
    parts: list[RenderableType] = [Text(view.title, style="bold")]
    if view.warning is not None:
        parts.append(Text(view.warning, style="bold yellow"))
    parts += [_table(table) for table in (view.figures, view.ceilings) if table is not None]
    parts += [] if view.curve is None else [_Curve(view.curve)]
    parts += [_lines(section) for section in view.sections]
    parts += [Group(*block) for block in _remedies(view.remedies, indent=2) if block]
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


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A table; where its longest words do not fit side by side, each cell on a line of its own."""

    table: RichTable
    title: str | None
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    wraps: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = Measurement.get(console, options.update(max_width=_UNBOUNDED), self.table)
        if (needed.minimum if self.wraps else needed.maximum) <= options.max_width:
            yield self.table
            return
        if self.title:
            yield Text(self.title, style="bold")
        for name, *cells in self.rows:
            yield Text(f"{self.columns[0]} {name}".strip())
            for column, cell in zip(self.columns[1:], cells, strict=True):
                shown = f"{column}: {cell}" if column else cell
                if shown:
                    yield Padding(Text(" ".join(shown.replace("-\n", "").split())), (0, 0, 0, 2))


def _table(view: Table) -> RenderableType:
    table = RichTable(
        title=view.title or None, title_justify="left", title_style="bold", box=None, padding=(0, _GAP, 0, 0)
    )
    for number, column in enumerate(view.columns):
        table.add_column(column, style="" if number else "dim", header_style="bold", overflow="fold")
    for row in view.rows:
        table.add_row(*(Text(cell) for cell in row))
    return _Fitting(table, view.title, view.columns, view.rows)


@dataclass(frozen=True, slots=True)
class _Curve:
    """Figures to the right of their columns; bars take what is left of the width, and are left out of a narrow one."""

    view: CeilingView

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.view.title, style="bold")
        if options.max_width < _WIDTH:
            rows = [(*row.cells, row.mark) for row in self.view.rows]
            columns = (*self.view.columns[:-1], "")
            yield _Fitting(self._figures(columns, rows, 1), None, columns, rows, wraps=False)
        else:
            width = _bar_width(self.view)
            yield self._figures(self.view.columns, [(*row.cells, _bar(row, width)) for row in self.view.rows], _GAP)
        yield from (Padding(Text(line), (0, 0, 0, 2)) for line in self.view.lines)

    def _figures(self, columns: Sequence[str], rows: Sequence[Sequence[str]], gap: int) -> RichTable:
        table = RichTable(box=None, padding=(0, gap, 0, 0), pad_edge=False)
        *figures, last = columns
        for column in figures:
            table.add_column(column, justify="right", no_wrap=True, header_style="bold", vertical="bottom")
        table.add_column(last, no_wrap=True, header_style="bold")
        for row in rows:
            table.add_row(*map(Text, row))
        return table


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


def _remedies(view: RemediesView | None, indent: int) -> list[list[RenderableType]]:
    """A block of words, and one of code in which a comment names each change."""
    if view is None:
        return []
    words: list[RenderableType] = [] if view.table is None else [_table(view.table)]
    words += [Padding(Text(line), (0, 0, 0, indent)) for line in view.lines]
    code = [line for one in view.code for line in ("", f"# {one.title}", *one.lines)]
    return [words, [Text(line, no_wrap=True, overflow="ignore") for line in code[1:]]]


def _lines(section: Section) -> RenderableType:
    body = (Padding(Text(line), (0, 0, 0, 2)) for line in section.lines)
    return Group(Text(section.title, style="bold"), *body)


def _code(block: Section) -> RenderableType:
    """Without indentation or wrapping, so that it can be copied as it stands."""
    return Group(
        Text(block.title, style="bold"), *(Text(line, no_wrap=True, overflow="ignore") for line in block.lines)
    )
