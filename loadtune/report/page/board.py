"""Many results on one page: machines × workloads × dates, trends, and what fell. Pure.

In: `TuningResult`s. Out: a `Board`. Runs compare by what they looked for, samples/s or samples per joule, where
workload, device and the number of usable cores are the same too. Hosts may differ, as containers change their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from loadtune.records.config import WorkloadSpec
from loadtune.records.result import TuningResult, Winner
from loadtune.report.page import figure as draw
from loadtune.report.page.figure import BLUE, Figure, Panel
from loadtune.report.tables import Cell, Row, SortedRow, SortedTable, interval_cell, number
from loadtune.report.wording import interval_text, settings_text
from loadtune.units import MISSING, counted, percent_text, ratio_text


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
    ordered = sorted(results, key=lambda one: (_kind(one), one.created))
    kinds = {kind: list(runs) for kind, runs in groupby(ordered, key=_kind)}
    confirmed = {kind: with_best for kind, runs in kinds.items() if (with_best := [r for r in runs if r.best])}
    before = {id(new): old for runs in confirmed.values() for old, new in pairwise(runs)}
    regressions = tuple(
        f"{kind}: {_score(run)} on {_when(run)}, {_score(old)} on {_when(old)} ({change[1]}, torch "
        f"{old.host.torch or MISSING} → {run.host.torch or MISSING})"
        for kind, (*_, run) in confirmed.items()
        if (old := before.get(id(run))) and (change := _since(old, run))[0] == "fell"
    )
    panels = tuple(_panel(kind, runs) for kind, runs in confirmed.items())
    with_energy = any(result.config.objective == "samples-per-joule" for result in results)
    rows = [
        SortedRow(
            outcome=_since(before.get(id(run)), run)[0],
            by_column=_row(before.get(id(run)), run, with_energy=with_energy),
            is_best=run is runs[-1],  # the newest of its kind is marked
        )
        for runs in kinds.values()
        for run in runs
    ]
    return Board(
        title="Benchmark board",
        subtitle=f"{counted(len(results), 'result')}, {sum(map(len, confirmed.values()))} with an answer",
        regressions=regressions,
        headline="No newest run fell below the one before it by more than their intervals."
        if before
        else "No workload has run twice on one machine: there is nothing to compare yet.",
        trend=Figure(
            key="trend",
            title="The best over time",
            reading="The best configuration of each run with its 95% interval, for each workload and kind of machine: "
            "a step down that is larger than the intervals is a regression.",
            panels=panels,
            missing="" if panels else "No result with an answer.",
        ),
        table=SortedTable(rows=rows),
        unread=tuple(unread),
    )


def _kind(result: TuningResult) -> str:
    """What has to be the same for two runs to compare: the training step, the machine and what was looked for."""
    spec, plain = result.config.workload, WorkloadSpec()
    size = "" if spec.image_size is None else f", {spec.image_size} pixels"
    classes = "" if spec.num_classes is None else f", {counted(spec.num_classes, 'class')}"
    optimizer = "" if spec.optimizer == plain.optimizer else f", {spec.optimizer}"
    by_energy = ", for samples per joule" if result.config.objective == "samples-per-joule" else ""
    return f"{spec.title}{size}{classes}{optimizer}{by_energy} on {_machine(result)}"


def _machine(result: TuningResult) -> str:
    return f"{result.device.name}, {counted(result.host.num_usable_cores, 'core')}"


def _when(result: TuningResult) -> str:
    return result.created[:16].replace("T", " ")


def _score(result: TuningResult) -> str:
    return MISSING if result.best is None else interval_text(result.best.picked_by, result.config.objective)


def _since(old: TuningResult | None, new: TuningResult) -> tuple[str, str]:
    """``fell``, ``rose``, ``same`` or ``first``, and by how much, in what both were picked by: ``-3.1%``.

    A difference is one where the intervals do not overlap; without an interval nothing can be told apart.
    """
    if old is None or old.best is None or new.best is None:
        return "first", MISSING
    was, now = old.best.picked_by, new.best.picked_by
    change = f"{now.value / was.value - 1:+.1%}"
    if was.low is None or was.high is None or now.low is None or now.high is None:
        return "same", change
    return "rose" if now.low > was.high else "fell" if now.high < was.low else "same", change


def _panel(kind: str, runs: Sequence[TuningResult]) -> Panel:
    dates, scores = [run.created for run in runs], [run.best.picked_by for run in runs if run.best]
    words = [
        f"{_when(run)}, {draw.text(run.host.hostname)}, torch {draw.text(run.host.torch or MISSING)}<br>"
        f"{_settings(run.best)}<br>{_score(run)}"
        for run in runs
    ]
    look = {"mode": "lines+markers", "marker": {"color": BLUE}, "error_y": draw.error_bars(scores)}
    trace = draw.points("best", dates, [score.value for score in scores], words, **look)
    # Around a single date plotly.js would set its ticks at fractions of a second.
    alone = {"tickmode": "array", "tickvals": dates, "tickformat": "%H:%M<br>%b %-d, %Y"} if len(dates) == 1 else {}
    scale = draw.score_axis(runs[0].config.objective)
    layout = {"xaxis": draw.axis("", type="date", **alone), "yaxis": scale, "showlegend": False}
    return Panel(title=kind, data=(trace,), layout=layout, height_px=280)


def _settings(best: Winner | None) -> str:
    return "not confirmed" if best is None else settings_text(best.config)


def _row(old: TuningResult | None, run: TuningResult, *, with_energy: bool) -> Row:
    best = run.best
    energy = interval_cell(best.samples_per_joule if best else None)
    return {
        "when (UTC)": Cell(_when(run)),
        "workload": Cell(run.config.workload.title),
        "machine": Cell(_machine(run)),
        "samples/s": interval_cell(best.throughput if best else None),
        **({"samples/J": energy} if with_energy else {}),
        "since the run before": Cell(", ".join(reversed(_since(old, run))) if old else MISSING),
        "over the baseline": number(best.gain.value if best and best.gain else None, ratio_text),
        "of compute-only": number(best.compute_fraction if best else None, percent_text),
        "configuration": Cell(_settings(best)),
        "host": Cell(run.host.hostname),
        "torch": Cell(run.host.torch or MISSING),
    }
