"""Which probes this machine gets, and how often each looks.

In: the device and the bench. Out: probes with their pace. What changes fast, and what is shown while it changes, is
looked at in every reading; the rest rarely, so that all of it together stays at a few per cent of one core.
"""

from collections.abc import Callable
from dataclasses import dataclass

from loadtune.host.anonymous import AnonymousMemory
from loadtune.host.bench_use import BenchUse, DiskReads
from loadtune.host.cgroup_cpu import GroupCpu
from loadtune.host.cpu import read_affinity
from loadtune.host.cpu_time import CoreUse, CpuUse, cpu_meter
from loadtune.host.gpm import Gpm
from loadtune.host.gpu_processes import GpuOthers
from loadtune.host.gpu_samples import GpuUtilization
from loadtune.host.gpu_state import GpuClocks, GpuEnergy, GpuMemory, GpuPower
from loadtune.host.nvml import NVML, Nvml, NvmlDevice
from loadtune.host.processes import ProcessTree
from loadtune.host.ram_use import RamUse
from loadtune.host.sensing import Probe
from loadtune.records import Device

EVERY_OTHER, OFTEN, SELDOM = 2, 5, 10
"""Five times a second, twice and once, at ten readings a second: every trial's span has several of each. NVIDIA asks
for 0.1 s between two samples of the performance counters."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A probe that looks at every ``every``-th reading, or less often where its looks are dear."""

    probe: Probe
    every: int = 1
    holds_a_lock: bool = False
    """While it is waited for, others wait too: then a look costs its whole time, else the CPU time it takes."""


def machine_probes(
    device: Device, pid: Callable[[], int | None], num_usable_cores: int, nvml: Nvml = NVML
) -> tuple[Scheduled, ...]:
    """Without a GPU its figures have no probes, and NVML is never opened."""
    tree = ProcessTree(pid)
    bench_and_cpu = (
        Scheduled(CpuUse(cpu_meter(num_usable_cores))),
        Scheduled(BenchUse(tree)),
        Scheduled(AnonymousMemory(tree), EVERY_OTHER),
        Scheduled(GroupCpu(), OFTEN),
        Scheduled(DiskReads(tree), OFTEN),
        Scheduled(CoreUse(read_affinity()), SELDOM),
        Scheduled(RamUse(), SELDOM),
    )
    if device.uuid is None:
        return bench_and_cpu
    return (*bench_and_cpu, *_gpu_probes(NvmlDevice(device.uuid, nvml), tree))


def _gpu_probes(gpu: NvmlDevice, tree: ProcessTree) -> tuple[Scheduled, ...]:
    """After the tree was looked at: who is not known to be ours counts as somebody else."""
    others = GpuOthers(gpu, lambda: {process.pid for process in tree.processes})
    paces: tuple[tuple[Probe, int], ...] = (
        (GpuUtilization(gpu), 1),
        (GpuMemory(gpu), 1),
        (GpuPower(gpu), 1),
        (GpuEnergy(gpu), 1),
        (Gpm(gpu), OFTEN),
        (GpuClocks(gpu), OFTEN),
        (others, SELDOM),
    )
    # NVML holds a lock of the driver's while it answers.
    return tuple(Scheduled(probe, every, holds_a_lock=True) for probe, every in paces)
