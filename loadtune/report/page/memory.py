"""Memory over batch size, with its ceilings. In: a `TuningResult`. Out: a `Figure`."""

from loadtune.records import FitReport, MemoryCeiling, TuningResult
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
from loadtune.report.wording import FAILURE_TEXT, limit_text
from loadtune.units import bytes_text

GIB = 2**30


def memory_lines(result: TuningResult) -> Figure:
    return Figure(
        key="memory",
        title="Memory over batch size",
        reading="Dots are batch sizes that were trained; the line is model + batch size × bytes a sample. The safe "
        "size leaves 5% of the memory for hours of training; the hard size is the largest that trained. A size that is "
        "marked as predicted was not trained.",
        source="Peak memory of a few training steps at each size, in a process of their own. The largest sizes include "
        "an evaluation pass and the last partial batch of the dataset, unless they are predicted.",
        panels=tuple(_ceiling_panel(result, ceiling) for ceiling in result.ceilings),
        missing=() if result.ceilings else ("The memory probe had not finished when the run ended.",),
    )


def _ceiling_panel(result: TuningResult, ceiling: MemoryCeiling) -> Panel:
    reports = sorted((*ceiling.small_sizes, *ceiling.probes), key=lambda report: report.batch_size)
    fitting, failed = [r for r in reports if r.fits], [r for r in reports if not r.fits]
    traces = [
        *_line(ceiling, max(ceiling.batch_size, *(report.batch_size for report in reports))),
        *_peaks("allocated", [(r, r.peak_bytes) for r in fitting], BLUE, "circle"),
        *_peaks("reserved", [(r, r.reserved_peak_bytes) for r in fitting], SKY, "circle-open"),
        *_failed(failed, ceiling),
    ]
    levels = [] if ceiling.budget_bytes is None else [across(ceiling.budget_bytes / GIB, RED, "budget")]
    mark, title = ("", "is safe") if ceiling.verified else (", predicted", "is predicted to be safe")
    edges = [upright(ceiling.safe_batch_size, GREEN, f"safe{mark}", "left")]
    if ceiling.batch_size != ceiling.safe_batch_size:
        edges.append(upright(ceiling.batch_size, ORANGE, f"hard{mark}", "right"))
    return Panel(
        title=f"{ceiling.precision}: up to {ceiling.safe_batch_size:,} {title}, "
        f"limited by {limit_text(ceiling.limit, result.device.kind)}",
        data=tuple(traces),
        layout={
            "xaxis": axis("batch size", rangemode="tozero"),
            "yaxis": axis("GiB", rangemode="tozero"),
            "shapes": [shape for shape, _ in (*levels, *edges)],
            "annotations": [words for _, words in (*levels, *edges)],
        },
    )


def _line(ceiling: MemoryCeiling, last: int) -> list[Trace]:
    slope, fixed = ceiling.bytes_per_sample, ceiling.fixed_bytes
    if slope is None or fixed is None:
        return []
    ends = [0, last]
    return [line("line", ends, [(fixed + slope * size) / GIB for size in ends], GREY)]


def _peaks(name: str, found: list[tuple[FitReport, int | None]], colour: str, symbol: str) -> list[Trace]:
    known = [(report.batch_size, peak) for report, peak in found if peak is not None]
    if not known:
        return []
    words = [f"batch {size:,}<br>{bytes_text(peak)} {name}" for size, peak in known]
    marker = {"color": colour, "symbol": symbol, "size": 9}
    return [points(name, [size for size, _ in known], [peak / GIB for _, peak in known], words, marker=marker)]


def _failed(failed: list[FitReport], ceiling: MemoryCeiling) -> list[Trace]:
    if not failed:
        return []
    words = [
        f"batch {r.batch_size:,}: {FAILURE_TEXT[r.failure.kind]}<br>{text(r.failure.message[:200])}"
        for r in failed
        if r.failure is not None
    ]
    height = (ceiling.budget_bytes or 0) / GIB
    marker = {"color": RED, "symbol": "x", "size": 10}
    return [points("failed", [r.batch_size for r in failed], [height] * len(failed), words, marker=marker)]
