"""Which GPUs are there, who holds their memory, which device the training runs on, and what it does meanwhile.

In: NVML's answers. Out: `GpuFacts`, in which what cannot be had is None; a `Device`; and probes: how busy the GPU is,
what processes that are not ours take of it, and how full the chip is, from its performance counters.
"""

import math
import os
import re
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from loadtune.errors import DeviceError
from loadtune.host.memory import read_ram
from loadtune.host.nvml import NOT_FOUND, NOT_SUPPORTED, NVML, Answer, Nvml, NvmlDevice
from loadtune.host.sensing import Look, Missing, Probe
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
    return GpuFacts(
        uuid=device.uuid,
        index=index,
        name=device.value("nvmlDeviceGetName") or "NVIDIA GPU",
        total_bytes=memory[0],
        free_bytes=memory[1],
        utilization_fraction=None if rates is None else float(rates.gpu) / 100,
        processes=_read_processes(device),
        driver_bytes=memory[2],
    )


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
        return DeviceError(
            f"{problem} Visible GPUs: {'; '.join(lines)}. Ask for cpu, cuda, cuda:N or the beginning of a GPU's UUID "
            "with --device; without it the freest GPU is taken."
        )
    found = "No NVIDIA driver answered on this machine."
    if host.driver is not None:
        found = f"The NVIDIA driver ({host.driver}) is there, but no GPU is visible to this process."
    return DeviceError(f"{problem} {found} Check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the CPU: --device cpu.")


_OWN_NAMESPACE = Path("/proc/self/ns/pid")
_FIRST_NAMESPACE = "pid:[4026531836]"
"""The kernel's first namespace has this number always (PROC_PID_INIT_INO): its ids are those the driver sees."""

_SM_CLOCK, _GPM_VERSION, _GPM_SM_UTIL = 1, 1, 2
"""NVML_CLOCK_SM, NVML_GPM_METRICS_GET_VERSION and NVML_GPM_METRIC_SM_UTIL, which is in percent."""


class GpuUse(Probe):
    """Duty cycle and clock at a moment."""

    figures = ("gpu_utilization_fraction", "gpu_sm_clock_hz")

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device

    def look(self, now_s: float) -> Look:
        rates = self._device.ask("nvmlDeviceGetUtilizationRates")
        clock = self._device.ask("nvmlDeviceGetClockInfo", _SM_CLOCK)
        return {
            "gpu_utilization_fraction": Missing(rates.reason) if rates.reason else rates.value.gpu / 100,
            "gpu_sm_clock_hz": Missing(clock.reason) if clock.reason else clock.value * 1_000_000,
        }


class GpuOthers(Probe):
    """SM share of all processes but our own. Ids of processes mean nothing across a container's border."""

    figures = ("gpu_others_sm_fraction",)

    def __init__(
        self, device: NvmlDevice, own_pids: Callable[[], Container[int]], namespace: Path = _OWN_NAMESPACE
    ) -> None:
        self._device, self._own_pids, self._namespace = device, own_pids, namespace
        self._seen_us: int | None = None
        """Stamp of the newest sample known; None: nothing was asked yet."""

    def look(self, now_s: float) -> Look:
        if not _sees_the_drivers_ids(self._namespace):
            return self.all_missing("in a container process ids are not the driver's")
        return {"gpu_others_sm_fraction": self._sm_share(self._own_pids())}

    def _sm_share(self, own: Container[int]) -> float | Missing | None:
        """Mean of each process's samples, summed. Left out: the driver's empty and impossible ones."""
        seen_us = self._seen_us or 0
        answer = self._device.ask("nvmlDeviceGetProcessUtilization", seen_us)
        if answer.reason is not None and answer.code != NOT_FOUND:
            return Missing(answer.reason)
        fresh = [sample for sample in answer.value or () if sample.timeStamp > seen_us]
        # The first answer is the driver's whole memory of the past. None at all: nobody has used the GPU since.
        first, self._seen_us = self._seen_us is None, max((int(s.timeStamp) for s in fresh), default=seen_us)
        each: dict[int, list[float]] = {}
        for sample in fresh:
            if sample.pid and sample.pid not in own and sample.smUtil <= 100:
                each.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
        return None if first else sum(fmean(shares) for shares in each.values())


def _sees_the_drivers_ids(namespace: Path) -> bool:
    """Whether the process ids we know are those that the driver lists. True where that cannot be read."""
    try:
        return str(namespace.readlink()) == _FIRST_NAMESPACE
    except OSError:
        return True


class Gpm(Probe):
    """Activity between the last look and this one, by the performance counters."""

    figures = ("gpu_sm_activity_fraction",)

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._refusal: str | None = None
        self._buffers: list[Any] = []
        """The last sample first, the one to fill next behind it."""
        self._has_last = False

    def look(self, now_s: float) -> Look:
        if not self._buffers and self._refusal is None:
            self._refusal = self._open()
        if self._refusal is not None:
            return self.all_missing(self._refusal)
        last, spare = self._buffers
        taken = self._device.ask("nvmlGpmSampleGet", spare)
        had_last, self._has_last = self._has_last, taken.reason is None
        if taken.reason is not None:
            return self.all_missing(taken.reason)
        self._buffers = [spare, last]
        return self._between(last, spare) if had_last else dict.fromkeys(self.figures)

    def close(self) -> None:
        for buffer in self._buffers:
            self._device.nvml.attempt("nvmlGpmSampleFree", buffer)
        self._buffers, self._has_last = [], False

    def _open(self) -> str | None:
        """Take the buffers. Returns why that cannot be."""
        support = self._device.ask("nvmlGpmQueryDeviceSupport")
        if support.reason is not None or not support.value.isSupportedDevice:
            return support.reason or "not supported by this GPU: it takes Hopper or newer"
        answers = [self._device.nvml.attempt("nvmlGpmSampleAlloc") for _ in range(2)]
        self._buffers = [answer.value for answer in answers if answer.reason is None]
        refusal = next((answer.reason for answer in answers if answer.reason is not None), None)
        if refusal is not None:
            self.close()
        return refusal

    def _between(self, earlier: Any, later: Any) -> Look:
        made = self._device.nvml.attempt("c_nvmlGpmMetricsGet_t")
        if made.reason is not None:
            return self.all_missing(made.reason)
        asked = made.value
        asked.version, asked.numMetrics = _GPM_VERSION, 1
        asked.sample1, asked.sample2 = earlier, later
        asked.metrics[0].metricId = _GPM_SM_UTIL
        answer = self._device.nvml.attempt("nvmlGpmMetricsGet", asked)
        if answer.reason is not None:
            return self.all_missing(answer.reason)
        metric = asked.metrics[0]
        if metric.nvmlReturn != 0:
            return self.all_missing(f"NVML's error {metric.nvmlReturn} for this counter")
        # Not a number where nothing was counted.
        return {"gpu_sm_activity_fraction": metric.value / 100 if math.isfinite(metric.value) else None}
