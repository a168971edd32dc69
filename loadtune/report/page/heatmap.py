"""What was looked for over batch size and workers, a panel for each precision and way of pinning.

In: a `TuningResult`. Out: a `Figure`.
"""

from collections.abc import Sequence

from loadtune.records import PRECISIONS, SCORE_UNITS, Precision, Trial, TuningResult
from loadtune.report.page.figure import RED, SCALE, Figure, Panel, Trace, axis, points, text
from loadtune.report.page.measured import Timed, hover, timed_trials
from loadtune.report.wording import short_score_text

_WRITTEN_CELLS = 6
"""Columns up to which a cell is wide enough for its figure, on a phone's width too."""


def heatmap(result: TuningResult) -> Figure:
    timed = timed_trials(result)
    top = max((one.score.value for one in timed), default=0.0)
    found = [(precision, pinned) for precision in PRECISIONS for pinned in (False, True)]
    panels = [_panel(result, precision, pinned, top) for precision, pinned in found if timed]
    return Figure(
        key="surface",
        title="Batch size × workers",
        reading="One scale of sizes and colours for all panels, so they compare. An empty cell was not tried: the "
        "search spends its trials where it expects most. Crosses failed, open diamonds were not run.",
        source="Trials of the search; of those that differ in other settings alone, the best.",
        panels=tuple(panel for panel in panels if panel is not None),
        missing=() if timed else ("No trial was measured.",),
    )


def _panel(result: TuningResult, precision: Precision, pinned: bool, top: float) -> Panel | None:
    """None: nothing was measured here."""
    here = [one for one in timed_trials(result) if _is_here(one.trial, precision, pinned)]
    if not here:
        return None
    others = [t for t in result.trials if t.measurement is None and _is_here(t, precision, pinned)]
    batches = sorted({trial.config.batch_size for trial in result.trials})
    workers = sorted({trial.config.loader.num_workers for trial in result.trials})
    cells = _cells(result, here, batches, workers, top)
    return Panel(
        title=f"{precision}, {'pinned' if pinned else 'not pinned'}",
        data=(cells, *_marks(others)),
        layout={
            "xaxis": _categories("workers", workers),
            "yaxis": _categories("batch size", batches),
            "showlegend": bool(others),
        },
        height_px=max(260, 130 + 34 * len(batches)),
    )


def _is_here(trial: Trial, precision: Precision, pinned: bool) -> bool:
    return trial.config.precision == precision and trial.config.loader.pin_memory == pinned


def _categories(title: str, values: Sequence[int]) -> Trace:
    return axis(title, type="category", categoryorder="array", categoryarray=[str(value) for value in values])


def _cells(result: TuningResult, here: list[Timed], batches: list[int], workers: list[int], top: float) -> Trace:
    objective = result.config.objective
    best: dict[tuple[int, int], Timed] = {}
    for one in sorted(here, key=lambda one: one.score.value):
        best[one.config.batch_size, one.config.loader.num_workers] = one
    grid = [[best.get((batch, number)) for number in workers] for batch in batches]
    return {
        "type": "heatmap",
        "x": [str(number) for number in workers],
        "y": [str(batch) for batch in batches],
        "z": [[None if one is None else one.score.value for one in row] for row in grid],
        "text": [["" if one is None else short_score_text(one.score.value, objective) for one in row] for row in grid],
        "customdata": [
            ["" if one is None else hover(result, one.config, one.measurement) for one in row] for row in grid
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
        "texttemplate": "%{text}" if len(workers) <= _WRITTEN_CELLS else "",
        "hoverongaps": False,
        "zmin": 0,
        "zmax": top,
        "colorscale": SCALE,
        "xgap": 2,
        "ygap": 2,
        "colorbar": {"thickness": 10, "title": {"text": SCORE_UNITS[objective]}, "tickformat": ",~r"},
        "name": "measured",
    }


def _marks(others: list[Trial]) -> list[Trace]:
    kinds = (("failed", "x", RED, [(t, t.failure.message) for t in others if t.failure is not None]),)
    return [
        points(
            name,
            [str(trial.config.loader.num_workers) for trial, _ in trials],
            [str(trial.config.batch_size) for trial, _ in trials],
            [f"trial {trial.number}, {name}<br>{text(why[:200])}" for trial, why in trials],
            marker={"symbol": symbol, "color": colour, "size": 10},
        )
        for name, symbol, colour, trials in kinds
        if trials
    ]
