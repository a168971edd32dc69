"""What machine is this, and what does it do right now? The only place that knows psutil, NVML, ``/proc`` and cgroups.

Importing it costs nothing: psutil, pynvml and the readers of the machine are loaded by the first question. torch is
looked at and not imported, which would cost the controller seconds and hundreds of megabytes: its version is in the
installed package's metadata, the CUDA version it was built for in the text of its ``version.py``.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path

from loadtune.errors import UsageError
from loadtune.host import cgroup, cpu, gpu, memory
from loadtune.host.gpu import choose_device, freest_gpu, read_gpus
from loadtune.host.telemetry import MonotonicClock, Sampler, read_telemetry
from loadtune.records.facts import HostFacts
from loadtune.units import counted

__all__ = [
    "MonotonicClock",
    "Sampler",
    "choose_device",
    "freest_gpu",
    "rank_cores",
    "rank_facts",
    "read_alloc_conf",
    "read_gpus",
    "read_host",
    "read_telemetry",
]

# PyTorch is renaming the first to the second.
_ALLOC_CONF = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def read_alloc_conf() -> str | None:
    """The settings of PyTorch's caching allocator, as the environment gives them. None: it gives none."""
    return next((os.environ[name] for name in _ALLOC_CONF if os.environ.get(name)), None)


def _torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:  # a source tree on PYTHONPATH
        return None


def read_host() -> HostFacts:
    """Read afresh on every call: free memory changes, and virtual machines grow. Raises UsageError off Linux."""
    if sys.platform != "linux":
        raise UsageError(f"loadtune runs on Linux, and this is {platform.system()}. Use a Linux machine or container.")
    ram, (shm_total, shm_free) = memory.read_ram(), memory.read_shm()
    return HostFacts(
        hostname=socket.gethostname(),
        os=platform.platform(),
        python=platform.python_version(),
        torch=_torch_version(),
        cuda=_cuda_version(),
        driver=gpu.read_driver(),
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


def rank_facts(host: HostFacts, ranks_per_node: int) -> HostFacts:
    """What one of so many ranks has of a machine. Raises UsageError where a rank would have no core."""
    if ranks_per_node == 1:
        return host
    cores = host.num_usable_cores
    if ranks_per_node > cores:
        raise UsageError(
            f"--ranks-per-node is {ranks_per_node}, but this machine has {counted(cores, 'usable core')} and each rank "
            f"needs one. Give at most {cores}, or leave --ranks-per-node out."
        )
    return replace(
        host,
        num_usable_cores=cores // ranks_per_node,
        ram_limit_bytes=host.ram_limit_bytes // ranks_per_node,
        ram_available_bytes=host.ram_available_bytes // ranks_per_node,
        shm_total_bytes=host.shm_total_bytes and host.shm_total_bytes // ranks_per_node,
        shm_free_bytes=host.shm_free_bytes and host.shm_free_bytes // ranks_per_node,
    )


def rank_cores(rank: HostFacts, ranks_per_node: int) -> tuple[int, ...] | None:
    """The cores to bind one of so many ranks to. None: it is the only one, and uses any."""
    return None if ranks_per_node == 1 else cpu.first_cores(rank.num_usable_cores)


def parse_cuda_version(version_py: str) -> str | None:
    """``cuda: Optional[str] = '13.0'`` → 13.0. None: a CPU build says ``cuda = None``."""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", version_py, flags=re.MULTILINE)
    return found[1] if found else None


def _cuda_version() -> str | None:
    found = importlib.util.find_spec("torch")  # finds the folder, runs nothing of it
    if found is None or found.origin is None:
        return None
    return parse_cuda_version(cgroup.read_text(Path(found.origin).parent / "version.py"))
