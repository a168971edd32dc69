"""Tables that sort and filter: what is shown of a cell, and what it sorts by."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from loadtune.units import MISSING

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    order: float | None = None
    """A number to sort by, in one unit for the whole column. None: the text sorts; missing figures come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    outcome: str
    """One of a few, to filter by."""
    cells: tuple[Cell, ...]
    is_best: bool = False


class Column(NamedTuple, Generic[T]):
    """What it holds of a row's object, as a number or as text, and how a number is shown."""

    name: str
    value: Callable[[T], float | str | None]
    shown: Callable[[Any], str] = str

    def cell(self, row: T) -> Cell:
        value = self.value(row)
        if value is None or isinstance(value, str):
            return Cell(MISSING if value is None else value)
        return Cell(self.shown(value), value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedTable:
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def sorted_table(
    columns: Iterable[Column[T]], rows: Iterable[T], outcome: Callable[[T], str], is_best: Callable[[T], bool]
) -> SortedTable:
    known = tuple(columns)
    return SortedTable(
        columns=tuple(column.name for column in known),
        rows=tuple(
            Row(outcome=outcome(row), cells=tuple(column.cell(row) for column in known), is_best=is_best(row))
            for row in rows
        ),
    )
