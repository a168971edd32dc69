"""Tables that sort and filter: what is shown of a cell, what it sorts by, and the table of all trials."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loadtune.records.measurement import Measurement
from loadtune.records.result import Trial, TuningResult
from loadtune.records.telemetry import Telemetry
from loadtune.report.page.figure import peak_bytes
from loadtune.report.wording import FAILURE_TEXT, recipe_text
from loadtune.units import MISSING, bytes_text, efficiency_text, number_text, percent_text, seconds_text, watts_text


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    order: float | None = None
    """A number to sort by, in one unit for the whole column. None: the text sorts; missing figures come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    outcome: str
    """One of a few, to filter by."""
    by_column: dict[str, Cell]
    is_best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedTable:
    rows: Sequence[Row]
    """All with the same columns."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.rows[0].by_column) if self.rows else ()


def number(value: float | None, shown: Callable[[Any], str] = str) -> Cell:
    return Cell(MISSING) if value is None else Cell(shown(value), value)


def trial_table(result: TuningResult) -> SortedTable:
    best = None if result.best is None else result.best.config
    rows = [
        Row(
            outcome="measured" if trial.failure is None else "failed",
            by_column=_trial_cells(result, trial),
            is_best=trial.config == best,
        )
        for trial in result.trials
    ]
    return SortedTable(rows=rows)


def _trial_cells(result: TuningResult, trial: Trial) -> dict[str, Cell]:
    config, run = trial.config, trial.measurement
    loader, seen = config.loader, None if run is None else run.telemetry
    said = "measured, noisy" if run is not None and run.noisy else "measured"
    if trial.failure is not None:
        said = f"{FAILURE_TEXT[trial.failure.kind]} ({trial.failure.phase}): {trial.failure.message}"

    def measured(value: Callable[[Measurement], float | None], shown: Callable[[float], str]) -> Cell:
        return number(None if run is None else value(run), shown)

    def sampled(value: Callable[[Telemetry], float | None], shown: Callable[[float], str] = percent_text) -> Cell:
        return number(None if seen is None else value(seen), shown)

    by_energy = result.config.objective == "samples-per-joule"
    return {
        "trial": number(trial.number),
        "from": Cell(trial.origin),
        "batch": number(config.batch_size, "{:,}".format),
        "workers": number(loader.num_workers),
        "pinned": Cell("yes" if loader.pin_memory else "no"),
        "prefetch": number(loader.prefetch_factor if loader.num_workers else None),
        "precision": Cell(config.precision),
        **({"samples/J": measured(lambda run: run.samples_per_joule, efficiency_text)} if by_energy else {}),
        "samples/s": measured(lambda run: run.samples_per_s, number_text),
        "±": measured(lambda run: run.half_width_fraction, lambda half: percent_text(half, 1)),
        "blocked in next(loader)": measured(lambda run: run.wait_fraction, percent_text),
        "GPU utilization": sampled(lambda seen: seen.gpu_utilization_fraction),
        "SM activity": sampled(lambda seen: seen.gpu_sm_activity_fraction),
        "CPU utilization": sampled(lambda seen: seen.cpu_utilization_fraction),
        "power": sampled(lambda seen: seen.gpu_power_w, watts_text),
        "peak memory": measured(lambda run: peak_bytes(run, result.device.kind), bytes_text),
        "start of workers": measured(lambda run: run.first_batch_s, seconds_text),
        "outcome": Cell(said),
        "recipe": Cell(recipe_text(config.recipe)),
    }
