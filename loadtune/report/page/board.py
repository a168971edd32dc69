"""Many results on one page: machines × workloads × dates, trends, and what fell. Pure.

In: `TuningResult`s. Out: a `Board`. Runs compare by what they looked for, samples/s or samples per joule, where
workload, device and the number of usable cores are the same too. Hosts may differ, as containers change their names.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from loadtune.records import OBJECTIVES, SCORE_UNITS, Objective, TuningResult, Winner, WorkloadSpec
from loadtune.report.page.figure import BLUE, Figure, Panel, Trace, axis, error_bars, points, score_axis, text
from loadtune.report.page.table import Column, SortedTable, sorted_table
from loadtune.report.wording import score_text, settings_text
from loadtune.units import MISSING, counted, percent_text, ratio_text

Change = Literal["fell", "rose", "same", "first"]


class Kind(NamedTuple):
    """What has to be the same for two runs to compare."""

    workload: str
    device: str
    num_cores: int
    objective: Objective

    @property
    def text(self) -> str:
        by_energy = ", for samples per joule" if self.objective == "samples-per-joule" else ""
        return f"{self.workload}{by_energy} on {self.device}, {counted(self.num_cores, 'core')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    result: TuningResult
    before: Winner | None
    """Of the last confirmed run of its kind before it. None: there is none."""
    is_newest: bool

    @property
    def best(self) -> Winner | None:
        return self.result.best

    @property
    def when(self) -> str:
        return self.result.created[:16].replace("T", " ")

    @property
    def change(self) -> Change:
        """A difference is one where the intervals do not overlap; without an interval nothing can be told apart."""
        if self.best is None or self.before is None:
            return "first"
        old, new = self.before.picked_by, self.best.picked_by
        if old.half_width is None or new.half_width is None:
            return "same"
        difference = new.value - old.value
        if abs(difference) <= old.half_width + new.half_width:
            return "same"
        return "rose" if difference > 0 else "fell"

    @property
    def departure(self) -> str | None:
        """``-3.1%``, in what both were picked by."""
        if self.best is None or self.before is None:
            return None
        return f"{self.best.picked_by.value / self.before.picked_by.value - 1:+.1%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    title: str
    subtitle: str
    regressions: tuple[str, ...]
    """Whole sentences; of the newest runs alone."""
    headline: str
    """Where there is none."""
    trend: Figure
    table: SortedTable
    unread: tuple[str, ...]
    """Files that are no result this loadtune can read, and why."""


def board_view(results: Sequence[TuningResult], unread: Sequence[str] = ()) -> Board:
    kinds = _by_kind(results)
    confirmed = {kind: [run for run in runs if run.best is not None] for kind, runs in kinds.items()}
    return Board(
        title="Benchmark board",
        subtitle=f"{counted(len(results), 'result')}, {sum(map(len, confirmed.values()))} with a confirmed answer",
        regressions=tuple(
            f"{kind.text}: {_score(runs[-1])} on {runs[-1].when}, {_score(runs[-2])} on {runs[-2].when} "
            f"({runs[-1].departure}, torch {_torch(runs[-2])} → {_torch(runs[-1])})"
            for kind, runs in confirmed.items()
            if runs and runs[-1].change == "fell"
        ),
        headline="No newest run fell below the one before it by more than their intervals."
        if any(len(runs) > 1 for runs in confirmed.values())
        else "No workload has run twice on one machine: there is nothing to compare yet.",
        trend=_trend({kind: runs for kind, runs in confirmed.items() if runs}),
        table=_table([run for runs in kinds.values() for run in runs]),
        unread=tuple(unread),
    )


def _by_kind(results: Iterable[TuningResult]) -> dict[Kind, list[_Run]]:
    """Oldest run first within each."""
    kinds: dict[Kind, list[TuningResult]] = {}
    for result in sorted(results, key=lambda one: one.created):
        step, cores = _step_text(result.config.workload), result.host.num_usable_cores
        kinds.setdefault(Kind(step, result.device.name, cores, result.config.objective), []).append(result)
    return {kind: _runs(found) for kind, found in sorted(kinds.items())}


def _runs(results: Sequence[TuningResult]) -> list[_Run]:
    runs, before = list[_Run](), None
    for result in results:
        runs.append(_Run(result=result, before=before, is_newest=result is results[-1]))
        before = result.best or before
    return runs


def _step_text(spec: WorkloadSpec) -> str:
    """What makes a training step of its own, as far as it is not the default."""
    size = "" if spec.image_size is None else f", {spec.image_size} pixels"
    classes = "" if spec.num_classes is None else f", {counted(spec.num_classes, 'class')}"
    optimizer = "" if spec.optimizer == WorkloadSpec().optimizer else f", {spec.optimizer}"
    return f"{spec.title}{size}{classes}{optimizer}"


def _torch(run: _Run) -> str:
    return run.result.host.torch or MISSING


def _score(run: _Run) -> str:
    return MISSING if run.best is None else score_text(run.best.picked_by.value, run.best.picked_by.objective)


def _trend(kinds: dict[Kind, list[_Run]]) -> Figure:
    return Figure(
        key="trend",
        title="The best over time",
        reading="Each panel is one workload on one kind of machine. A step down that is larger than the intervals is a "
        "regression of the machine, of torch or of data loading.",
        source="Confirmed throughput of the best configuration of each run, with its 95% interval from the spread "
        "between runs; samples per joule where that was the objective.",
        panels=tuple(_panel(kind, runs) for kind, runs in kinds.items()),
        missing=() if kinds else ("No result with a confirmed answer.",),
    )


def _panel(kind: Kind, runs: Sequence[_Run]) -> Panel:
    scores, dates = [run.best.picked_by for run in runs if run.best], [run.result.created for run in runs]
    words = [
        f"{run.when}, {text(run.result.host.hostname)}, torch {text(_torch(run))}"
        f"<br>{settings_text(run.best.config)}<br>{_score(run)}"
        for run in runs
        if run.best
    ]
    look: Trace = {"mode": "lines+markers", "marker": {"color": BLUE}}
    look |= {"error_y": error_bars([score.half_width for score in scores])}
    trace = points("best", dates, [score.value for score in scores], words, **look)
    # Around a single date plotly.js would set its ticks at fractions of a second.
    alone = {"tickmode": "array", "tickvals": dates, "tickformat": "%H:%M<br>%b %-d, %Y"} if len(dates) == 1 else {}
    layout = {"xaxis": axis("", type="date", **alone), "yaxis": score_axis(kind.objective), "showlegend": False}
    return Panel(title=kind.text, data=(trace,), layout=layout, height_px=280)


def _table(runs: Sequence[_Run]) -> SortedTable:
    """Throughput of every run; samples per joule where one looked for that."""
    shown = [
        objective
        for objective in OBJECTIVES
        if objective == "samples-per-s" or any(run.result.config.objective == objective for run in runs)
    ]
    columns = (*_BEFORE, *(column for objective in shown for column in _score_columns(objective)), *_BEHIND)
    return sorted_table(columns, runs, lambda run: run.change, lambda run: run.is_newest)


def _score_columns(objective: Objective) -> tuple[Column[_Run], Column[_Run]]:
    """Every winner has a throughput, one that was picked for its samples per joule those as well."""

    def found(run: _Run, figure: str) -> float | None:
        known = () if run.best is None else (run.best.throughput, run.best.picked_by)
        return next((getattr(score, figure) for score in known if score.objective == objective), None)

    unit, half = SCORE_UNITS[objective], "±" if objective == "samples-per-s" else "± of it"
    return (
        Column(unit, lambda run: found(run, "value"), lambda value: score_text(value, objective)),
        Column(half, lambda run: found(run, "half_width_fraction"), lambda value: percent_text(value, 1)),
    )


_BEFORE = (
    Column[_Run]("when (UTC)", lambda run: run.when),
    Column[_Run]("workload", lambda run: run.result.config.workload.title),
    Column[_Run](
        "machine", lambda run: f"{run.result.device.name}, {counted(run.result.host.num_usable_cores, 'core')}"
    ),
)
_BEHIND = (
    Column[_Run]("since the run before", lambda run: run.departure and f"{run.departure}, {run.change}"),
    Column[_Run]("over the baseline", lambda run: run.best.gain if run.best else None, ratio_text),
    Column[_Run]("of compute-only", lambda run: run.best.compute_fraction if run.best else None, percent_text),
    Column[_Run]("configuration", lambda run: settings_text(run.best.config) if run.best else "not confirmed"),
    Column[_Run]("host", lambda run: run.result.host.hostname),
    Column[_Run]("torch", lambda run: run.result.host.torch),
)
