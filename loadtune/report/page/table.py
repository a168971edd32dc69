"""All trials as rows that sort and filter: what is shown of a cell, and what it sorts by. In: a `TuningResult`."""

from dataclasses import dataclass
from typing import Literal

from loadtune.records import Measurement, Trial, TuningResult
from loadtune.report.page.measured import peak_bytes
from loadtune.report.wording import FAILURE_TEXT, recipe_text
from loadtune.units import MISSING, bytes_text, efficiency_text, number_text, percent_text, seconds_text, watts_text

Outcome = Literal["measured", "failed", "not run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    text: str
    order: float | None = None
    """A number to sort by, in one unit for the whole column. None: the text sorts; missing figures come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    outcome: Outcome
    cells: tuple[Cell, ...]
    is_best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTable:
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


_SETTINGS = (
    "trial",
    "from",
    "batch",
    "workers",
    "pinned",
    "prefetch",
    "precision",
)
_FIGURES = (
    "samples/s",
    "±",
    "blocked in next(loader)",
    "GPU utilization",
    "SM activity",
    "CPU utilization",
    "power",
    "peak memory",
    "start of workers",
)
_EFFICIENCY = "samples/J"
"""Where it was looked for."""
_BEHIND = ("outcome", "recipe")


def trial_table(result: TuningResult) -> TrialTable:
    best = None if result.best is None else result.best.config
    by_energy = result.config.objective == "samples-per-joule"
    rows = tuple(
        Row(
            outcome=outcome_of(trial),
            cells=(
                *_settings(trial),
                *([_efficiency(trial.measurement)] if by_energy else []),
                *_figures(trial.measurement, result.device.kind),
                Cell(text=_words(trial)),
                Cell(text=recipe_text(trial.config.recipe)),
            ),
            is_best=trial.config == best,
        )
        for trial in result.trials
    )
    columns = (*_SETTINGS, *([_EFFICIENCY] if by_energy else []), *_FIGURES, *_BEHIND)
    return TrialTable(columns=columns, rows=rows)


def outcome_of(trial: Trial) -> Outcome:
    if trial.measurement is not None:
        return "measured"
    return "failed" if trial.failure is not None else "not run"


def _settings(trial: Trial) -> tuple[Cell, ...]:
    loader = trial.config.loader
    prefetch = Cell(text=str(loader.prefetch_factor), order=loader.prefetch_factor)
    return (
        Cell(text=str(trial.number), order=trial.number),
        Cell(text=trial.origin),
        Cell(text=f"{loader.batch_size:,}", order=loader.batch_size),
        Cell(text=str(loader.num_workers), order=loader.num_workers),
        Cell(text="yes" if loader.pin_memory else "no"),
        prefetch if loader.num_workers else Cell(text=MISSING),
        Cell(text=trial.config.precision),
    )


def _efficiency(found: Measurement | None) -> Cell:
    value = None if found is None else found.samples_per_joule
    return Cell(text=efficiency_text(value), order=value)


def _figures(found: Measurement | None, device_kind: str) -> tuple[Cell, ...]:
    if found is None:
        return (Cell(text=MISSING),) * len(_FIGURES)
    memory, half = peak_bytes(found, device_kind), found.half_width_fraction
    seen = found.telemetry
    busy, activity, cpu, power = (
        None if seen is None else getattr(seen, figure)
        for figure in (
            "gpu_utilization_fraction",
            "gpu_sm_activity_fraction",
            "cpu_utilization_fraction",
            "gpu_power_w",
        )
    )
    return (
        Cell(text=number_text(found.samples_per_s), order=found.samples_per_s),
        Cell(text=percent_text(half, 1), order=half),
        Cell(text=percent_text(found.wait_fraction), order=found.wait_fraction),
        Cell(text=percent_text(busy), order=busy),
        Cell(text=percent_text(activity), order=activity),
        Cell(text=percent_text(cpu), order=cpu),
        Cell(text=watts_text(power), order=power),
        Cell(text=bytes_text(memory), order=memory),
        Cell(text=seconds_text(found.first_batch_s), order=found.first_batch_s),
    )


def _words(trial: Trial) -> str:
    if trial.failure is not None:
        return f"{FAILURE_TEXT[trial.failure.kind]} ({trial.failure.phase}): {trial.failure.message}"
    return "measured, noisy" if trial.measurement is not None and trial.measurement.noisy else "measured"
