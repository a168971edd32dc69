"""Many results on one page: machines × workloads × dates, trends, and what fell. Pure.

In: `TuningResult`s, with a link to each one's own page where there is one. Out: a `Board`. Which runs
compare, and how, is `kinds`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtune.records import OBJECTIVES, Objective, TuningResult, Winner
from loadtune.report.page.figure import BLUE, Figure, Panel, Trace, axis, points, score_axis, text
from loadtune.report.page.measured import whose_runs
from loadtune.report.page.run_groups import Change, Kind, by_kind, changes, confirmed_of, departure_of
from loadtune.report.page.table import Cell
from loadtune.report.utilization import mean_known
from loadtune.report.wording import score_text, settings_text
from loadtune.units import MISSING, counted, percent_text, ratio_text

_BEFORE = ("when (UTC)", "workload", "machine")
_FIGURES: Mapping[Objective, tuple[str, str]] = {
    "samples-per-s": ("samples/s", "±"),
    "samples-per-joule": ("samples/J", "± of it"),
}
_BEHIND = (
    "since the run before",
    "over the baseline",
    "of compute-only",
    "GPU utilization",
    "SM activity",
    "CPU utilization",
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
    headline: str
    """Where there is none."""
    trend: Figure
    table: BoardTable
    unread: tuple[str, ...]
    """Files that are no result this loadtune can read, and why."""


def board_view(results: Sequence[TuningResult], unread: Sequence[str] = ()) -> Board:
    kinds = by_kind(results)
    confirmed = sum(result.best is not None for result in results)
    return Board(
        title="Benchmark board",
        subtitle=f"{counted(len(results), 'result')}, {confirmed} with a confirmed answer",
        regressions=tuple(_sentence(kind, runs) for kind, runs in kinds.items() if changes(runs)[-1:] == ["fell"]),
        headline="No newest run fell below the one before it by more than their intervals."
        if any(len(changes(runs)) > 1 for runs in kinds.values())
        else "No workload has run twice on one machine: there is nothing to compare yet.",
        trend=_trend(kinds),
        table=_table(kinds),
        unread=tuple(unread),
    )


def _sentence(kind: Kind, runs: Sequence[TuningResult]) -> str:
    (run_before, before), (run_after, after) = confirmed_of(runs)[-2:]
    return (
        f"{kind.text} with {counted(kind.num_cores, 'core')}: {_value(after)} on {_when(run_after)}, "
        f"{_value(before)} on {_when(run_before)} ({departure_of(before, after)}, "
        f"torch {run_before.host.torch or MISSING} → {run_after.host.torch or MISSING})"
    )


def _value(winner: Winner) -> str:
    return score_text(winner.picked_by.value, winner.picked_by.objective)


def _when(result: TuningResult) -> str:
    return result.created[:16].replace("T", " ")


def _trend(kinds: dict[Kind, list[TuningResult]]) -> Figure:
    panels = tuple(_panel(kind, confirmed) for kind, runs in kinds.items() if (confirmed := confirmed_of(runs)))
    return Figure(
        key="trend",
        title="The best over time",
        reading="Each panel is one workload on one kind of machine. A step down that is larger than the intervals is a "
        "regression of the machine, of torch or of data loading.",
        source="Confirmed throughput of the best configuration of each run, with its 95% interval from the spread "
        "between runs; samples per joule where that was the objective.",
        panels=panels,
        missing=() if panels else ("No result with a confirmed answer.",),
    )


def _panel(kind: Kind, confirmed: Sequence[tuple[TuningResult, Winner]]) -> Panel:
    words = [
        f"{_when(run)}, {text(run.host.hostname)}, torch {text(run.host.torch or MISSING)}"
        f"<br>{settings_text(best.config)}<br>{_value(best)}"
        for run, best in confirmed
    ]
    scores, dates = [best.picked_by for _, best in confirmed], [run.created for run, _ in confirmed]
    halves = [score.half_width for score in scores]
    interval = {"type": "data", "array": halves, "thickness": 1.2, "width": 4, "color": BLUE}
    values = [score.value for score in scores]
    trace = points("best", dates, values, words, mode="lines+markers", marker={"color": BLUE}, error_y=interval)
    layout = {"xaxis": _date_axis(dates), "yaxis": score_axis(kind.objective), "showlegend": False}
    title = f"{kind.text}, {counted(kind.num_cores, 'core')}"
    return Panel(title=title, data=(trace,), layout=layout, height_px=280)


def _date_axis(dates: Sequence[str]) -> Trace:
    """Around a single date plotly.js would set its ticks at fractions of a second."""
    alone = {"tickmode": "array", "tickvals": dates[:1], "tickformat": "%H:%M<br>%b %-d, %Y"}
    return axis("", type="date", **(alone if len(set(dates)) == 1 else {}))


def _table(kinds: Mapping[Kind, Sequence[TuningResult]]) -> BoardTable:
    """Throughput of every run; samples per joule where one looked for that."""
    objectives = [one for one in OBJECTIVES if one == "samples-per-s" or any(kind.objective == one for kind in kinds)]
    columns = (*_BEFORE, *(name for one in objectives for name in _FIGURES[one]), *_BEHIND)
    return BoardTable(columns=columns, rows=tuple(row for runs in kinds.values() for row in _rows(runs, objectives)))


def _rows(runs: Sequence[TuningResult], objectives: Sequence[Objective]) -> list[BoardRow]:
    outcomes = iter(changes(runs))
    rows, before = [], None
    for run in runs:
        outcome: Change = next(outcomes) if run.best is not None else "first"
        rows.append(BoardRow(outcome=outcome, cells=_cells(run, before, outcome, objectives), is_best=run is runs[-1]))
        before = run.best or before
    return rows


def _cells(
    run: TuningResult, before: Winner | None, outcome: Change, objectives: Sequence[Objective]
) -> tuple[Cell, ...]:
    best, workload = run.best, run.config.workload
    since = MISSING if best is None or before is None else f"{departure_of(before, best)}, {outcome}"
    gain, share = (None, None) if best is None else (best.gain, best.compute_fraction)
    return (
        Cell(text=_when(run)),
        Cell(text=workload.title),
        Cell(text=f"{run.device.name}, {counted(run.host.num_usable_cores, 'core')}"),
        *(cell for objective in objectives for cell in _figures(best, objective)),
        Cell(text=since),
        Cell(text=ratio_text(gain), order=gain),
        Cell(text=percent_text(share), order=share),
        *_utilization(run, best),
        Cell(text="not confirmed" if best is None else settings_text(best.config)),
        Cell(text=run.host.hostname),
        Cell(text=run.host.torch or MISSING),
    )


def _utilization(run: TuningResult, best: Winner | None) -> tuple[Cell, ...]:
    """Of the best configuration's confirmed runs."""
    runs = () if best is None else whose_runs(run, best.config)
    seen = [measured.telemetry for measured in runs if measured.telemetry is not None]
    means = (
        mean_known(telemetry.gpu_utilization_fraction for telemetry in seen),
        mean_known(telemetry.gpu_sm_activity_fraction for telemetry in seen),
        mean_known(telemetry.cpu_utilization_fraction for telemetry in seen),
    )
    return tuple(Cell(text=percent_text(mean), order=mean) for mean in means)


def _figures(best: Winner | None, objective: Objective) -> tuple[Cell, Cell]:
    """Every winner has a throughput, one that was picked for its samples per joule those as well."""
    known = () if best is None else (best.throughput, best.picked_by)
    score = next((score for score in known if score.objective == objective), None)
    value, half = (None, None) if score is None else (score.value, score.half_width_fraction)
    return Cell(text=score_text(value, objective), order=value), Cell(text=percent_text(half, 1), order=half)
