"""What fits in each precision: a table, and memory over batch size. In: a `TuningResult`. Out: a `Table`, `Figure`."""

from loadtune.records.memory import MemoryCeiling
from loadtune.records.result import TuningResult
from loadtune.report.machine import holders_text
from loadtune.report.page import figure as draw
from loadtune.report.page.figure import BLUE, GREEN, GREY, ORANGE, RED, Figure, Panel
from loadtune.report.tables import Table
from loadtune.report.wording import FAILURE_TEXT, limit_text
from loadtune.units import MISSING, bytes_text, rate_text

GIB = 2**30


def limits_table(result: TuningResult) -> Table | None:
    """A row per precision. None: there is no ceiling."""
    rows = tuple(_limits(result, ceiling) for ceiling in result.ceilings)
    columns = ("", "safe batch", "largest", "limited by", "memory for training", "compute-only rate")
    return Table(title="Limits of each precision", columns=columns, rows=rows) if rows else None


def _limits(result: TuningResult, ceiling: MemoryCeiling) -> tuple[str, ...]:
    predicted, alone = "" if ceiling.verified else " (predicted)", result.compute_only(ceiling.precision)
    capacity = "" if ceiling.capacity_bytes is None else f" of {bytes_text(ceiling.capacity_bytes)}"
    held = holders_text(ceiling.others, ceiling.others_bytes)
    return (
        ceiling.precision,
        f"{ceiling.safe_batch_size:,}{predicted}",
        f"{ceiling.batch_size:,}{predicted}",
        limit_text(ceiling.limit, result.device.kind),
        MISSING
        if ceiling.budget_bytes is None
        else f"{bytes_text(ceiling.budget_bytes)}{capacity}{f'{chr(10)}{held}' if held else ''}",
        MISSING if alone is None else f"{rate_text(alone.samples_per_s)} at batch {alone.batch_size:,}",
    )


def memory_lines(result: TuningResult) -> Figure:
    return Figure(
        key="memory",
        title="Memory over batch size",
        reading="Dots were run, the line is model + batch size × bytes a sample; the safe size leaves 5% of "
        "the memory for hours of training.",
        panels=tuple(_panel(result, ceiling) for ceiling in result.ceilings),
        missing="" if result.ceilings else "The memory probe had not finished when the run ended.",
    )


def _panel(result: TuningResult, ceiling: MemoryCeiling) -> Panel:
    """Sizes that failed stand at the height of the budget."""
    reports = sorted(ceiling.probes, key=lambda report: report.batch_size)
    traces, budget = list[draw.Trace](), (ceiling.budget_bytes or 0) / GIB
    most = max(ceiling.batch_size, *(report.batch_size for report in reports))
    if ceiling.bytes_per_sample is not None and ceiling.fixed_bytes is not None:
        ends = [0, most]
        heights = [(ceiling.fixed_bytes + ceiling.bytes_per_sample * size) / GIB for size in ends]
        traces.append(draw.line("line", ends, heights, GREY))
    trained = {each.batch_size: peak for each in reports if each.fits and (peak := each.peak_bytes) is not None}
    words = [f"batch {size:,}<br>{bytes_text(peak)} allocated" for size, peak in trained.items()]
    heights, marker = [peak / GIB for peak in trained.values()], {"color": BLUE, "size": 9}
    traces.append(draw.points("trained", list(trained), heights, words, marker=marker))
    if failed := {report.batch_size: report.failure for report in reports if report.failure is not None}:
        words = [
            f"batch {size:,}: {FAILURE_TEXT[failure.kind]}<br>{draw.text(failure.message[:200])}"
            for size, failure in failed.items()
        ]
        marker = {"color": RED, "symbol": "x", "size": 10}
        traces.append(draw.points("failed", list(failed), [budget] * len(failed), words, marker=marker))
    predicted = "" if ceiling.verified else ", predicted"
    levels = [] if ceiling.budget_bytes is None else [draw.straight(RED, "memory for training", y=budget)]
    levels.append(draw.straight(GREEN, f"safe{predicted}", x=ceiling.safe_batch_size))
    if ceiling.batch_size != ceiling.safe_batch_size:
        levels.append(draw.straight(ORANGE, f"largest{predicted}", x=ceiling.batch_size, yanchor="top"))
    return Panel(
        title=ceiling.precision,
        data=tuple(traces),
        layout={
            "xaxis": draw.axis("batch size", range=[0, 1.08 * most]),  # with room for a name behind the last line
            "yaxis": draw.axis("GiB", rangemode="tozero"),
            "shapes": levels,
        },
        height_px=320,
    )
