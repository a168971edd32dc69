"""What other processes take of the device's memory: while the ceilings are found, and from then on."""

import math

from loadtune.records import Device, GpuFacts, HostFacts, Precision
from loadtune.stages.run import Run
from loadtune.units import bytes_text

LOST, LOST_BYTES = 0.01, 1 << 30
"""Share of the budget, or bytes, that have to be gone before anything is said: a bench that was replaced takes its
context anew, 0.75 GiB on an H200, and libraries keep workspaces."""

GAINED = "another process gave it back. Larger batches than these ceilings train now; run again to have them found."


def check_budget(run: Run) -> None:
    """Read the device's free memory again; what others took since the probe lowers the bound from here on."""
    found, free = run.found, free_bytes(run)
    if found.free_bytes is None or free is None:
        return
    budget = max((ceiling.budget_bytes or 0 for ceiling in found.ceilings), default=0)
    limited = found.config.max_gpu_memory_bytes is not None
    spare_bytes = max(0, found.free_bytes - budget) if limited else 0
    lost_bytes = found.free_bytes - free - spare_bytes
    if not limited and -lost_bytes > 2 * _worth_a_word(budget):  # a bench that died gives its context back
        _tell_gained(run, -lost_bytes)
    if lost_bytes <= max(_worth_a_word(budget), found.lost_bytes):
        return
    found.lost_bytes = lost_bytes
    found.note(
        f"{bytes_text(lost_bytes)} less of the GPU's memory is free than when the ceilings were found: another process "
        "took it. Larger batches than what is left holds are not searched; run again when the GPU is yours alone."
    )


def _worth_a_word(budget: int) -> float:
    return max(LOST * budget, LOST_BYTES)


def _tell_gained(run: Run, gained_bytes: int) -> None:
    """Once: what is free is read again and again."""
    told = any(note.endswith(GAINED) for note in run.found.notes)
    if not told and any(ceiling.limit == "memory" for ceiling in run.found.ceilings):
        run.found.note(
            f"{bytes_text(gained_bytes)} more of the GPU's memory is free than when the ceilings were found: {GAINED}"
        )


def tell_crowded(run: Run) -> None:
    """Which precisions others left less of the GPU's memory than their siblings: their ceilings are as much too low."""
    if run.found.device.kind != "cuda":
        return
    budgets = {each.precision: each.budget_bytes for each in run.found.ceilings if each.budget_bytes}
    most = max(budgets.values(), default=0)
    for ceiling in run.found.ceilings:
        missing = most - budgets.get(ceiling.precision, most)
        if ceiling.limit == "memory" and missing > _worth_a_word(most):
            run.found.note(
                f"While the ceiling of {ceiling.precision} was found, {bytes_text(missing)} less memory was free than "
                "for another precision's: another process had taken it. Larger batches train without it; run again "
                "when no other holds memory."
            )


def excess_now(run: Run, precision: Precision, batch_size: int) -> int:
    """Samples by which a batch is above what others have left of its precision's ceiling; 0 or less: it fits."""
    ceiling = next((c for c in run.found.ceilings if c.precision == precision), None)
    if ceiling is None or not ceiling.bytes_per_sample or not run.found.lost_bytes:
        return 0
    own = batch_size == run.found.config.yours.batch_size  # admitted up to what was seen to train, so bound by that
    known = ceiling.batch_size if own else ceiling.safe_batch_size
    return batch_size - known + math.ceil(run.found.lost_bytes / ceiling.bytes_per_sample)


def gpu_of(host: HostFacts, device: Device) -> GpuFacts | None:
    return next((gpu for gpu in host.gpus if gpu.uuid == device.uuid), None)


def free_bytes(run: Run) -> int | None:
    gpu = gpu_of(run.host_now(), run.found.device)
    return None if gpu is None else gpu.free_bytes
