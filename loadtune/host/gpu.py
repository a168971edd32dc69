"""Which GPUs are there, who holds their memory, which device the training runs on, and what it does meanwhile: how busy
it is, what others take of it, and how full the chip is, from its performance counters.
"""

import math
import os
import re
import weakref
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from loadtune.errors import DeviceError
from loadtune.host.memory import read_ram
from loadtune.host.nvml import NOT_FOUND, NOT_SUPPORTED, NVML, NoAnswerError, Nvml, NvmlDevice
from loadtune.host.sensing import Look, Probe
from loadtune.records.facts import Device, GpuFacts, GpuProcess, HostFacts
from loadtune.units import bytes_text, percent_text

_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
"""A process may stand in several, with the same figure in each."""

_MEMORY_V2 = 0x02000028
"""NVML's number for the memory figures that hold the driver's own share apart, which drivers know since 510."""


def read_gpus(nvml: Nvml = NVML) -> tuple[GpuFacts, ...]:
    """The GPUs this process may use, in CUDA's order; empty where there are none, or no driver answers."""
    num = nvml.value("nvmlDeviceGetCount") or 0
    handles = [nvml.value("nvmlDeviceGetHandleByIndex", index) for index in range(num)]
    # One that does not say its name keeps its place, or the indices after it would name the wrong GPUs.
    installed = [(handle and nvml.value("nvmlDeviceGetUUID", handle)) or "" for handle in handles]
    visible = visible_uuids(os.environ.get("CUDA_VISIBLE_DEVICES"), installed)
    facts = (_read_gpu(NvmlDevice(uuid, nvml)) for uuid in visible)
    return tuple(gpu for gpu in facts if gpu is not None)


def _read_gpu(device: NvmlDevice) -> GpuFacts | None:
    """None: a GPU that cannot be read (fallen off the bus, a MIG name of no instance) cannot be trained on."""
    memory, index = _read_memory(device), device.value("nvmlDeviceGetIndex")
    if device.uuid.startswith("MIG-"):  # an instance has no index of its own
        parent = device.value("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
        index = None if parent is None else device.nvml.value("nvmlDeviceGetIndex", parent)
    if memory is None or index is None:
        return None
    total_bytes, free_bytes, driver_bytes = memory
    rates = device.value("nvmlDeviceGetUtilizationRates")  # of the last 1/6 to 1 s; under MIG there is none
    return GpuFacts(
        uuid=device.uuid,
        index=index,
        name=device.value("nvmlDeviceGetName") or "NVIDIA GPU",
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        utilization_fraction=None if rates is None else float(rates.gpu) / 100,
        processes=_read_processes(device),
        driver_bytes=driver_bytes,
    )


def _read_memory(device: NvmlDevice) -> tuple[int, int, int | None] | None:
    """Total, free, and the driver's own. A GPU without memory of its own (GB10, Jetson) shares the machine's, and NVML
    refuses to say."""
    try:
        memory = device.value("nvmlDeviceGetMemoryInfo", _MEMORY_V2) or device.ask("nvmlDeviceGetMemoryInfo")
    except NoAnswerError as error:
        if error.code != NOT_SUPPORTED:
            return None
        ram = read_ram()
        return ram.limit_bytes, ram.available_bytes, None
    return int(memory.total), int(memory.free), getattr(memory, "reserved", None)


def _read_processes(device: NvmlDevice) -> tuple[GpuProcess, ...]:
    """Names are NVML's: in a container the process ids are the host's, and /proc would name somebody else."""
    used: dict[int, int | None] = {}
    for process in (process for function in _PROCESS_LISTS for process in device.value(function) or ()):
        known = (held for held in (used.get(process.pid), process.usedGpuMemory) if held is not None)
        used[int(process.pid)] = max(map(int, known), default=None)
    commands = {pid: str(device.nvml.value("nvmlSystemGetProcessName", pid) or "") for pid in used}
    # ``/usr/bin/python3`` → python3; browsers put their options behind it.
    names = {pid: each.partition(" -")[0].rpartition("/")[2].strip() or None for pid, each in commands.items()}
    found = [GpuProcess(pid=pid, name=names[pid], used_bytes=held) for pid, held in used.items()]
    return tuple(sorted(found, key=lambda process: -(process.used_bytes or 0)))


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
        return next(iter(installed[int(entry) :]), None)
    named = matching(entry, installed) if entry.startswith("GPU-") else []
    return named[0] if len(named) == 1 else None


def matching(prefix: str, uuids: Sequence[str]) -> list[str]:
    """The UUIDs that begin with ``prefix``, whatever its case; one that equals it stands alone."""
    wanted = prefix.lower()
    exact = [uuid for uuid in uuids if uuid.lower() == wanted]
    return exact or [uuid for uuid in uuids if uuid.lower().startswith(wanted)]


FREE_TIE_FRACTION = 0.01
"""Free memory this close counts as equal, so that utilization decides: a busy GPU can cost half the throughput."""


def choose_device(host: HostFacts, requested: str | None) -> Device:
    """``requested``: None, ``cpu``, ``cuda``, ``cuda:N`` (N among the visible GPUs), or a UUID or its beginning.

    None takes the freest GPU, else the CPU. Raises DeviceError where the GPU asked for is not there.
    """
    wanted = "cuda" if requested is None else requested.strip().lower()
    if wanted == "cpu" or (requested is None and not host.gpus):
        return Device(kind="cpu", name=host.cpu_name or "CPU")
    if wanted == "cuda":
        found = [freest_gpu(host)] if host.gpus else []
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
        raise _refusal(host, "This machine has no GPU that can be used.", instead="")
    enough = max(gpu.free_bytes for gpu in host.gpus) * (1 - FREE_TIE_FRACTION)
    free = (gpu for gpu in host.gpus if gpu.free_bytes >= enough)
    # One that does not say how busy it is comes after those that do.
    return min(free, key=lambda gpu: math.inf if gpu.utilization_fraction is None else gpu.utilization_fraction)


def _refusal(host: HostFacts, problem: str, instead: str = ", or use the CPU: --device cpu") -> DeviceError:
    """With what there is and what may be asked for, so that it can be mended without another command."""
    if host.gpus:
        lines = (
            f"cuda:{number} is {gpu.name} ({gpu.uuid}, {bytes_text(gpu.free_bytes)} free, "
            f"{percent_text(gpu.utilization_fraction)} busy)"
            for number, gpu in enumerate(host.gpus)
        )
        return DeviceError(
            f"{problem} Visible GPUs: {'; '.join(lines)}. Ask for cpu, cuda, cuda:N or the beginning of a GPU's UUID "
            "with --device; without it the freest GPU is taken."
        )
    found = "No NVIDIA driver answered on this machine."
    if host.driver is not None:
        found = f"The NVIDIA driver ({host.driver}) is there, but no GPU is visible to this process."
    return DeviceError(f"{problem} {found} Check nvidia-smi and CUDA_VISIBLE_DEVICES{instead}.")


_FIRST_NAMESPACE = "pid:[4026531836]"
"""The kernel's first namespace has this number always (PROC_PID_INIT_INO): its ids are those the driver sees."""

_UTILIZATION_SAMPLES = 1
"""NVML_GPU_UTILIZATION_SAMPLES, which are in percent."""

_GPM_VERSION, _GPM_SM_UTIL = 1, 2
"""NVML_GPM_METRICS_GET_VERSION and NVML_GPM_METRIC_SM_UTIL, which is in percent."""


def gpu_use(device: NvmlDevice) -> Probe:
    """Duty cycle at a moment."""
    figure = "gpu_utilization_fraction"
    return Probe((figure,), lambda: {figure: device.ask("nvmlDeviceGetUtilizationRates").gpu / 100})


class GpuBusy:
    """Share of the time in which kernels run, by samples that the driver takes by itself and keeps for some seconds."""

    def __init__(self, uuid: str | None, nvml: Nvml = NVML) -> None:
        self._device = NvmlDevice(uuid or "", nvml)
        self._percents, self._until = list[int](), 0
        self.look()

    def look(self) -> float | None:
        """Since the beginning. None: the driver does not say."""
        _, samples = self._device.value("nvmlDeviceGetSamples", _UTILIZATION_SAMPLES, self._until) or (None, ())
        self._percents += [each.sampleValue.uiVal for each in samples if each.timeStamp > self._until]
        self._until = max([self._until, *(each.timeStamp for each in samples)])
        return fmean(self._percents) / 100 if self._percents else None


class GpuOthers:
    """SM share of all processes but our own. Ids of processes mean nothing across a container's border."""

    figures = ("gpu_others_sm_fraction",)

    def __init__(
        self, device: NvmlDevice, own_pids: Callable[[], Container[int]], namespace: Path = Path("/proc/self/ns/pid")
    ) -> None:
        self._device, self._own_pids = device, own_pids
        # Where that cannot be read the ids are taken for the driver's.
        self._is_inside = namespace.is_symlink() and str(namespace.readlink()) != _FIRST_NAMESPACE
        self._seen_us: int | None = None
        """Stamp of the newest sample known; None: nothing was asked yet."""

    def look(self) -> Look:
        """Mean of each process's samples, summed. Left out: the driver's empty and impossible ones."""
        if self._is_inside:
            raise NoAnswerError("in a container process ids are not the driver's")
        own, seen_us = self._own_pids(), self._seen_us or 0
        try:
            samples = self._device.ask("nvmlDeviceGetProcessUtilization", seen_us)
        except NoAnswerError as error:
            if error.code != NOT_FOUND:
                raise
            samples = ()  # nobody has used the GPU since
        fresh = [sample for sample in samples if sample.timeStamp > seen_us]
        # The first answer is the driver's whole memory of the past.
        is_first, self._seen_us = self._seen_us is None, max((int(s.timeStamp) for s in fresh), default=seen_us)
        each: dict[int, list[float]] = {}
        for sample in fresh:
            if sample.pid and sample.pid not in own and sample.smUtil <= 100:
                each.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
        return {"gpu_others_sm_fraction": None if is_first else sum(map(fmean, each.values()))}


class Gpm:
    """Activity between the last look and this one, by the performance counters."""

    figures = ("gpu_sm_activity_fraction",)

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._buffers: list[Any] = []
        """The last sample first, the one to fill next behind it."""
        self._has_last = False

    def look(self) -> Look:
        if not self._buffers and not self._device.ask("nvmlGpmQueryDeviceSupport").isSupportedDevice:
            raise NoAnswerError("not supported by this GPU: it takes Hopper or newer")
        while len(self._buffers) < 2:
            self._buffers.append(self._device.nvml.ask("nvmlGpmSampleAlloc"))
            weakref.finalize(self, self._device.nvml.value, "nvmlGpmSampleFree", self._buffers[-1])
        last, spare = self._buffers
        had_last, self._has_last = self._has_last, False
        self._device.ask("nvmlGpmSampleGet", spare)
        self._buffers, self._has_last = [spare, last], True
        if not had_last:
            return {"gpu_sm_activity_fraction": None}
        asked = self._device.nvml.ask("c_nvmlGpmMetricsGet_t")
        asked.version, asked.numMetrics = _GPM_VERSION, 1
        asked.sample1, asked.sample2 = last, spare
        asked.metrics[0].metricId = _GPM_SM_UTIL
        self._device.nvml.ask("nvmlGpmMetricsGet", asked)
        metric = asked.metrics[0]
        if metric.nvmlReturn != 0:
            raise NoAnswerError(f"NVML's error {metric.nvmlReturn} for this counter")
        # Not a number: nothing was counted.
        return {"gpu_sm_activity_fraction": metric.value / 100 if math.isfinite(metric.value) else None}
