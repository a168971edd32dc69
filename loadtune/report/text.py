"""Views as rich renderables, made for 80 columns. Adds layout and colour, never a word or a figure.

Where the words of a table do not fit side by side it becomes a list: nothing is cut.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from loadtune.report.tables import Table, View

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


def view_text(view: View) -> RenderableType:
    """Tables that have rows, then what is said of them, with an empty line before each."""
    parts: list[RenderableType] = [Text(view.title, style="bold")] if view.title else []
    parts += [_Fitting(table) for table in view.tables if table.rows]
    for section in (section for section in view.sections if section.lines):
        title = [Text(section.title, style="bold")] if section.title else []
        parts.append(Group(*title, *(Padding(Text(line), (0, 0, 0, _GAP)) for line in section.lines)))
    return Group(*(Group(Text(), part) for part in parts))


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A table; where its longest words do not fit side by side, each cell on a line of its own."""

    view: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view, padding = self.view, (0, _GAP, 0, 0)
        table = RichTable(title=view.title or None, title_justify="left", title_style="bold", box=None, padding=padding)
        for number, column in enumerate(view.columns):
            table.add_column(column, style="" if number else "dim", header_style="bold", overflow="fold")
        for row in view.rows:
            table.add_row(*(Text(cell) for cell in row))
        if Measurement.get(console, options.update(max_width=_UNBOUNDED), table).minimum <= options.max_width:
            yield table
            return
        if view.title:
            yield Text(view.title, style="bold")
        for name, *cells in view.rows:
            yield Text(f"{view.columns[0]} {name}".strip())
            for column, cell in zip(view.columns[1:], cells, strict=True):
                shown = f"{column}: {cell}" if column else cell
                if shown:
                    yield Padding(Text(" ".join(shown.replace("-\n", "").split())), (0, 0, 0, 2))
