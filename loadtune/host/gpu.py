"""Which GPUs are there, how full each is, and who holds its memory.

In: NVML's answers. Out: `GpuFacts` and single readings by UUID; what cannot be had is None.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from loadtune.host.gpu_processes import read_process_memory
from loadtune.host.memory import read_ram
from loadtune.host.nvml import NVML, Nvml
from loadtune.host.visible import visible_uuids
from loadtune.records import GpuFacts, GpuProcess

Figure = TypeVar("Figure", int, float)

_MEMORY_V2 = 0x02000028
"""NVML's number for the memory figures that hold the driver's own share apart; drivers before 510 do not know it."""

_CORES_PER_SM = {
    **dict.fromkeys(((6, 0), (7, 0), (7, 2), (7, 5), (8, 0)), 64),
    **dict.fromkeys(((6, 1), (6, 2), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)), 128),
}
"""CUDA cores of a multiprocessor by compute capability (CUDA programming guide). NVML counts cores of a whole GPU, and
multiprocessors of a MIG instance."""


def read_gpus(nvml: Nvml = NVML) -> tuple[GpuFacts, ...]:
    """The GPUs this process may use, in CUDA's order; empty where there are none, or no driver answers."""
    count = nvml.ask("nvmlDeviceGetCount") or 0
    handles = (nvml.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count))
    # One that does not say its name keeps its place, or the indices after it would name the wrong GPUs.
    installed = [_text(handle and nvml.ask("nvmlDeviceGetUUID", handle)) or "" for handle in handles]
    visible = visible_uuids(os.environ.get("CUDA_VISIBLE_DEVICES"), installed)
    facts = (_read_gpu(uuid, nvml) for uuid in visible)
    return tuple(gpu for gpu in facts if gpu is not None)


def read_driver(nvml: Nvml = NVML) -> str | None:
    """Version of the NVIDIA driver. None: none answers."""
    return _text(nvml.ask("nvmlSystemGetDriverVersion"))


def read_utilization_fraction(uuid: str, nvml: Nvml = NVML) -> float | None:
    """Share of the last 1/6 to 1 s in which any kernel ran. None under MIG."""
    return _figure(nvml, "nvmlDeviceGetUtilizationRates", uuid, lambda rates: float(rates.gpu) / 100)


def read_memory_used_bytes(uuid: str, nvml: Nvml = NVML) -> int | None:
    """Total minus free, so the driver's own share is in it; the same difference as in `GpuFacts`."""
    return _figure(nvml, "nvmlDeviceGetMemoryInfo", uuid, lambda memory: int(memory.total - memory.free))


def _figure(nvml: Nvml, function: str, uuid: str, taken: Callable[[Any], Figure]) -> Figure | None:
    handle = nvml.device(uuid)
    answer = None if handle is None else nvml.ask(function, handle)
    return None if answer is None else taken(answer)


def _read_gpu(uuid: str, nvml: Nvml) -> GpuFacts | None:
    """None: a GPU that cannot be read (fallen off the bus, a MIG name of no instance) cannot be trained on."""
    handle = nvml.device(uuid)
    memory = None if handle is None else _read_memory(handle, nvml)
    # A MIG instance has no index of its own.
    parent = nvml.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if uuid.startswith("MIG-") else handle
    index = None if parent is None else nvml.ask("nvmlDeviceGetIndex", parent)
    if memory is None or index is None:
        return None
    return GpuFacts(
        uuid=uuid,
        index=index,
        name=_text(nvml.ask("nvmlDeviceGetName", handle)) or "NVIDIA GPU",
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        utilization_fraction=read_utilization_fraction(uuid, nvml),
        processes=_read_processes(handle, nvml),
        driver_bytes=memory.driver_bytes,
        num_multiprocessors=_read_multiprocessors(handle, nvml),
        compute_capability=_read_compute_capability(handle, nvml),
    )


def _read_compute_capability(handle: Any, nvml: Nvml) -> str | None:
    found = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
    return None if found is None else f"{found[0]}.{found[1]}"


def _read_multiprocessors(handle: Any, nvml: Nvml) -> int | None:
    attributes = nvml.ask("nvmlDeviceGetAttributes", handle)  # of a MIG instance; a whole GPU has none
    if attributes is not None:
        return int(attributes.multiprocessorCount)
    cores = nvml.ask("nvmlDeviceGetNumGpuCores", handle)
    per_sm = _CORES_PER_SM.get(tuple(nvml.ask("nvmlDeviceGetCudaComputeCapability", handle) or ()))
    return None if not cores or per_sm is None else int(cores) // per_sm


class _Memory(NamedTuple):
    total_bytes: int
    free_bytes: int
    driver_bytes: int | None


def _read_memory(handle: Any, nvml: Nvml) -> _Memory | None:
    """A GPU without memory of its own (GB10, Jetson) shares the machine's, and NVML refuses to say."""
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2)
    if memory is not None:
        return _Memory(int(memory.total), int(memory.free), int(memory.reserved))
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    if memory is not None:
        return _Memory(int(memory.total), int(memory.free), None)
    if nvml.refuses("nvmlDeviceGetMemoryInfo", handle):
        ram = read_ram()
        return _Memory(ram.limit_bytes, ram.available_bytes, None)
    return None


def _read_processes(handle: Any, nvml: Nvml) -> tuple[GpuProcess, ...]:
    """Names are NVML's: in a container the process ids are the host's, and /proc would name somebody else."""
    used = read_process_memory(handle, nvml).value or {}
    found = [GpuProcess(pid=pid, name=_program(pid, nvml), used_bytes=held) for pid, held in used.items()]
    return tuple(sorted(found, key=lambda process: -(process.used_bytes or 0)))


def _program(pid: int, nvml: Nvml) -> str | None:
    """``/usr/bin/python3`` → python3; browsers put their options behind it."""
    command = (_text(nvml.ask("nvmlSystemGetProcessName", pid)) or "").partition(" -")[0]
    return command.replace("\\", "/").rpartition("/")[2].strip() or None


def _text(answer: Any) -> str | None:
    """Bindings before 11.5 answer in bytes."""
    if answer is None:
        return None
    return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
