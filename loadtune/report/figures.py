"""The winners beside the baseline (the user's own settings), with every figure of them that was measured.

In: a `TuningResult` with a confirmed winner. Out: a `Table` of strings. Only figures of the confirmation are shown.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtune.records import Finalist, Measurement, Telemetry, TrialConfig, TuningResult, Winner, sample_tokens
from loadtune.records.chosen import finalist_of
from loadtune.records.confirmed import compute_fraction
from loadtune.report.utilization import mean_known, utilization_rows
from loadtune.report.wording import memory_format_text, precision_text
from loadtune.units import (
    MISSING,
    bytes_text,
    number_text,
    percent_text,
    ratio_text,
    seconds_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Strings in rows; the first column names the row. Cells may hold a line break."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One configuration of the table."""

    title: str
    config: TrialConfig
    winner: Winner | None
    """None: the baseline, where something is better."""
    finalist: Finalist | None
    """None: it was not confirmed."""
    assumed: tuple[str, ...]
    compute_fraction: float | None

    def assumed_mark(self, setting: str) -> str:
        return " (assumed)" if setting in self.assumed else ""


def figures(result: TuningResult) -> Table | None:
    """Every row that was measured. None: nothing was confirmed."""
    title = "Measured once, not confirmed" if result.best and result.best.measured_once else "Confirmed"
    columns = _columns(result)
    if not columns:
        return None
    rows = [(name, *(cell(column) for column in columns)) for name, cell in _rows(columns, result.device.kind)]
    return Table(title=title, columns=("", *(column.title for column in columns)), rows=tuple(rows))


def _columns(result: TuningResult) -> list[_Column]:
    at_size = f"best at batch {result.config.yours.batch_size}"
    named = [
        (title, winner) for title, winner in (("best", result.best), (at_size, result.best_at_your_batch)) if winner
    ]
    columns = [_winner_column(result, title, winner) for title, winner in named if winner.config != result.yours]
    if named and result.yours is not None:
        kept = next((winner for _, winner in named if winner.config == result.yours), None)
        columns.append(_baseline_column(result, result.yours, kept))
    return columns


def _winner_column(result: TuningResult, title: str, winner: Winner) -> _Column:
    return _Column(
        title=title,
        config=winner.config,
        winner=winner,
        finalist=finalist_of(result, winner.config),
        assumed=(),
        compute_fraction=winner.compute_fraction,
    )


def _baseline_column(result: TuningResult, yours: TrialConfig, kept: Winner | None) -> _Column:
    finalist = finalist_of(result, yours)
    return _Column(
        title="baseline",
        config=yours,
        winner=kept,
        finalist=finalist,
        assumed=result.assumed,
        compute_fraction=None
        if finalist is None
        else compute_fraction(result.compute_points, yours, finalist.samples_per_s),
    )


_Cell = Callable[[_Column], str]


def _rows(columns: Sequence[_Column], device_kind: str) -> list[tuple[str, _Cell]]:
    return [
        ("batch_size", lambda c: f"{c.config.batch_size}{c.assumed_mark('batch_size')}"),
        ("num_workers", lambda c: f"{c.config.loader.num_workers}{c.assumed_mark('num_workers')}"),
        ("pin_memory", lambda c: f"{c.config.loader.pin_memory}{c.assumed_mark('pin_memory')}"),
        ("precision", lambda c: f"{precision_text(c.config.precision)}{c.assumed_mark('precision')}"),
        ("memory format", lambda c: memory_format_text(c.config.recipe)),
        ("fused optimizer", lambda c: "yes" if c.config.recipe.fused_optimizer else "no"),
        ("torch.compile", lambda c: "yes" if c.config.recipe.compile else "no"),
        ("prefetch_factor", lambda c: str(c.config.loader.prefetch_factor)),
        ("in_order", lambda c: str(c.config.loader.in_order)),
        *_objective_rows(columns),
        *_token_rows(columns),
        *_epoch_rows(columns),
        ("share of compute-only", lambda c: percent_text(c.compute_fraction)),
        ("blocked in next(loader)", lambda c: percent_text(c.finalist.wait_fraction if c.finalist else None)),
        *_utilization(columns, device_kind),
        _peak_row(device_kind),
    ]


def _objective_rows(columns: Sequence[_Column]) -> list[tuple[str, _Cell]]:
    """Samples per joule first where the run looked for those."""
    rows: list[tuple[str, _Cell]] = [("samples/s (95% CI)", _rate), ("speed-up (99% CI)", _speedup)]
    if any(column.winner and column.winner.efficiency for column in columns):
        return [("samples/J (95% CI)", _efficiency), ("gain (99% CI)", _efficiency_gain), *rows]
    return rows


def _token_rows(columns: Sequence[_Column]) -> list[tuple[str, _Cell]]:
    """Tokens per second, padding included; none where samples are no text."""
    return [("tokens/s", _tokens)] if any(_sample_tokens(column) is not None for column in columns) else []


def _tokens(column: _Column) -> str:
    known, tokens = column.winner or column.finalist, _sample_tokens(column)
    return MISSING if known is None or tokens is None else number_text(known.samples_per_s * tokens)


def _sample_tokens(column: _Column) -> float | None:
    """In the batches of this configuration: what is padded to the longest has more of them in larger batches."""
    return sample_tokens([window for run in _runs(column) for window in run.windows])


def _epoch_rows(columns: Sequence[_Column]) -> list[tuple[str, _Cell]]:
    """Seconds of an epoch, and those of the workers' start, which are in it where they do not outlive it."""
    samples = next((run.epoch_samples for column in columns for run in _runs(column) if run.epoch_samples), None)
    if samples is None:
        return []
    return [
        (f"epoch of {number_text(samples)}", lambda c: seconds_text(c.finalist.epoch_s if c.finalist else None)),
        ("start of workers", _start),
    ]


def _start(column: _Column) -> str:
    """``2.6 s, once``; a dash where there are no workers."""
    start_s, loader = mean_known(run.first_batch_s for run in _runs(column)), column.config.loader
    if start_s is None or loader.num_workers == 0:
        return MISSING
    how_often = "once" if loader.persistent_workers else "each epoch"
    return f"{seconds_text(start_s)}, {how_often}{column.assumed_mark('persistent_workers')}"


def _peak_row(device_kind: str) -> tuple[str, _Cell]:
    return ("peak RAM", _peak_ram) if device_kind == "cpu" else ("peak GPU memory", _peak_gpu_memory)


def _rate(column: _Column) -> str:
    known = column.winner or column.finalist
    if known is None:
        return "not measured"
    return _with_interval(number_text(known.samples_per_s), known.samples_per_s, known.half_width_fraction, column)


def _efficiency(column: _Column) -> str:
    found = column.winner.efficiency if column.winner else None
    if found is None:
        return number_text(mean_known(run.samples_per_joule for run in _runs(column)))
    value = found.samples_per_joule
    return _with_interval(number_text(value), value, found.half_width_fraction, column)


def _with_interval(text: str, value: float, half_width_fraction: float | None, column: _Column) -> str:
    if half_width_fraction is not None:
        half_width = value * half_width_fraction
        return f"{text} ± {number_text(half_width)}"
    return f"{text} (one run)" if len(_runs(column)) == 1 else f"{text} (no interval)"


def _speedup(column: _Column) -> str:
    winner = column.winner
    return MISSING if winner is None else _gain(winner.speedup, winner.speedup_low, winner.speedup_high)


def _efficiency_gain(column: _Column) -> str:
    found = column.winner.efficiency if column.winner else None
    return MISSING if found is None else _gain(found.gain, found.gain_low, found.gain_high)


def _gain(ratio: float | None, low: float | None, high: float | None) -> str:
    """``none`` where the 99% interval holds 1."""
    if ratio is None:
        return MISSING
    if low is None or high is None:
        return f"{ratio_text(ratio)} (no interval)"
    if low == high:  # the baseline compared with itself
        return "none"
    return f"{'none' if low <= 1.0 <= high else ratio_text(ratio)} ({low:.2f}–{high:.2f})"


def _utilization(columns: Sequence[_Column], device_kind: str) -> list[tuple[str, _Cell]]:
    def over_runs(cell: Callable[[list[Telemetry]], str]) -> _Cell:
        return lambda column: cell(_telemetry(column))

    rows = utilization_rows([_telemetry(column) for column in columns], device_kind)
    return [(name, over_runs(cell)) for name, cell in rows]


def _peak_gpu_memory(column: _Column) -> str:
    return bytes_text(_highest(run.peak_allocated_bytes for run in _runs(column)))


def _peak_ram(column: _Column) -> str:
    return bytes_text(_highest(t.bench_rss_bytes for t in _telemetry(column)))


def _runs(column: _Column) -> tuple[Measurement, ...]:
    return column.finalist.runs if column.finalist else ()


def _telemetry(column: _Column) -> list[Telemetry]:
    return [run.telemetry for run in _runs(column) if run.telemetry is not None]


def _highest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
