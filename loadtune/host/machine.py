"""What machine is this, and what does it do right now? psutil and pynvml are loaded by the first question. torch, which
costs seconds and hundreds of megabytes, is never imported: the text of its ``version.py`` is read."""

import importlib.util
import os
import platform
import re
import socket
import sys
from pathlib import Path

from loadtune.errors import UsageError
from loadtune.host import cgroup, cpu, memory
from loadtune.host.gpu import choose_device, freest_gpu, read_gpus
from loadtune.host.nvml import NVML
from loadtune.host.telemetry import Sampler, machine_probes, read_telemetry
from loadtune.records.facts import HostFacts


def read_host() -> HostFacts:
    """Read afresh on every call: free memory changes, and virtual machines grow. Raises UsageError off Linux."""
    if sys.platform != "linux":
        raise UsageError(f"loadtune runs on Linux, and this is {platform.system()}. Use a Linux machine or container.")
    ram, (shm_total, shm_free) = memory.read_ram(), memory.read_shm()
    origin = getattr(importlib.util.find_spec("torch"), "origin", None)  # finds the folder, runs nothing of it
    torch, cuda = parse_torch_versions(cgroup.read_text(Path(origin).parent / "version.py") if origin else "")
    return HostFacts(
        hostname=socket.gethostname(),
        os=platform.platform(),
        python=platform.python_version(),
        torch=torch,
        cuda=cuda,
        driver=NVML.value("nvmlSystemGetDriverVersion"),
        cpu_name=cpu.read_cpu_name(),
        num_usable_cores=cpu.read_num_usable_cores(),
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
