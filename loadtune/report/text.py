"""Views as rich renderables, made for 80 columns. Adds layout and colour, never a word or a figure.

Where the words of a table do not fit side by side it becomes a list: nothing is cut.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from loadtune.report.comparison import HandoverView
from loadtune.report.figures import Table
from loadtune.report.footprint import FootprintView

_UNBOUNDED = 10_000  # columns: wider than any table of ours
_GAP = 2


def banner_text(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Names beside values."""
    table = RichTable.grid(padding=(0, _GAP))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def footprint_text(view: FootprintView) -> RenderableType:
    """Tables, then what is said of them."""
    return _apart(*map(_table, view.tables), _indented(view.lines))


def handover_text(view: HandoverView) -> RenderableType:
    """Tables, then what is said of them."""
    said = (Group(Text(section.title, style="bold"), _indented(section.lines)) for section in view.sections)
    return _apart(Text(view.title, style="bold"), *map(_table, view.tables), *said)


def _apart(*parts: RenderableType) -> RenderableType:
    return Group(*(Group(Text(), part) for part in parts))


def _indented(lines: Iterable[str]) -> RenderableType:
    return Group(*(Padding(Text(line), (0, 0, 0, 2)) for line in lines))


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A table; where its longest words do not fit side by side, each cell on a line of its own."""

    table: RichTable
    title: str | None
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = Measurement.get(console, options.update(max_width=_UNBOUNDED), self.table)
        if needed.minimum <= options.max_width:
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
