"""What other processes take of the GPU's memory, during the memory probe and after it."""

import math

from loadtune.probe.tries import ROOM
from loadtune.records import Device, GpuFacts, HostFacts, MemoryCeiling, Precision
from loadtune.run import Run
from loadtune.units import bytes_text

LOST, LOST_BYTES = 0.01, 1 << 30
"""Share of the budget, or bytes, that have to be gone before anything is said: a bench that was replaced takes its
context anew, 0.75 GiB on an H200, and libraries keep workspaces."""

NOT_SEARCHED = "Batch sizes that no longer fit are not tried"
MAY_FAIL = "Batch sizes that no longer fit may run out of memory in the confirmation"


def most_free(run: Run) -> int | None:
    """Free memory of the GPU, as much as any ceiling had: what others took since then counts as taken."""
    free, budgets = free_bytes(run), _budgets(*run.ceilings)
    if free is None or not budgets or free > budgets[-1]:  # what the bench holds is in its budget and is not free
        return free
    return free + max(budgets) - budgets[-1]


def tell_crowded(run: Run) -> None:
    """Which ceilings were found while others held more of the GPU's memory than at other times: they may be too low."""
    if run.device.kind != "cuda":
        return
    most = _most_budget(run)
    for ceiling in run.ceilings:
        missing = most - min(_budgets(ceiling), default=most)
        if ceiling.limit == "memory" and missing > _worth_a_word(most):
            run.note(
                f"While memory was probed in {ceiling.precision}, another process used up to {bytes_text(missing)} of "
                "the GPU's memory. Larger batches may fit without it; run again when no other process uses the GPU."
            )


def check_budget(run: Run) -> None:
    """Read the device's free memory again; what others took since the probe lowers the bound from here on."""
    free = free_bytes(run)
    if run.free_bytes is None or free is None:
        return
    budget, limit = _most_budget(run), run.config.max_gpu_memory_bytes
    spare_bytes = 0 if limit is None else max(0, run.free_bytes - budget)
    lost_bytes = run.free_bytes - free - spare_bytes
    if lost_bytes <= max(_worth_a_word(budget), run.lost_bytes):
        return
    run.lost_bytes = lost_bytes
    consequence = MAY_FAIL if run.stage_name == "confirm" else NOT_SEARCHED
    run.note(
        f"Another process has taken {bytes_text(lost_bytes)} of the GPU's memory since memory was probed. "
        f"{consequence}; run again when no other process uses the GPU."
    )


def batch_excess(run: Run, precision: Precision, batch_size: int) -> int:
    """Samples by which a batch is above its precision's ceiling; 0 or less: it fits."""
    ceiling = _ceiling_of(run, precision)
    return 0 if ceiling is None else batch_size - _admitted(run, ceiling, batch_size)


def excess_now(run: Run, precision: Precision, batch_size: int) -> int:
    """The same of what others have left of the ceiling."""
    ceiling, excess = _ceiling_of(run, precision), batch_excess(run, precision, batch_size)
    if ceiling is None or not ceiling.bytes_per_sample or not run.lost_bytes:
        return excess
    had = _most_budget(run) - (ceiling.budget_bytes or 0)  # what this one had less of to begin with
    taken = max(0, run.lost_bytes - had - _unused(ceiling, batch_size - excess))
    return excess + math.ceil(taken / ceiling.bytes_per_sample)


def _ceiling_of(run: Run, precision: Precision) -> MemoryCeiling | None:
    return next((c for c in run.ceilings if c.precision == precision), None)


def _admitted(run: Run, ceiling: MemoryCeiling, batch_size: int) -> int:
    """The safe ceiling; for a size that the user named, what was seen to train."""
    config = run.config
    named = batch_size in (config.yours.batch_size, config.fixed("batch_size"))
    return ceiling.batch_size if named else ceiling.safe_batch_size


def _unused(ceiling: MemoryCeiling, known: int) -> int:
    """Bytes of its budget that a ceiling left over, because something other than memory set it."""
    if ceiling.limit == "memory" or ceiling.budget_bytes is None:
        return 0
    peaks = [r.reserved_peak_bytes or r.peak_bytes for r in ceiling.probes if r.fits and r.batch_size == known]
    by_line = (ceiling.fixed_bytes or 0.0) + (ceiling.bytes_per_sample or 0.0) * known
    peak = max((peak for peak in peaks if peak is not None), default=by_line)
    return max(0, int(ROOM * ceiling.budget_bytes - peak))


def _most_budget(run: Run) -> int:
    return max(_budgets(*run.ceilings), default=0)


def _budgets(*ceilings: MemoryCeiling) -> list[int]:
    """Under which sizes were tried, in that order."""
    tried = (report.budget_bytes for ceiling in ceilings for report in ceiling.probes)
    return [budget for budget in tried if budget is not None]


def _worth_a_word(budget: int) -> float:
    return max(LOST * budget, LOST_BYTES)


def gpu_of(host: HostFacts, device: Device) -> GpuFacts | None:
    return next((gpu for gpu in host.gpus if gpu.uuid == device.uuid), None)


def free_bytes(run: Run) -> int | None:
    gpu = gpu_of(run.host_now(), run.device)
    return None if gpu is None else gpu.free_bytes
