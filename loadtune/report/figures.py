"""The winners beside the user's own configuration, setting by setting and figure by figure.

In: a `TuningResult` with a confirmed winner. Out: a `Table` of strings. Only figures of the confirmation are shown.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtune.records import Finalist, Measurement, Telemetry, TrialConfig, TuningResult, Winner
from loadtune.records.confirmed import compute_fraction
from loadtune.report.utilization import mean_known, utilization_rows
from loadtune.report.wording import PRECISION_TEXT
from loadtune.units import MISSING, bytes_text, efficiency_text, percent_text, rate_text, ratio_text, seconds_text


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
    """None: the user's own configuration."""
    finalist: Finalist | None
    """None: it was not confirmed."""
    assumed: tuple[str, ...]
    compute_fraction: float | None

    def assumed_mark(self, setting: str) -> str:
        return " (assumed)" if setting in self.assumed else ""


def figures(result: TuningResult) -> Table | None:
    """None: nothing was confirmed, so there is nothing to set side by side."""
    columns = _columns(result)
    if not columns:
        return None
    rows = [(name, *(cell(column) for column in columns)) for name, cell in _rows(columns, result.device.kind)]
    title = "Measured once, not confirmed" if result.best and result.best.measured_once else "Confirmed"
    return Table(title=title, columns=("", *(column.title for column in columns)), rows=tuple(rows))


def _columns(result: TuningResult) -> list[_Column]:
    named = [("best", result.best), ("best at your batch", result.best_at_your_batch)]
    columns = [_winner_column(result, title, winner) for title, winner in named if winner is not None]
    if columns and result.yours is not None:
        columns.append(_your_column(result, result.yours))
    return columns


def _winner_column(result: TuningResult, title: str, winner: Winner) -> _Column:
    return _Column(
        title=title,
        config=winner.config,
        winner=winner,
        finalist=_finalist(result, winner.config),
        assumed=(),
        compute_fraction=winner.compute_fraction,
    )


def _your_column(result: TuningResult, yours: TrialConfig) -> _Column:
    finalist = _finalist(result, yours)
    return _Column(
        title="yours",
        config=yours,
        winner=None,
        finalist=finalist,
        assumed=result.assumed,
        compute_fraction=_compute_fraction(result, finalist),
    )


def _finalist(result: TuningResult, config: TrialConfig) -> Finalist | None:
    return next((finalist for finalist in result.finalists if finalist.config == config and finalist.runs), None)


def _compute_fraction(result: TuningResult, finalist: Finalist | None) -> float | None:
    """Only where the very same size and recipe was timed without a loader: nothing is interpolated here."""
    return None if finalist is None else compute_fraction(result.compute_points, finalist)


_Cell = Callable[[_Column], str]


def _rows(columns: Sequence[_Column], device_kind: str) -> list[tuple[str, _Cell]]:
    on_gpu = device_kind != "cpu"
    return [
        ("batch_size", lambda c: f"{c.config.batch_size}{c.assumed_mark('batch_size')}"),
        ("num_workers", lambda c: f"{c.config.loader.num_workers}{c.assumed_mark('num_workers')}"),
        ("pin_memory", lambda c: f"{c.config.loader.pin_memory}{c.assumed_mark('pin_memory')}"),
        ("prefetch_factor", lambda c: str(c.config.loader.prefetch_factor) if c.config.loader.num_workers else MISSING),
        ("precision", lambda c: f"{PRECISION_TEXT[c.config.precision]}{_on_own_line(c.assumed_mark('precision'))}"),
        ("memory format", lambda c: c.config.recipe.memory_format),
        ("fused optimizer", lambda c: "yes" if c.config.recipe.fused_optimizer else "no"),
        *([("torch.compile", _compiled)] if any(column.config.recipe.compile for column in columns) else []),
        ("throughput", _throughput),
        ("speed-up", _speedup),
        *_efficiency_rows(columns),
        ("of compute-only rate", lambda c: percent_text(c.compute_fraction)),
        ("data wait", lambda c: percent_text(c.finalist.wait_fraction if c.finalist else None)),
        *_utilization(columns, device_kind),
        ("peak GPU memory" if on_gpu else "peak RAM", _peak_gpu_memory if on_gpu else _peak_ram),
        ("first batch", lambda c: seconds_text(mean_known(run.first_batch_s for run in _runs(c)))),
    ]


def _compiled(column: _Column) -> str:
    return "yes" if column.config.recipe.compile else "no"


def _throughput(column: _Column) -> str:
    known = column.winner or column.finalist
    if known is None:
        return "not measured"
    half_width = known.half_width_fraction
    interval = f"± {rate_text(known.samples_per_s * half_width)}" if half_width is not None else "no interval"
    if len(_runs(column)) == 1:
        interval += ", one run"
    return f"{rate_text(known.samples_per_s)}\n{interval}"


def _efficiency_rows(columns: Sequence[_Column]) -> list[tuple[str, _Cell]]:
    """Where the run looked for samples per joule."""
    if not any(column.winner and column.winner.efficiency for column in columns):
        return []
    return [("samples per joule", _efficiency), ("gain in that", _efficiency_gain)]


def _efficiency(column: _Column) -> str:
    found = column.winner.efficiency if column.winner else None
    if found is None:
        return efficiency_text(mean_known(run.samples_per_joule for run in _runs(column)))
    half_width = found.half_width_fraction
    interval = "no interval" if half_width is None else f"± {percent_text(half_width, 1)}"
    return f"{efficiency_text(found.samples_per_joule)}\n{interval}"


def _efficiency_gain(column: _Column) -> str:
    found = column.winner.efficiency if column.winner else None
    if found is None or found.gain is None:
        return MISSING
    if found.gain_low is None or found.gain_high is None:
        return f"{ratio_text(found.gain)}, too few\nruns to be sure"
    if found.gain_low == found.gain_high:  # over itself: nothing was compared
        return "yours is the best"
    told = ratio_text(found.gain) if not found.gain_low <= 1.0 <= found.gain_high else "no difference"
    return f"{told}\n({ratio_text(found.gain_low)} to {ratio_text(found.gain_high)})"


def _speedup(column: _Column) -> str:
    """The interval decides what may be said, and `Winner.different` has read it already."""
    winner = column.winner
    if winner is None or winner.speedup is None:
        return MISSING
    if winner.different is None:
        return f"{ratio_text(winner.speedup)}, too few\nruns to be sure"
    if winner.speedup_low == winner.speedup_high:  # over itself: nothing was compared
        return "yours is the best"
    interval = f"({ratio_text(winner.speedup_low)} to {ratio_text(winner.speedup_high)})"
    return f"{ratio_text(winner.speedup) if winner.different else 'no difference'}\n{interval}"


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


def _on_own_line(mark: str) -> str:
    return f"\n{mark.strip()}" if mark else ""
