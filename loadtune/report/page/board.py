"""Many results on one page: machines × workloads × dates, trends, and what fell. Pure.

In: `TuningResult`s. Out: a `Board`. Runs compare by what they looked for, samples/s or samples per joule, where
workload, device and the number of usable cores are the same too. Hosts may differ, as containers change their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadtune.records.config import OBJECTIVES, SCORE_UNITS, Objective, WorkloadSpec
from loadtune.records.result import TuningResult, Winner
from loadtune.report.page import figure as draw
from loadtune.report.page.figure import BLUE, Figure, Panel
from loadtune.report.page.table import Cell, Row, SortedTable, number
from loadtune.report.wording import score_text, settings_text
from loadtune.units import MISSING, counted, percent_text, ratio_text

Kind = tuple[str, Objective]
"""What has to be the same for two runs to compare, in words, and what both looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    result: TuningResult
    before: Winner | None
    """Of the last confirmed run of its kind before it. None: there is none."""

    @property
    def when(self) -> str:
        return self.result.created[:16].replace("T", " ")

    @property
    def score(self) -> str:
        best = self.result.best
        return MISSING if best is None else score_text(best.picked_by.value, self.result.config.objective)

    @property
    def change(self) -> Literal["fell", "rose", "same", "first"]:
        """A difference is one where the intervals do not overlap; without an interval nothing can be told apart."""
        if self.result.best is None or self.before is None:
            return "first"
        old, new = self.before.picked_by, self.result.best.picked_by
        if old.low is None or old.high is None or new.low is None or new.high is None:
            return "same"
        return "rose" if new.low > old.high else "fell" if new.high < old.low else "same"

    @property
    def departure(self) -> str | None:
        """``-3.1%``, in what both were picked by."""
        if self.result.best is None or self.before is None:
            return None
        return f"{self.result.best.picked_by.value / self.before.picked_by.value - 1:+.1%}"


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
    kinds = dict[Kind, list[_Run]]()
    for result in sorted(results, key=lambda one: one.created):
        runs = kinds.setdefault((_kind_text(result), result.config.objective), [])
        before = next((run.result.best for run in reversed(runs) if run.result.best is not None), None)
        runs.append(_Run(result=result, before=before))
    kinds = dict(sorted(kinds.items()))
    confirmed = {kind: [run for run in runs if run.result.best is not None] for kind, runs in kinds.items()}
    regressions = list[str]()
    for (words, _), runs in confirmed.items():
        if len(runs) > 1 and runs[-1].change == "fell":
            old, new = runs[-2:]
            versions = f"torch {old.result.host.torch or MISSING} → {new.result.host.torch or MISSING}"
            scores = f"{new.score} on {new.when}, {old.score} on {old.when}"
            regressions.append(f"{words}: {scores} ({new.departure}, {versions})")
    panels = tuple(_panel(kind, runs) for kind, runs in confirmed.items() if runs)
    return Board(
        title="Benchmark board",
        subtitle=f"{counted(len(results), 'result')}, {sum(map(len, confirmed.values()))} with a confirmed answer",
        regressions=tuple(regressions),
        headline="No newest run fell below the one before it by more than their intervals."
        if any(len(runs) > 1 for runs in confirmed.values())
        else "No workload has run twice on one machine: there is nothing to compare yet.",
        trend=Figure(
            key="trend",
            title="The best over time",
            reading="Each panel is one workload on one kind of machine. A step down that is larger than the intervals "
            "is a regression of the machine, of torch or of data loading.",
            source="Confirmed throughput of the best configuration of each run, with its 95% interval from the spread "
            "between runs; samples per joule where that was the objective.",
            panels=panels,
            missing=() if panels else ("No result with a confirmed answer.",),
        ),
        table=_table([(run, run is runs[-1]) for runs in kinds.values() for run in runs]),
        unread=tuple(unread),
    )


def _kind_text(result: TuningResult) -> str:
    """What makes a training step of its own, as far as it is not the default, and the kind of machine."""
    spec, plain = result.config.workload, WorkloadSpec()
    size = "" if spec.image_size is None else f", {spec.image_size} pixels"
    classes = "" if spec.num_classes is None else f", {counted(spec.num_classes, 'class')}"
    optimizer = "" if spec.optimizer == plain.optimizer else f", {spec.optimizer}"
    by_energy = ", for samples per joule" if result.config.objective == "samples-per-joule" else ""
    return f"{spec.title}{size}{classes}{optimizer}{by_energy} on {_machine(result)}"


def _machine(result: TuningResult) -> str:
    return f"{result.device.name}, {counted(result.host.num_usable_cores, 'core')}"


def _panel(kind: Kind, runs: Sequence[_Run]) -> Panel:
    winners = [(run, run.result.best) for run in runs if run.result.best is not None]
    dates, scores = [run.result.created for run in runs], [best.picked_by for _, best in winners]
    words = [
        f"{run.when}, {draw.text(run.result.host.hostname)}, torch {draw.text(run.result.host.torch or MISSING)}"
        f"<br>{settings_text(best.config)}<br>{run.score}"
        for run, best in winners
    ]
    look = {"mode": "lines+markers", "marker": {"color": BLUE}, "error_y": draw.error_bars(scores)}
    trace = draw.points("best", dates, [score.value for score in scores], words, **look)
    # Around a single date plotly.js would set its ticks at fractions of a second.
    alone = {"tickmode": "array", "tickvals": dates, "tickformat": "%H:%M<br>%b %-d, %Y"} if len(dates) == 1 else {}
    layout = {"xaxis": draw.axis("", type="date", **alone), "yaxis": draw.score_axis(kind[1]), "showlegend": False}
    return Panel(title=kind[0], data=(trace,), layout=layout, height_px=280)


def _table(runs: Sequence[tuple[_Run, bool]]) -> SortedTable:
    """Throughput of every run; samples per joule where one looked for that. The newest of each kind is marked."""
    known = {run.result.config.objective for run, _ in runs} | {"samples-per-s"}
    objectives = [objective for objective in OBJECTIVES if objective in known]
    return SortedTable(
        rows=[Row(outcome=run.change, by_column=_cells(run, objectives), is_best=newest) for run, newest in runs]
    )


def _cells(run: _Run, objectives: Sequence[Objective]) -> dict[str, Cell]:
    result, best = run.result, run.result.best
    cells = {
        "when (UTC)": Cell(run.when),
        "workload": Cell(result.config.workload.title),
        "machine": Cell(_machine(result)),
    }
    for objective in objectives:
        by_speed, unit = objective == "samples-per-s", SCORE_UNITS[objective]
        found = None if best is None else best.throughput if by_speed else best.samples_per_joule
        share = None if found is None or found.half_width is None else found.half_width / found.value
        cells[unit] = Cell(MISSING) if found is None else Cell(score_text(found.value, objective), found.value)
        cells["±" if by_speed else "± of it"] = number(share, lambda half: percent_text(half, 1))
    return cells | {
        "since the run before": Cell(f"{run.departure}, {run.change}" if run.departure else MISSING),
        "over the baseline": number(best.gain.value if best and best.gain else None, ratio_text),
        "of compute-only": number(None if best is None else best.compute_fraction, percent_text),
        "configuration": Cell("not confirmed" if best is None else settings_text(best.config)),
        "host": Cell(result.host.hostname),
        "torch": Cell(result.host.torch or MISSING),
    }
