"""Many results on one page: machines × workloads × dates, trends, and what became slower. Pure.

In: `TuningResult`s, with a link to each one's own page where there is one. Out: a `Board`. Runs compare where the
workload, the device and the number of usable cores are the same; hosts may differ, as containers change their names.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from loadtune.records import TuningResult, Winner, WorkloadSpec
from loadtune.report.page.figure import BLUE, Figure, Panel, axis, points, rate_axis, text
from loadtune.report.page.table import Cell
from loadtune.report.wording import settings_text
from loadtune.units import MISSING, counted, percent_text, rate_text, ratio_text

Change = Literal["slower", "faster", "same", "first"]

_COLUMNS = (
    "when (UTC)",
    "workload",
    "machine",
    "samples/s",
    "±",
    "since the run before",
    "over yours",
    "of compute-only",
    "configuration",
    "host",
    "torch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRow:
    outcome: Change
    """Against the run before it with the same workload on the same kind of machine."""
    cells: tuple[Cell, ...]
    is_best: bool = False
    """The newest of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardTable:
    columns: tuple[str, ...]
    rows: tuple[BoardRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    title: str
    subtitle: str
    regressions: tuple[str, ...]
    """Whole sentences; of the newest runs alone."""
    trend: Figure
    table: BoardTable
    unread: tuple[str, ...]
    """Files that are no result this loadtune can read, and why."""


_Key = tuple[str, str, int]


def board_view(results: Sequence[TuningResult], unread: Sequence[str] = ()) -> Board:
    kinds = _by_kind(results)
    confirmed = sum(result.best is not None for result in results)
    return Board(
        title="Benchmark board",
        subtitle=f"{counted(len(results), 'result')}, {confirmed} with a confirmed answer",
        regressions=tuple(_sentence(key, runs) for key, runs in kinds.items() if changes(runs)[-1:] == ["slower"]),
        trend=_trend(kinds),
        table=BoardTable(columns=_COLUMNS, rows=tuple(row for runs in kinds.values() for row in _rows(runs))),
        unread=tuple(unread),
    )


def _by_kind(results: Iterable[TuningResult]) -> dict[_Key, list[TuningResult]]:
    """Oldest run first within each."""
    kinds: dict[_Key, list[TuningResult]] = {}
    for result in sorted(results, key=lambda one: one.created):
        by_energy = result.config.objective == "samples-per-joule"
        workload = _step_text(result.config.workload) + (", for samples per joule" if by_energy else "")
        kinds.setdefault((workload, result.device.name, result.host.num_usable_cores), []).append(result)
    return dict(sorted(kinds.items()))


def _step_text(spec: WorkloadSpec) -> str:
    """What makes a training step of its own, as far as it is not the default."""
    size = "" if spec.image_size is None else f", {spec.image_size} pixels"
    classes = "" if spec.num_classes is None else f", {counted(spec.num_classes, 'class')}"
    optimizer = "" if spec.optimizer == WorkloadSpec().optimizer else f", {spec.optimizer}"
    return f"{spec.dataset} + {spec.model}{size}{classes}{optimizer}"


def changes(runs: Sequence[TuningResult]) -> list[Change]:
    """Of each confirmed run against the confirmed one before it: a difference is one where intervals do not overlap."""
    winners = [winner for _, winner in _confirmed(runs)]
    first: list[Change] = ["first"]
    return first[: len(winners)] + [_change(before, after) for before, after in pairwise(winners)]


def _confirmed(runs: Sequence[TuningResult]) -> list[tuple[TuningResult, Winner]]:
    return [(run, run.best) for run in runs if run.best is not None]


def _change(before: Winner, after: Winner) -> Change:
    """Without an interval nothing can be told apart."""
    if before.half_width_fraction is None or after.half_width_fraction is None:
        return "same"
    apart = before.half_width_fraction * before.samples_per_s + after.half_width_fraction * after.samples_per_s
    difference = after.samples_per_s - before.samples_per_s
    if abs(difference) <= apart:
        return "same"
    return "faster" if difference > 0 else "slower"


def _sentence(key: _Key, runs: Sequence[TuningResult]) -> str:
    workload, device, cores = key
    (run_before, before), (run_after, after) = _confirmed(runs)[-2:]
    return (
        f"{workload} on {device} with {counted(cores, 'core')}: {rate_text(after.samples_per_s)} on "
        f"{_when(run_after)}, {rate_text(before.samples_per_s)} on {_when(run_before)} ({_departure(before, after)}, "
        f"torch {run_before.host.torch or MISSING} → {run_after.host.torch or MISSING})"
    )


def _departure(before: Winner, after: Winner) -> str:
    return f"{after.samples_per_s / before.samples_per_s - 1:+.1%}"


def _when(result: TuningResult) -> str:
    return result.created[:16].replace("T", " ")


def _trend(kinds: dict[_Key, list[TuningResult]]) -> Figure:
    panels = tuple(_panel(key, confirmed) for key, runs in kinds.items() if (confirmed := _confirmed(runs)))
    return Figure(
        key="trend",
        title="Throughput over time",
        reading="Each panel is one workload on one kind of machine. A step down that is larger than the intervals is a "
        "regression: of the machine, of torch, or of the data's way to it.",
        source="Confirmed throughput of the best configuration of each run, with its 95% interval from the spread "
        "between runs.",
        panels=panels,
        missing=() if panels else ("No result with a confirmed answer.",),
    )


def _panel(key: _Key, confirmed: Sequence[tuple[TuningResult, Winner]]) -> Panel:
    halves = [(best.half_width_fraction or 0.0) * best.samples_per_s for _, best in confirmed]
    words = [
        f"{_when(run)}, {text(run.host.hostname)}, torch {text(run.host.torch or MISSING)}"
        f"<br>{settings_text(best.config)}<br>{rate_text(best.samples_per_s)}"
        for run, best in confirmed
    ]
    interval = {"type": "data", "array": halves, "thickness": 1.2, "width": 4, "color": BLUE}
    rates, dates = [best.samples_per_s for _, best in confirmed], [run.created for run, _ in confirmed]
    trace = points("best", dates, rates, words, mode="lines+markers", marker={"color": BLUE}, error_y=interval)
    layout = {"xaxis": axis("", type="date"), "yaxis": rate_axis(), "showlegend": False}
    return Panel(title=f"{key[0]} on {key[1]}, {counted(key[2], 'core')}", data=(trace,), layout=layout, height_px=280)


def _rows(runs: Sequence[TuningResult]) -> list[BoardRow]:
    outcomes = iter(changes(runs))
    rows, before = [], None
    for run in runs:
        outcome: Change = next(outcomes) if run.best is not None else "first"
        rows.append(BoardRow(outcome=outcome, cells=_cells(run, before, outcome), is_best=run is runs[-1]))
        before = run.best or before
    return rows


def _cells(run: TuningResult, before: Winner | None, outcome: Change) -> tuple[Cell, ...]:
    best, workload = run.best, run.config.workload
    since = MISSING if best is None or before is None else f"{_departure(before, best)}, {outcome}"
    figures = (
        (None,) * 4
        if best is None
        else (
            best.samples_per_s,
            best.half_width_fraction,
            best.speedup,
            best.compute_fraction,
        )
    )
    rate, half, speedup, share = figures
    return (
        Cell(text=_when(run)),
        Cell(text=f"{workload.dataset} + {workload.model}"),
        Cell(text=f"{run.device.name}, {counted(run.host.num_usable_cores, 'core')}"),
        Cell(text=rate_text(rate), order=rate),
        Cell(text=percent_text(half, 1), order=half),
        Cell(text=since),
        Cell(text=ratio_text(speedup), order=speedup),
        Cell(text=percent_text(share), order=share),
        Cell(text="not confirmed" if best is None else settings_text(best.config)),
        Cell(text=run.host.hostname),
        Cell(text=run.host.torch or MISSING),
    )
