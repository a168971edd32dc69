"""What fits, as plain data: the ceilings side by side, and what is known of one of them in words.

In: `MemoryCeiling`. Out: a `Table`, or sentences.
"""

from collections.abc import Iterable

from loadtune.records import MemoryCeiling
from loadtune.report.figures import Table
from loadtune.report.wording import holders_text, limit_text
from loadtune.units import bytes_text, counted, percent_text, seconds_text


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


def memory_words(ceiling: MemoryCeiling) -> tuple[str, ...]:
    """The line through the sizes that were run, the budget, and who shares it."""
    return (*_predicted_words(ceiling), *_line_words(ceiling), *_budget_words(ceiling), *_conf_words(ceiling))


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
