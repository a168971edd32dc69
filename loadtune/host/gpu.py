"""GPUs: which are there, who holds their memory, and what one does: how busy it is, what others take of it, and how
full the chip is, from its performance counters.

NVML has one door, which is opened by the first question, and makes no CUDA context. Whatever goes wrong, for a driver
that is missing, old or broken, is a `NoAnswerError`.
"""

import math
import os
import re
import threading
import weakref
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from loadtune.host.telemetry import Look, Probe
from loadtune.host.usable import read_ram
from loadtune.records.facts import GpuFacts, GpuProcess

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND = 2, 3, 4, 6, 13
"""NVML's own numbers, part of its ABI."""

PATIENCE_S = 5.0
"""For another thread's question: an answer takes milliseconds, so by then that one hangs in the driver."""

_WORDS = {
    INVALID_ARGUMENT: "not supported under MIG",
    NOT_SUPPORTED: "not supported by this GPU, or not under MIG",
    NO_PERMISSION: "no permission",
    FUNCTION_NOT_FOUND: "the driver is too old to tell",
}


class NoAnswerError(Exception):
    """Why NVML does not answer. `code` is its number of the error; None: it failed otherwise."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


class _Asked:
    """What answers questions by the names of NVML's functions."""

    def ask(self, function: str, *args: Any) -> Any:
        """What NVML's ``function`` answers. Raises NoAnswerError."""
        raise NotImplementedError

    def value(self, function: str, *args: Any) -> Any:
        """The same. None: it does not answer."""
        try:
            return self.ask(function, *args)
        except NoAnswerError:
            return None


class Nvml(_Asked):
    """An open NVML. Use `NVML`; tests open one of their own.

    One question at a time: where two threads sampled performance counters the process died in ``nvmlGpmSampleGet``
    (driver 580.159, two of three long runs).
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._lock = threading.Lock()
        self._patience_s = patience_s
        self._hangs = False
        """Some question did, and nobody waits for it a second time."""
        self._library: Any = None

    def ask(self, function: str, *args: Any) -> Any:
        if not self._lock.acquire(timeout=0.0 if self._hangs else self._patience_s):
            self._hangs = True
            raise NoAnswerError("the NVIDIA driver hangs")
        try:
            self._hangs = False
            return getattr(self._opened(), function)(*args)
        except NoAnswerError:
            raise
        except Exception as error:  # NVMLError for most; ctypes and decoding errors from a library of another driver
            code = getattr(error, "value", None)
            raise NoAnswerError(_WORDS.get(code or 0) or str(error) or type(error).__name__, code) from error
        finally:
            self._lock.release()

    def _opened(self) -> Any:
        if self._library is None:
            try:
                import pynvml

                pynvml.nvmlInit()
            except Exception as error:  # no driver, no permission, or a driver that does not match its kernel module
                raise NoAnswerError("no NVIDIA driver answers") from error
            self._library = pynvml
        return self._library


NVML = Nvml()


class NvmlDevice(_Asked):
    """One GPU or MIG instance by UUID."""

    def __init__(self, uuid: str, nvml: Nvml = NVML) -> None:
        self.uuid, self.nvml = uuid, nvml
        self._handle: Any = None

    def ask(self, function: str, *args: Any) -> Any:
        if self._handle is None:
            self._handle = self.nvml.value("nvmlDeviceGetHandleByUUID", self.uuid)
        if self._handle is None:
            self.nvml.ask("nvmlSystemGetDriverVersion")  # without a driver that is the reason
            raise NoAnswerError("the GPU does not answer")
        return self.nvml.ask(function, self._handle, *args)


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
