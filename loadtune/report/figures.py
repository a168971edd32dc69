"""The winners beside the baseline (the user's own settings), with every figure of them that was measured.

In: a `TuningResult` with a confirmed winner. Out: a `Table` of strings. Only figures of the confirmation are shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtune.records.answer import compute_fraction, finalist_of
from loadtune.records.config import TrialConfig
from loadtune.records.interval import Interval, around
from loadtune.records.measurement import sample_tokens
from loadtune.records.result import Finalist, TuningResult, Winner
from loadtune.report.machine import mean_known, utilization_cells
from loadtune.report.wording import PRECISION_TEXT
from loadtune.units import MISSING, bytes_text, number_text, percent_text, ratio_text, seconds_text

_Cells = dict[str, str | None]
"""A configuration's figures by the name of their row. None: not measured; a row of which nothing was is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Strings in rows; the first column names the row. Cells may hold a line break."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and whole lines under it, of words or of code."""

    title: str
    lines: tuple[str, ...]
    note: str = ""
    """A sentence between the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a command prints: tables, then what is said of them."""

    title: str = ""
    tables: tuple[Table, ...]
    sections: tuple[Section, ...]


def best_and_baseline(result: TuningResult) -> Table | None:
    """None: nothing was confirmed."""
    at_size = f"best at batch {result.config.yours.batch_size}"
    winners = {title: each for title, each in (("best", result.best), (at_size, result.best_at_your_batch)) if each}
    return figures(result, winners) if winners else None


def figures(result: TuningResult, winners: Mapping[str, Winner]) -> Table:
    """A column for each, by its title, and for the baseline; every row that was measured."""
    columns = {
        title: _cells(result, each.config, each) for title, each in winners.items() if each.config != result.yours
    }
    if result.yours is not None:
        kept = next((each for each in winners.values() if each.config == result.yours), None)
        columns["baseline"] = _cells(result, result.yours, kept)
    names = dict.fromkeys(name for cells in columns.values() for name, cell in cells.items() if cell is not None)
    rows = tuple((name, *(cells.get(name) or MISSING for cells in columns.values())) for name in names)
    once = result.best is not None and result.best.measured_once
    title = "Measured once, not confirmed" if once else "Confirmed"
    return Table(title=title, columns=("", *columns), rows=rows)


def _cells(result: TuningResult, config: TrialConfig, winner: Winner | None) -> _Cells:
    """``winner``: None for the baseline, where something is better."""
    finalist = finalist_of(result, config)
    share = winner.compute_fraction if winner else None
    if config == result.yours and finalist is not None:
        share = compute_fraction(result.compute_points, config, finalist.samples_per_s)
    runs = finalist.runs if finalist else ()
    telemetry = [run.telemetry for run in runs if run.telemetry is not None]
    ram, memory = [each.bench_rss_bytes for each in telemetry], [run.peak_allocated_bytes for run in runs]
    on_cpu = result.device.kind == "cpu"
    highest = max((each for each in (ram if on_cpu else memory) if each is not None), default=None)
    return {
        **_settings(config, result.assumed if config == result.yours else ()),
        **_speed(result, winner, finalist),
        **_epoch(result, config, finalist),
        "share of compute-only": percent_text(share),
        "blocked in next(loader)": percent_text(finalist.wait_fraction if finalist else None),
        **utilization_cells(telemetry, result.device.kind),
        "peak RAM" if on_cpu else "peak GPU memory": bytes_text(highest),
    }


def _settings(config: TrialConfig, assumed: Sequence[str]) -> _Cells:
    loader, recipe, own = config.loader, config.recipe, PRECISION_TEXT["own"]
    settings = {
        "batch_size": str(loader.batch_size),
        "num_workers": str(loader.num_workers),
        "pin_memory": str(loader.pin_memory),
        "precision": own if config.precision == "own" else config.precision,
        "memory format": own if config.precision == "own" else recipe.memory_format,
        "fused optimizer": "yes" if recipe.fused_optimizer else "no",
        "torch.compile": "yes" if recipe.compile else "no",
        "prefetch_factor": str(loader.prefetch_factor),
        "in_order": str(loader.in_order),
    }
    return {name: f"{value} (assumed)" if name in assumed else value for name, value in settings.items()}


def _speed(result: TuningResult, winner: Winner | None, finalist: Finalist | None) -> _Cells:
    """Samples per joule where the run looked for those. Tokens only where samples are text, padding included: those of
    larger batches are padded to more."""
    known, runs, cells = winner or finalist, finalist.runs if finalist else (), _Cells()
    if result.config.objective == "samples-per-joule":
        found = winner.samples_per_joule if winner else None
        mean = number_text(mean_known(run.samples_per_joule for run in runs))
        cells["samples/J (95% CI)"] = mean if found is None else _with_interval(found, len(runs))
        cells["gain (99% CI)"] = _gain(winner.efficiency_gain) if winner and found is not None else None
    rate = None if known is None else around(known.samples_per_s, known.half_width_fraction)
    tokens = sample_tokens([window for run in runs for window in run.windows])
    return cells | {
        "samples/s (95% CI)": "not measured" if rate is None else _with_interval(rate, len(runs)),
        "speed-up (99% CI)": _gain(winner.speedup if winner else None),
        "tokens/s": None if rate is None or tokens is None else number_text(rate.value * tokens),
    }


def _with_interval(found: Interval, num_runs: int) -> str:
    if found.half_width is not None:
        return f"{number_text(found.value)} ± {number_text(found.half_width)}"
    return f"{number_text(found.value)} ({'one run' if num_runs == 1 else 'no interval'})"


def _gain(gain: Interval | None) -> str:
    """``none`` where the 99% interval holds 1."""
    if gain is None:
        return MISSING
    if gain.low is None or gain.high is None:
        return f"{ratio_text(gain.value)} (no interval)"
    if gain.low == gain.high:  # the baseline compared with itself
        return "none"
    return f"{'none' if gain.holds(1.0) else ratio_text(gain.value)} ({gain.low:.2f}–{gain.high:.2f})"


def _epoch(result: TuningResult, config: TrialConfig, finalist: Finalist | None) -> _Cells:
    """Seconds of an epoch, and those of the workers' start, which are in it where they do not outlive it."""
    samples = next((run.epoch_samples for each in result.finalists for run in each.runs if run.epoch_samples), None)
    if samples is None or finalist is None:
        return {}
    cells: _Cells = {f"epoch of {number_text(samples)}": seconds_text(finalist.epoch_s)}
    start_s = mean_known(run.first_batch_s for run in finalist.runs)
    if start_s is None or config.loader.num_workers == 0:
        return cells
    assumed = " (assumed)" if config == result.yours and "persistent_workers" in result.assumed else ""
    how_often = "once" if config.loader.persistent_workers else "each epoch"
    return {**cells, "start of workers": f"{seconds_text(start_s)}, {how_often}{assumed}"}
