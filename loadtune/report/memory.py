"""What fits, as plain data: the ceilings side by side, and memory over batch size for one of them.

In: `MemoryCeiling`. Out: a `Table`, or a `CeilingView`, which `text` renders. A module of its own because a ceiling is
also an answer by itself, without a run around it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from loadtune.records import FitReport, MemoryCeiling
from loadtune.report.figures import Table
from loadtune.report.wording import FAILURE_TEXT, holders_text, limit_text
from loadtune.units import MISSING, bytes_text, counted, departure_text, percent_text, seconds_text

ALLOCATED, RESERVED, BUDGET_END = "█▒│"
"""What a bar is drawn with."""

_COLUMNS = ("batch", "first\nstep", "steady", "reserved", "line\nsays", "off", "re-\ntries", "of the budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRow:
    """One size that was run."""

    cells: tuple[str, ...]
    allocated_fraction: float | None
    """Of the budget, above 1 where it was overrun. None: there is no bar, it did not fit or is not known."""
    reserved_fraction: float | None
    """The same for what the allocator held. None on CPU."""
    mark: str
    """How it failed, or which ceiling it is; mostly empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingView:
    """Memory over batch size in one precision, and what can be said of it."""

    title: str
    columns: tuple[str, ...]
    """One more than a row has cells: the last is of bar and mark."""
    rows: tuple[CurveRow, ...]
    """Smallest size first."""
    lines: tuple[str, ...]


def ceilings_table(ceilings: Iterable[MemoryCeiling], device_kind: str | None) -> Table | None:
    """A row per precision. None: there is no ceiling."""
    rows = tuple(_ceiling_cells(ceiling, device_kind) for ceiling in ceilings)
    columns = ("", "safe\nbatch", "largest\n(hard)", "peak at\nlargest", "kept from more by", "sizes\ntried", "took")
    return Table(title="Memory", columns=columns, rows=rows) if rows else None


def _ceiling_cells(ceiling: MemoryCeiling, device_kind: str | None) -> tuple[str, ...]:
    failed = "" if ceiling.first_failed is None else f"\n({ceiling.first_failed} failed)"
    ooms = counted(ceiling.num_ooms, "OOM") if ceiling.num_ooms else "no OOM"
    predicted = "" if ceiling.verified else "\npredicted"
    return (
        ceiling.precision,
        str(ceiling.safe_batch_size) + predicted,
        str(ceiling.batch_size) + predicted,
        bytes_text(ceiling.peak_bytes),
        limit_text(ceiling.limit, device_kind) + failed,
        f"{ceiling.num_probes}, {ooms}",
        seconds_text(ceiling.seconds),
    )


def ceiling_view(ceiling: MemoryCeiling) -> CeilingView:
    """The curve as measured beside the line, and the line, the budget and who shares it in words."""
    reports = sorted((*ceiling.small_sizes, *ceiling.probes), key=lambda report: report.batch_size)
    lines = (
        *_legend(ceiling),
        *_predicted_words(ceiling),
        *_line_words(ceiling),
        *_budget_words(ceiling),
        *_conf_words(ceiling),
    )
    return CeilingView(
        title=f"Memory over batch size, {ceiling.precision}",
        columns=_COLUMNS,
        rows=tuple(_row(ceiling, report) for report in reports),
        lines=lines,
    )


def _row(ceiling: MemoryCeiling, report: FitReport) -> CurveRow:
    predicted = _by_line(ceiling, report.batch_size)
    off = None if predicted is None or report.peak_bytes is None else report.peak_bytes / predicted - 1
    cells = (
        str(report.batch_size),
        bytes_text(report.first_step_peak_bytes),
        bytes_text(report.steady_peak_bytes),
        bytes_text(report.reserved_peak_bytes),
        bytes_text(predicted),
        departure_text(off),
        _retries(report),
    )
    return CurveRow(
        cells=cells,
        allocated_fraction=_share(report.peak_bytes, ceiling.budget_bytes) if report.fits else None,
        reserved_fraction=_share(report.reserved_peak_bytes, ceiling.budget_bytes) if report.fits else None,
        mark=_mark(ceiling, report),
    )


def _by_line(ceiling: MemoryCeiling, batch_size: int) -> float | None:
    """None also where a line that was drawn for larger sizes says that there is nothing, or less."""
    if ceiling.bytes_per_sample is None or ceiling.fixed_bytes is None:
        return None
    predicted = ceiling.fixed_bytes + ceiling.bytes_per_sample * batch_size
    return predicted if predicted >= 1 else None


def _retries(report: FitReport) -> str:
    if report.num_alloc_retries is None:
        return MISSING
    return f"{report.num_alloc_retries}{'!' if report.num_steady_retries else ''}"


def _share(taken: int | None, budget: int | None) -> float | None:
    return taken / budget if taken is not None and budget else None


def _mark(ceiling: MemoryCeiling, report: FitReport) -> str:
    if report.failure is not None:
        return FAILURE_TEXT[report.failure.kind]
    named = {"safe": ceiling.safe_batch_size, "hard": ceiling.batch_size}
    return ", ".join(name for name, size in named.items() if size == report.batch_size)


def _legend(ceiling: MemoryCeiling) -> tuple[str, ...]:
    bars = f"{ALLOCATED} allocated, {RESERVED} reserved beyond it, {BUDGET_END} end of the budget"
    retries = "! the allocator retries in a steady step too: every step pays for it"
    steady = any(report.num_steady_retries for report in ceiling.probes)
    return (*((bars,) if ceiling.budget_bytes else ()), *((retries,) if steady else ()))


def _predicted_words(ceiling: MemoryCeiling) -> tuple[str, ...]:
    if ceiling.verified:
        return ()
    return (f"Predicted, not run: safe batch {ceiling.safe_batch_size:,}, largest batch {ceiling.batch_size:,}",)


def _line_words(ceiling: MemoryCeiling) -> tuple[str, ...]:
    slope, fixed, budget = ceiling.bytes_per_sample, ceiling.fixed_bytes, ceiling.budget_bytes
    if slope is None or fixed is None:
        return ()
    error = _error(ceiling)
    known = "through two sizes only, so that nothing shows how far it is off"
    if error is not None:
        known = f"off by at most {percent_text(error, 1)} at the sizes it is meant for"
    words = f"Line: {bytes_text(fixed)} + {bytes_text(slope)} a sample, {known}"
    if budget is None or slope < 1:  # of less than a byte a sample nothing runs full
        return (words,)
    ends = [int((budget / (1 + off) - fixed) / slope) for off in (error or 0.0, -(error or 0.0)) if off > -1]
    return (words, f"Solved for the budget{'' if error is None else ' with that error'}: {_range(ends)}")


def _error(ceiling: MemoryCeiling) -> float | None:
    """None also where the line goes through all there is: that it is off by nothing there is no finding."""
    sizes = {probe.batch_size for probe in ceiling.probes if probe.fits}
    return ceiling.line_error_fraction if len(sizes) > 2 else None


def _range(ends: list[int]) -> str:
    """From the lower end to the upper; a line that may be off by all there is has no upper end."""
    low, *high = (max(0, end) for end in ends)
    if not high:
        return f"a batch of {low:,} or more"
    return f"a batch of {low:,}" if high[0] == low else f"a batch of {low:,} to {high[0]:,}"


def _budget_words(ceiling: MemoryCeiling) -> tuple[str, ...]:
    if ceiling.budget_bytes is None:
        return ()
    capacity = "" if ceiling.capacity_bytes is None else f" of {bytes_text(ceiling.capacity_bytes, 4)}"
    held = holders_text(ceiling.others, ceiling.others_bytes)
    return (
        f"Budget: {bytes_text(ceiling.budget_bytes, 4)}{capacity}" + ("" if held is None else f"; of the rest, {held}"),
    )


def _conf_words(ceiling: MemoryCeiling) -> tuple[str, ...]:
    return () if ceiling.alloc_conf is None else (f"PYTORCH_CUDA_ALLOC_CONF: {ceiling.alloc_conf}",)
