"""What fits, and how fast it computes, for each precision: a table, and memory over batch size.

In: a `TuningResult`. Out: a `Table`, a `Figure`.
"""

from collections.abc import Sequence

from loadtune.records import FitReport, MemoryCeiling, TuningResult
from loadtune.report.figures import Table
from loadtune.report.page.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SKY,
    Figure,
    Panel,
    Trace,
    across,
    axis,
    line,
    points,
    text,
    upright,
)
from loadtune.report.wording import FAILURE_TEXT, holders_text, limit_text
from loadtune.units import MISSING, bytes_text, counted, percent_text, rate_text, seconds_text

GIB = 2**30
_COLUMNS = (
    "",
    "safe batch",
    "largest (hard)",
    "limited by",
    "peak at largest",
    "peak over batch size",
    "budget",
    "sizes tried",
    "compute-only rate",
)


def limits_table(result: TuningResult) -> Table | None:
    """A row per precision. None: there is no ceiling."""
    rows = tuple(_limits(result, ceiling) for ceiling in result.ceilings)
    return Table(title="Limits of each precision", columns=_COLUMNS, rows=rows) if rows else None


def _limits(result: TuningResult, ceiling: MemoryCeiling) -> tuple[str, ...]:
    failed = "" if ceiling.first_failed is None else f"\n({ceiling.first_failed} failed)"
    ooms = counted(ceiling.num_ooms, "OOM") if ceiling.num_ooms else "no OOM"
    predicted = "" if ceiling.verified else "\npredicted"
    alone = result.compute_only(ceiling.precision)
    return (
        ceiling.precision,
        f"{ceiling.safe_batch_size:,}{predicted}",
        f"{ceiling.batch_size:,}{predicted}",
        limit_text(ceiling.limit, result.device.kind) + failed,
        bytes_text(ceiling.peak_bytes),
        _line_text(ceiling),
        _budget_text(ceiling),
        f"{ceiling.num_probes}, {ooms}\n{seconds_text(ceiling.seconds)}",
        MISSING if alone is None else f"{rate_text(alone.samples_per_s)}\nat batch {alone.batch_size:,}",
    )


def _line_text(ceiling: MemoryCeiling) -> str:
    """The line through the sizes that were run. That a line through two sizes is off by nothing is no finding."""
    if ceiling.bytes_per_sample is None or ceiling.fixed_bytes is None:
        return MISSING
    known = "\nthrough two sizes only"
    if (
        ceiling.line_error_fraction is not None
        and len({probe.batch_size for probe in ceiling.probes if probe.fits}) > 2
    ):
        known = f"\noff by at most {percent_text(ceiling.line_error_fraction, 1)}"
    return f"{bytes_text(ceiling.fixed_bytes)} + {bytes_text(ceiling.bytes_per_sample)} a sample{known}"


def _budget_text(ceiling: MemoryCeiling) -> str:
    """And who shares the memory."""
    if ceiling.budget_bytes is None:
        return MISSING
    capacity = "" if ceiling.capacity_bytes is None else f" of {bytes_text(ceiling.capacity_bytes, 4)}"
    held = holders_text(ceiling.others, ceiling.others_bytes)
    conf = None if ceiling.alloc_conf is None else f"PYTORCH_CUDA_ALLOC_CONF: {ceiling.alloc_conf}"
    return "\n".join([f"{bytes_text(ceiling.budget_bytes, 4)}{capacity}", *(each for each in (held, conf) if each)])


def memory_lines(result: TuningResult) -> Figure:
    return Figure(
        key="memory",
        title="Memory over batch size",
        reading="Dots are batch sizes that were trained; the line is model + batch size × bytes a sample. The safe "
        "size leaves 5% of the memory for hours of training; the hard size is the largest that trained. A size that is "
        "marked as predicted was not trained.",
        source="Peak memory of a few training steps at each size, in a process of their own. The largest sizes include "
        "an evaluation pass and the last partial batch of the dataset, unless they are predicted.",
        panels=tuple(_panel(result, ceiling) for ceiling in result.ceilings),
        missing=() if result.ceilings else ("The memory probe had not finished when the run ended.",),
    )


def _panel(result: TuningResult, ceiling: MemoryCeiling) -> Panel:
    reports = sorted((*ceiling.small_sizes, *ceiling.probes), key=lambda report: report.batch_size)
    fitting = [report for report in reports if report.fits]
    largest = max(ceiling.batch_size, *(report.batch_size for report in reports))
    traces = [
        *_line(ceiling, largest),
        *_peaks("allocated", [(report, report.peak_bytes) for report in fitting], BLUE, "circle"),
        *_peaks("reserved", [(report, report.reserved_peak_bytes) for report in fitting], SKY, "circle-open"),
        *_failed([report for report in reports if not report.fits], ceiling),
    ]
    mark, title = ("", "is safe") if ceiling.verified else (", predicted", "is predicted to be safe")
    sizes = {ceiling.batch_size: ("hard", ORANGE)} | {ceiling.safe_batch_size: ("safe", GREEN)}
    levels = [] if ceiling.budget_bytes is None else [across(ceiling.budget_bytes / GIB, RED, "budget")]
    levels += [upright(size, colour, f"{name}{mark}") for size, (name, colour) in sizes.items()]
    limit = limit_text(ceiling.limit, result.device.kind)
    return Panel(
        title=f"{ceiling.precision}: up to {ceiling.safe_batch_size:,} {title}, limited by {limit}",
        data=tuple(traces),
        layout={
            "xaxis": axis("batch size", rangemode="tozero"),
            "yaxis": axis("GiB", rangemode="tozero"),
            "shapes": levels,
        },
    )


def _line(ceiling: MemoryCeiling, last: int) -> list[Trace]:
    slope, fixed = ceiling.bytes_per_sample, ceiling.fixed_bytes
    if slope is None or fixed is None:
        return []
    ends = [0, last]
    return [line("line", ends, [(fixed + slope * size) / GIB for size in ends], GREY)]


def _peaks(name: str, found: Sequence[tuple[FitReport, int | None]], colour: str, symbol: str) -> list[Trace]:
    known = [(report.batch_size, peak) for report, peak in found if peak is not None]
    words = [f"batch {size:,}<br>{bytes_text(peak)} {name}" for size, peak in known]
    marker = {"color": colour, "symbol": symbol, "size": 9}
    sizes, heights = [size for size, _ in known], [peak / GIB for _, peak in known]
    return [points(name, sizes, heights, words, marker=marker)] if known else []


def _failed(failed: Sequence[FitReport], ceiling: MemoryCeiling) -> list[Trace]:
    """At the height of the budget."""
    words = [
        f"batch {each.batch_size:,}: {FAILURE_TEXT[each.failure.kind]}<br>{text(each.failure.message[:200])}"
        for each in failed
        if each.failure is not None
    ]
    heights = [(ceiling.budget_bytes or 0) / GIB] * len(failed)
    marker = {"color": RED, "symbol": "x", "size": 10}
    return [points("failed", [each.batch_size for each in failed], heights, words, marker=marker)] if failed else []
