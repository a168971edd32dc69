"""What fits, and how fast it computes, for each precision: a table, and memory over batch size.

In: a `TuningResult`. Out: a `Table`, a `Figure`.
"""

from loadtune.records.memory import MemoryCeiling
from loadtune.records.result import TuningResult
from loadtune.report.figures import Table
from loadtune.report.machine import holders_text
from loadtune.report.page import figure as draw
from loadtune.report.page.figure import BLUE, GREEN, GREY, ORANGE, RED, SKY, Figure, Panel
from loadtune.report.wording import FAILURE_TEXT, limit_text
from loadtune.units import MISSING, bytes_text, counted, percent_text, rate_text, seconds_text

GIB = 2**30


def limits_table(result: TuningResult) -> Table | None:
    """A row per precision. None: there is no ceiling."""
    rows = [_limits(result, ceiling) for ceiling in result.ceilings]
    if not rows:
        return None
    return Table(
        title="Limits of each precision", columns=tuple(rows[0]), rows=tuple(tuple(row.values()) for row in rows)
    )


def _limits(result: TuningResult, ceiling: MemoryCeiling) -> dict[str, str]:
    """Cells by column."""
    failed, ooms = ceiling.first_failed, ceiling.num_ooms
    predicted, seconds = "" if ceiling.verified else "\npredicted", seconds_text(ceiling.seconds)
    alone = result.compute_only(ceiling.precision)
    return {
        "": ceiling.precision,
        "safe batch": f"{ceiling.safe_batch_size:,}{predicted}",
        "largest (hard)": f"{ceiling.batch_size:,}{predicted}",
        "limited by": limit_text(ceiling.limit, result.device.kind) + (f"\n({failed} failed)" if failed else ""),
        "peak at largest": bytes_text(ceiling.peak_bytes),
        "peak over batch size": _line_text(ceiling),
        "budget": _budget_text(ceiling),
        "sizes tried": f"{ceiling.num_probes}, {counted(ooms, 'OOM') if ooms else 'no OOM'}\n{seconds}",
        "compute-only rate": MISSING
        if alone is None
        else f"{rate_text(alone.samples_per_s)}\nat batch {alone.batch_size:,}",
    }


def _line_text(ceiling: MemoryCeiling) -> str:
    """The line through the sizes that were run. That a line through two sizes is off by nothing is no finding."""
    if ceiling.bytes_per_sample is None or ceiling.fixed_bytes is None:
        return MISSING
    known = "through two sizes only"
    if ceiling.line_error_fraction is not None and len({each.batch_size for each in ceiling.probes if each.fits}) > 2:
        known = f"off by at most {percent_text(ceiling.line_error_fraction, 1)}"
    return f"{bytes_text(ceiling.fixed_bytes)} + {bytes_text(ceiling.bytes_per_sample)} a sample\n{known}"


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
    """Sizes that failed stand at the height of the budget."""
    reports = sorted(ceiling.probes, key=lambda report: report.batch_size)
    traces, budget = list[draw.Trace](), (ceiling.budget_bytes or 0) / GIB
    if ceiling.bytes_per_sample is not None and ceiling.fixed_bytes is not None:
        ends = [0, max(ceiling.batch_size, *(report.batch_size for report in reports))]
        heights = [(ceiling.fixed_bytes + ceiling.bytes_per_sample * size) / GIB for size in ends]
        traces.append(draw.line("line", ends, heights, GREY))
    fits = [report for report in reports if report.fits]
    for name, peaks, colour, symbol in (
        ("allocated", [report.peak_bytes for report in fits], BLUE, "circle"),
        ("reserved", [report.reserved_peak_bytes for report in fits], SKY, "circle-open"),
    ):
        if known := {each.batch_size: peak for each, peak in zip(fits, peaks, strict=True) if peak is not None}:
            words = [f"batch {size:,}<br>{bytes_text(peak)} {name}" for size, peak in known.items()]
            heights, marker = [peak / GIB for peak in known.values()], {"color": colour, "symbol": symbol, "size": 9}
            traces.append(draw.points(name, list(known), heights, words, marker=marker))
    if failed := {report.batch_size: report.failure for report in reports if report.failure is not None}:
        words = [
            f"batch {size:,}: {FAILURE_TEXT[failure.kind]}<br>{draw.text(failure.message[:200])}"
            for size, failure in failed.items()
        ]
        marker = {"color": RED, "symbol": "x", "size": 10}
        traces.append(draw.points("failed", list(failed), [budget] * len(failed), words, marker=marker))
    mark, title = ("", "is safe") if ceiling.verified else (", predicted", "is predicted to be safe")
    sizes = {ceiling.batch_size: ("hard", ORANGE)} | {ceiling.safe_batch_size: ("safe", GREEN)}
    levels = [] if ceiling.budget_bytes is None else [draw.across(budget, RED, "budget")]
    levels += [draw.upright(size, colour, f"{name}{mark}") for size, (name, colour) in sizes.items()]
    limit = limit_text(ceiling.limit, result.device.kind)
    return Panel(
        title=f"{ceiling.precision}: up to {ceiling.safe_batch_size:,} {title}, limited by {limit}",
        data=tuple(traces),
        layout={
            "xaxis": draw.axis("batch size", rangemode="tozero"),
            "yaxis": draw.axis("GiB", rangemode="tozero"),
            "shapes": levels,
        },
    )
