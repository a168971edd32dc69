"""Views as rich renderables, made for 80 columns. Adds layout and colour, never a word or a figure."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from loadtune.report.figures import Table
from loadtune.report.view import Banner, Section, Summary


def banner_text(view: Banner) -> RenderableType:
    table = RichTable.grid(padding=(0, 2))
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
    parts += [_lines(section) for section in view.sections]
    parts += [_code(block) for block in view.code]
    return Group(*(Group(Text(), part) for part in parts))


def _table(view: Table) -> RenderableType:
    table = RichTable(title=view.title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for number, column in enumerate(view.columns):
        table.add_column(column, style="" if number else "dim", header_style="bold")
    for row in view.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _lines(section: Section) -> RenderableType:
    body = (Padding(Text(line), (0, 0, 0, 2)) for line in section.lines)
    return Group(Text(section.title, style="bold"), *body)


def _code(block: Section) -> RenderableType:
    """Without indentation or wrapping, so that it can be copied as it stands."""
    return Group(
        Text(block.title, style="bold"), *(Text(line, no_wrap=True, overflow="ignore") for line in block.lines)
    )
