"""Which GPUs are there, how full each is, who holds its memory, and which device the training runs on.

In: NVML's answers. Out: `GpuFacts` and single readings by UUID; what cannot be had is None.
"""

import math
import os
import re
from collections.abc import Sequence

from loadtune.errors import DeviceError
from loadtune.host.memory import read_ram
from loadtune.host.nvml import NOT_SUPPORTED, NVML, Answer, Nvml, NvmlDevice
from loadtune.records.facts import Device, GpuFacts, GpuProcess, HostFacts
from loadtune.units import bytes_text, percent_text

_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
"""A process may stand in several, with the same figure in each."""

_MEMORY_V2 = 0x02000028
"""NVML's number for the memory figures that hold the driver's own share apart; drivers before 510 do not know it."""

_CORES_PER_SM: dict[tuple[int, ...], int] = {
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
    installed = [(handle and nvml.ask("nvmlDeviceGetUUID", handle)) or "" for handle in handles]
    visible = visible_uuids(os.environ.get("CUDA_VISIBLE_DEVICES"), installed)
    facts = (_read_gpu(NvmlDevice(uuid, nvml)) for uuid in visible)
    return tuple(gpu for gpu in facts if gpu is not None)


def read_driver(nvml: Nvml = NVML) -> str | None:
    """Version of the NVIDIA driver. None: none answers."""
    version: str | None = nvml.ask("nvmlSystemGetDriverVersion")
    return version


def _read_gpu(device: NvmlDevice) -> GpuFacts | None:
    """None: a GPU that cannot be read (fallen off the bus, a MIG name of no instance) cannot be trained on."""
    memory, index = _read_memory(device), device.value("nvmlDeviceGetIndex")
    if device.uuid.startswith("MIG-"):  # an instance has no index of its own
        parent = device.value("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
        index = None if parent is None else device.nvml.ask("nvmlDeviceGetIndex", parent)
    if memory is None or index is None:
        return None
    rates = device.value("nvmlDeviceGetUtilizationRates")  # of the last 1/6 to 1 s; under MIG there is none
    capability = device.value("nvmlDeviceGetCudaComputeCapability")
    return GpuFacts(
        uuid=device.uuid,
        index=index,
        name=device.value("nvmlDeviceGetName") or "NVIDIA GPU",
        total_bytes=memory[0],
        free_bytes=memory[1],
        utilization_fraction=None if rates is None else float(rates.gpu) / 100,
        processes=_read_processes(device),
        driver_bytes=memory[2],
        num_multiprocessors=_read_multiprocessors(device, tuple(capability or ())),
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
    )


def _read_multiprocessors(device: NvmlDevice, capability: tuple[int, ...]) -> int | None:
    attributes = device.value("nvmlDeviceGetAttributes")  # of a MIG instance; a whole GPU has none
    if attributes is not None:
        return int(attributes.multiprocessorCount)
    cores, per_sm = device.value("nvmlDeviceGetNumGpuCores"), _CORES_PER_SM.get(capability)
    return None if not cores or per_sm is None else int(cores) // per_sm


def _read_memory(device: NvmlDevice) -> tuple[int, int, int | None] | None:
    """Total, free, and the driver's own. A GPU without memory of its own (GB10, Jetson) shares the machine's, and NVML
    refuses to say."""
    memory = device.value("nvmlDeviceGetMemoryInfo", _MEMORY_V2)
    if memory is not None:
        return int(memory.total), int(memory.free), int(memory.reserved)
    answer = device.ask("nvmlDeviceGetMemoryInfo")
    if answer.value is not None:
        return int(answer.value.total), int(answer.value.free), None
    if answer.code == NOT_SUPPORTED:
        ram = read_ram()
        return ram.limit_bytes, ram.available_bytes, None
    return None


def _read_processes(device: NvmlDevice) -> tuple[GpuProcess, ...]:
    """Names are NVML's: in a container the process ids are the host's, and /proc would name somebody else."""
    used = read_process_memory(device).value or {}
    found = [GpuProcess(pid=pid, name=_program(pid, device.nvml), used_bytes=held) for pid, held in used.items()]
    return tuple(sorted(found, key=lambda process: -(process.used_bytes or 0)))


def read_process_memory(device: NvmlDevice) -> Answer:
    """Process id → bytes it holds, None where the driver does not say; a reason where no list can be had."""
    answers = [device.ask(function) for function in _PROCESS_LISTS]
    if all(answer.reason is not None for answer in answers):
        return answers[0]
    used: dict[int, int | None] = {}
    for process in (process for answer in answers for process in answer.value or ()):
        known = (held for held in (used.get(process.pid), process.usedGpuMemory) if held is not None)
        used[int(process.pid)] = max(map(int, known), default=None)
    return Answer(value=used)


def _program(pid: int, nvml: Nvml) -> str | None:
    """``/usr/bin/python3`` → python3; browsers put their options behind it."""
    command: str = (nvml.ask("nvmlSystemGetProcessName", pid) or "").partition(" -")[0]
    return command.rpartition("/")[2].strip() or None


def visible_uuids(variable: str | None, installed: Sequence[str]) -> tuple[str, ...]:
    """UUIDs in the order CUDA numbers them; ``variable`` None is "not set": all of them.

    As CUDA reads it: an empty text hides all; an entry it cannot resolve (-1 among them) ends the list; a GPU named
    twice empties it. Entries are indices, UUIDs or prefixes of one. ``MIG-…`` entries are handed on as they are.
    Indices are NVML's, in PCI order: CUDA's too with CUDA_DEVICE_ORDER=PCI_BUS_ID, or where all GPUs are of one model.
    """
    if variable is None:
        return tuple(installed)
    visible: list[str] = []
    for entry in variable.split(","):
        uuid = _resolve(entry.strip(), installed)
        if uuid is None:
            break
        if uuid in visible:
            return ()
        visible.append(uuid)
    return tuple(visible)


def _resolve(entry: str, installed: Sequence[str]) -> str | None:
    if entry.startswith("MIG-"):
        return entry
    if re.fullmatch(r"\+?\d+", entry):
        index = int(entry)
        return installed[index] if index < len(installed) else None
    named = matching(entry, installed) if entry.startswith("GPU-") else []
    return named[0] if len(named) == 1 else None


def matching(prefix: str, uuids: Sequence[str]) -> list[str]:
    """The UUIDs that begin with ``prefix``, whatever its case; one that equals it stands alone."""
    wanted = prefix.lower()
    exact = [uuid for uuid in uuids if uuid.lower() == wanted]
    return exact or [uuid for uuid in uuids if uuid.lower().startswith(wanted)]


FREE_TIE_FRACTION = 0.01
"""Free memory this close counts as equal, so that utilization decides: 1% of the batch size is less than a memory
ceiling is known to (0.975 to 1.00 of the truth), while a busy GPU can cost half the throughput."""


def choose_device(host: HostFacts, requested: str | None) -> Device:
    """``requested``: None, ``cpu``, ``cuda``, ``cuda:N`` (N among the visible GPUs), or a UUID or its beginning.

    None takes the freest GPU, else the CPU. Raises DeviceError where the GPU asked for is not there.
    """
    wanted = "cuda" if requested is None else requested.strip().lower()
    if wanted == "cpu" or (requested is None and not host.gpus):
        return Device(kind="cpu", name=host.cpu_name or "CPU")
    if wanted == "cuda":
        found = [freest_gpu(host)]
    elif wanted.startswith(("gpu-", "mig-")):
        uuids = matching(wanted, [gpu.uuid for gpu in host.gpus])
        found = [gpu for gpu in host.gpus if gpu.uuid in uuids]
    else:
        found = [gpu for number, gpu in enumerate(host.gpus) if wanted == f"cuda:{number}"]
    if len(found) != 1:
        problem = f"matches {len(found)} GPUs" if found else "this machine does not have"
        raise _refusal(host, f"--device is {requested!r}, which {problem}.")
    return Device(kind="cuda", uuid=found[0].uuid, name=found[0].name)


def freest_gpu(host: HostFacts) -> GpuFacts:
    """Most free memory, then least utilization, then CUDA's order. Raises DeviceError where there is no GPU."""
    if not host.gpus:
        raise _refusal(host, "This machine has no GPU that can be used.")
    enough = max(gpu.free_bytes for gpu in host.gpus) * (1 - FREE_TIE_FRACTION)
    free = (gpu for gpu in host.gpus if gpu.free_bytes >= enough)
    # One that does not say how busy it is comes after those that do.
    return min(free, key=lambda gpu: math.inf if gpu.utilization_fraction is None else gpu.utilization_fraction)


def _refusal(host: HostFacts, problem: str) -> DeviceError:
    """With what there is and what may be asked for, so that it can be mended without another command."""
    if host.gpus:
        lines = (
            f"cuda:{number} is {gpu.name} ({gpu.uuid}, {bytes_text(gpu.free_bytes)} free, "
            f"{percent_text(gpu.utilization_fraction)} busy)"
            for number, gpu in enumerate(host.gpus)
        )
        last = len(host.gpus) - 1
        numbered = "cuda:0" if last == 0 else f"cuda:0 to cuda:{last}"
        return DeviceError(
            f"{problem} Visible GPUs: {'; '.join(lines)}. Ask for cpu, cuda, {numbered}, or enough of a UUID to tell "
            "one GPU with --device; without it the freest GPU is taken."
        )
    found = "No NVIDIA driver answered on this machine."
    if host.driver is not None:
        found = f"The NVIDIA driver ({host.driver}) is there, but no GPU is visible to this process."
    return DeviceError(
        f"{problem} {found} Check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the CPU: --device cpu, or no --device at "
        "all."
    )
