"""What the machine did while something ran, seen from outside of the training process.

Everywhere: None is "could not be read", 0 is measured. Means are integrals over time divided by it, so that a sampler
that was late does not bend them.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the machine does right now. None: could not be read."""

    at_s: float
    """On the machine's monotonic clock."""
    gpu_utilization_fraction: float | None = None
    gpu_memory_used_bytes: int | None = None
    gpu_power_w: float | None = None
    cpu_utilization_fraction: float | None = None
    bench_cpu_cores: float | None = None
    bench_rss_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUse:
    """What one DataLoader worker used."""

    cpu_cores: float | None = None
    """Near 1: this worker is full and cannot go faster. Near 0: it waits, for the disk or for room in its queue."""
    rss_bytes: int | None = None
    """Peak resident memory; pages it shares with the others are in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Memory that processes allocated themselves, at one moment: files they mapped and /dev/shm are not in it."""

    after_s: float
    """Since the span began."""
    main_bytes: int
    """The training process."""
    workers_bytes: int
    """All workers together; pages that they share with the training process are counted for each of them."""
    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Figures over a span, in slices of one length: value ``i`` is the mean from ``i`` to ``i + 1`` times ``slice_s``
    after the span's start. A series without any value is empty; a slice in which nothing is known is None."""

    slice_s: float
    gpu_utilization_fraction: tuple[float | None, ...] = ()
    cpu_utilization_fraction: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What the machine did during a span. None: could not be read, and `missing` says why."""

    seconds: float
    num_readings: int
    gpu_utilization_fraction: float | None = None
    """Duty cycle: share of time in which any kernel ran. 1.0 does not mean the chip is full; 0.5: it idles half."""
    gpu_utilization_p5_fraction: float | None = None
    """For 5% of the time the duty cycle was at or below this. Far below the mean: the GPU starves in fits."""
    gpu_utilization_p95_fraction: float | None = None
    gpu_idle_fraction: float | None = None
    """Share of time in which the duty cycle stood at zero: nothing ran at all."""
    gpu_memory_used_bytes: int | None = None
    """Peak over the span, other processes' share included."""
    gpu_power_w: float | None = None
    """Of the whole board, as the driver averages it."""
    gpu_energy_j: float | None = None
    """Of the whole board over the span, from the driver's own counter, which misses no moment."""
    gpu_sm_activity_fraction: float | None = None
    """Share of the SMs that had work, over time: how full the chip is, which the duty cycle does not say. Hopper on."""
    gpu_sm_occupancy_fraction: float | None = None
    """Warps in flight, of those that would fit. High is not a goal: well-made kernels need few."""
    gpu_tensor_activity_fraction: float | None = None
    """Share of time in which tensor cores worked. Near 0: the precision or the shapes keep the model off them."""
    gpu_dram_bandwidth_fraction: float | None = None
    """Of the memory's greatest bandwidth. Near 1: the training step is bound by memory."""
    gpu_pcie_read_bytes_per_s: float | None = None
    """Into the GPU: batches on their way from the host."""
    gpu_pcie_write_bytes_per_s: float | None = None
    """Out of the GPU."""
    gpu_sm_clock_hz: float | None = None
    gpu_memory_clock_hz: float | None = None
    gpu_others_memory_bytes: int | None = None
    """Peak GPU memory of processes that are not ours."""
    gpu_others_sm_fraction: float | None = None
    """Share of the SMs' time that other processes took. Above 0: the figures are not of this training alone."""
    cpu_utilization_fraction: float | None = None
    """Whole machine, of the usable cores: 1.0 is all of them busy. Under a CPU quota: of the quota, our group alone."""
    core_utilization_fractions: tuple[float, ...] | None = None
    """Each usable core, in order of its number. Some at 1 beside others at 0: pinned threads, or too few workers."""
    others_cpu_cores: float | None = None
    """Cores' worth of CPU time that other processes took of the usable cores, and the hypervisor of a virtual
    machine. Under a CPU quota: processes of our group."""
    cgroup_cpu_cores: float | None = None
    """Cores' worth of CPU time that our control group used, whoever else is on the machine."""
    num_cpu_throttles: int | None = None
    """Periods in which the group's CPU quota ran out. Above 0: the quota, not the cores, is the wall."""
    cpu_throttled_s: float | None = None
    """How long the group's threads were held back for it; more than the span where several were."""
    bench_cpu_cores: float | None = None
    """Cores' worth of CPU time the bench and its workers used: 3.0 is three cores full all the time."""
    bench_rss_bytes: int | None = None
    """Peak resident memory of the bench and its workers; pages they share are counted once per process. What else it
    started (`other_rss_bytes`) is not in it. Page-locked blocks that earlier runs left are, as in `main_rss_bytes`."""
    main_cpu_cores: float | None = None
    """The training process itself, all its threads. Near 1 with an idle GPU: Python is the wall."""
    main_rss_bytes: int | None = None
    workers_cpu_cores: float | None = None
    """All workers together. Near their number: they are the wall."""
    workers: tuple[WorkerUse, ...] = ()
    """In order of their start, which is the loader's own numbering. Empty: none, or not known."""
    memory: tuple[MemoryReading, ...] = ()
    """In order of time. Growth from first to last with every sample: the dataset keeps objects. Empty: not known."""
    other_cpu_cores: float | None = None
    """What else the bench and its workers started, for however short a time: compilers, a dataset's own decoders."""
    other_rss_bytes: int | None = None
    ram_available_bytes: int | None = None
    """At its least, under every limit in force."""
    ram_used_bytes: int | None = None
    """At its peak: limit less available."""
    shm_used_bytes: int | None = None
    """At its peak: batches on their way from the workers, and everybody else's."""
    disk_read_bytes_per_s: float | None = None
    """What the bench and its workers had fetched from storage. 0: all came from the page cache or was made up. What a
    file system in user space (FUSE) fetches is not in it."""
    file_read_bytes_per_s: float | None = None
    """What the workers read from files and pipes, wherever it came from; what the training process read as long as it
    had none. Files that are mapped into memory are not in it."""
    timeline: Timeline | None = None
    missing: dict[str, str] = field(default_factory=dict)
    """Which of these fields could not be had, and why. What does not apply here, such as a GPU's figures on a CPU, is
    None and not in it."""

    @property
    def cpu_throttled_fraction(self) -> float | None:
        """Of the CPU time that the control group used or had withheld by its quota, the second."""
        if self.cpu_throttled_s is None or self.cgroup_cpu_cores is None:
            return None
        asked_s = self.cpu_throttled_s + self.cgroup_cpu_cores * self.seconds
        return self.cpu_throttled_s / asked_s if asked_s > 0 else 0.0
