"""What machine is this, on which device of it does the training run, and what does it do right now? psutil and pynvml
are loaded by the first question. torch, which costs seconds and hundreds of megabytes, is never imported: the text of
its ``version.py`` is read."""

import importlib.util
import math
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from loadtune.errors import DeviceError, UsageError
from loadtune.host.gpu import NVML, Gpm, GpuOthers, Nvml, NvmlDevice, gpu_use, matching, read_gpus
from loadtune.host.processes import ProcessTree, cpu_use
from loadtune.host.telemetry import Probe, Sampler
from loadtune.host.usable import read_cpu_name, read_num_usable_cores, read_ram, read_shm, read_text
from loadtune.records.facts import Device, GpuFacts, HostFacts
from loadtune.records.measurement import Telemetry
from loadtune.units import bytes_text, percent_text


def read_host() -> HostFacts:
    """Read afresh on every call: free memory changes, and virtual machines grow. Raises UsageError off Linux."""
    if sys.platform != "linux":
        raise UsageError(f"loadtune runs on Linux, and this is {platform.system()}. Use a Linux machine or container.")
    ram, (shm_total, shm_free) = read_ram(), read_shm()
    origin = getattr(importlib.util.find_spec("torch"), "origin", None)  # finds the folder, runs nothing of it
    torch, cuda = parse_torch_versions(read_text(Path(origin).parent / "version.py") if origin else "")
    return HostFacts(
        hostname=socket.gethostname(),
        os=platform.platform(),
        python=platform.python_version(),
        torch=torch,
        cuda=cuda,
        driver=NVML.value("nvmlSystemGetDriverVersion"),
        cpu_name=read_cpu_name(),
        num_usable_cores=read_num_usable_cores(),
        num_listed_cores=os.sysconf("SC_NPROCESSORS_CONF"),  # also those that are offline, as lscpu lists them
        ram_total_bytes=ram.total_bytes,
        ram_limit_bytes=ram.limit_bytes,
        ram_available_bytes=ram.available_bytes,
        shm_total_bytes=shm_total,
        shm_free_bytes=shm_free,
        gpus=read_gpus(),
    )


def parse_torch_versions(version_py: str) -> tuple[str | None, str | None]:
    """Of torch and CUDA: ``__version__ = '2.11.0+cu130'`` → 2.11.0, ``cuda: Optional[str] = '13.0'`` → 13.0.

    None where there is no such line, and of CUDA for a CPU build, which says ``cuda = None``.
    """
    names = ("__version__", "cuda")
    found = (re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"+]+)", version_py, re.MULTILINE) for name in names)
    torch, cuda = (each and each[1] for each in found)
    return torch, cuda


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


def machine_probes(device: Device, pid: Callable[[], int | None], nvml: Nvml = NVML) -> tuple[Probe, ...]:
    """Without a GPU its figures have no probes, and NVML is never opened.

    ``pid`` is asked at each reading: the training process may be replaced, or be None, at any time.
    """
    tree = ProcessTree(pid)
    looks, reads = Probe(tree.figures, tree.look), Probe(tree.read_figures, tree.look_at_reads, 5)
    probes = (cpu_use(), Probe((), tree.search, 6), looks, reads)
    if device.uuid is None:
        return probes
    gpu = NvmlDevice(device.uuid, nvml)
    # NVIDIA asks for 0.1 s between two samples of the performance counters. Others come after the tree was looked at:
    # who is not known to be ours counts as somebody else.
    gpm, others = Gpm(gpu), GpuOthers(gpu, lambda: {process.pid for process in tree.last})
    return (*probes, gpu_use(gpu), Probe(gpm.figures, gpm.look, 5), Probe(others.figures, others.look, 10))


_TRIED_S = 0.25
"""Between the two looks that tell what can be had: performance counters want 0.1 s between them."""


def read_telemetry(device: Device) -> Telemetry:
    """What can be had on this machine, seen by looking twice: a quarter of a second of this very process."""
    sampler, start_s = Sampler(machine_probes(device, os.getpid)), time.monotonic()
    sampler.sample(everything=True)
    time.sleep(_TRIED_S)
    sampler.sample(everything=True)
    seen = sampler.between(start_s, time.monotonic())
    assert seen is not None
    return seen
