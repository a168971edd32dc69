"""What other processes have taken of the GPU's memory since it was probed, and which batches that leaves."""

from loadtune.probe.tries import ROOM
from loadtune.records import Device, GpuFacts, HostFacts, MemoryCeiling, Precision
from loadtune.run import Run
from loadtune.units import bytes_text

LOST, LOST_BYTES = 0.01, 1 << 30
"""Share of the budget, or bytes, that have to be gone before anything is said: a bench that was replaced takes its
context anew, 0.75 GiB on an H200, and libraries keep workspaces."""


def check_budget(run: Run) -> None:
    """Read the device's free memory again; what others took since the probe lowers the bound from here on."""
    free, budget = free_bytes(run), max((ceiling.budget_bytes or 0 for ceiling in run.ceilings), default=0)
    if run.free_bytes is None or free is None:
        return
    unused = 0 if run.config.max_gpu_memory_bytes is None else max(0, run.free_bytes - budget)
    lost_bytes = run.free_bytes - free - unused
    if lost_bytes <= max(LOST * budget, LOST_BYTES, run.lost_bytes):
        return
    run.lost_bytes = lost_bytes
    is_late = run.stage_name == "confirm"
    run.note(
        f"Another process has taken {bytes_text(lost_bytes)} of the GPU's memory since memory was probed. Batch sizes "
        f"that no longer fit {'may run out of memory in the confirmation' if is_late else 'are not tried'}; run again "
        "when no other process uses the GPU."
    )


def batch_excess(run: Run, precision: Precision, batch_size: int) -> int:
    """Samples by which a batch is above its precision's safe ceiling; of a size that the user named, above what was
    seen to train. 0 or less: it fits."""
    ceiling = _ceiling_of(run, precision)
    if ceiling is None:
        return 0
    return batch_size - (ceiling.batch_size if _is_named(run, batch_size) else ceiling.safe_batch_size)


def fits_now(run: Run, precision: Precision, batch_size: int) -> bool:
    """Whether a batch is below its ceiling, and into what others have left, by the line through the sizes that ran."""
    ceiling = _ceiling_of(run, precision)
    if batch_excess(run, precision, batch_size) > 0:
        return False
    if ceiling is None or not run.lost_bytes or ceiling.bytes_per_sample is None or ceiling.budget_bytes is None:
        return True
    needed = (ceiling.fixed_bytes or 0.0) + ceiling.bytes_per_sample * batch_size
    room = 1.0 if _is_named(run, batch_size) else ROOM
    return needed <= room * ceiling.budget_bytes - run.lost_bytes


def _is_named(run: Run, batch_size: int) -> bool:
    return batch_size in (run.config.yours.batch_size, run.config.fixed("batch_size"))


def _ceiling_of(run: Run, precision: Precision) -> MemoryCeiling | None:
    return next((c for c in run.ceilings if c.precision == precision), None)


def gpu_of(host: HostFacts, device: Device) -> GpuFacts | None:
    return next((gpu for gpu in host.gpus if gpu.uuid == device.uuid), None)


def free_bytes(run: Run) -> int | None:
    """Of the run's GPU, now. None: it is a CPU, or the driver does not say."""
    gpu = gpu_of(run.host_now(), run.device)
    return None if gpu is None else gpu.free_bytes
