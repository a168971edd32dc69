"""What the machine did while something ran, seen from outside of the training process. None is "could not be read", 0
is measured. Means are integrals over time divided by it.
"""

from dataclasses import dataclass, field, replace

from loadtune.records.config import TrialConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Means over slices of one length. A series without any value is empty; a slice without one is None."""

    slice_s: float
    gpu_utilization_fraction: tuple[float | None, ...] = ()
    cpu_utilization_fraction: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What the machine did during a span. None: could not be read, and `missing` says why."""

    seconds: float
    gpu_utilization_fraction: float | None = None
    """Duty cycle: share of time in which any kernel ran. 1.0 does not mean the chip is full; 0.5: it idles half."""
    gpu_sm_activity_fraction: float | None = None
    """Share of the SMs that had work, over time: how full the chip is, which the duty cycle does not say. Hopper on."""
    gpu_others_sm_fraction: float | None = None
    """Share of the SMs' time that other processes took. Above 0: the figures are not of this training alone."""
    cpu_utilization_fraction: float | None = None
    """Whole machine, of the usable cores: 1.0 is all of them busy. Under a CPU quota: of the quota, our group alone."""
    others_cpu_cores: float | None = None
    """CPU time of other processes on the usable cores, and of the hypervisor, in cores. Under a quota: of our group."""
    training_rss_bytes: int | None = None
    """Peak resident memory of the training process and its workers; shared pages count once per process. Page-locked
    blocks of earlier runs are in it, other processes that they started are not."""
    workers_cpu_cores: float | None = None
    """All workers together. Near their number: they are the bottleneck."""
    workers_growth_bytes_per_s: float | None = None
    """Least growth of all workers' memory from one quarter of the span to the next. Not in it: the page cache, shared
    memory, pages of the training process that a worker writes to. None: no workers, or not known all the time."""
    disk_read_bytes_per_s: float | None = None
    """What was fetched from storage. 0: all came from the page cache. Not in it: what FUSE file systems fetch."""
    file_read_bytes_per_s: float | None = None
    """What the workers, or without any the training process, read from files and pipes. Not in it: mapped files."""
    timeline: Timeline | None = None
    missing: dict[str, str] = field(default_factory=dict)
    """Which of these fields could not be read, and why. Without what does not apply, such as a GPU's on a CPU."""

    def of_one(self, num_ranks: int) -> "Telemetry":
        """Of one rank of so many: what their workers do is counted together."""
        together = ["workers_cpu_cores", "workers_growth_bytes_per_s", "disk_read_bytes_per_s", "file_read_bytes_per_s"]
        seen = {name: value for name in together if (value := getattr(self, name)) is not None}
        rss = self.training_rss_bytes if num_ranks == 1 else None  # of the launcher and all workers
        return replace(self, training_rss_bytes=rss, **{name: value / num_ranks for name, value in seen.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands. A new one comes with every step worth a line, and with every timed window."""

    stage: str
    """``start``, ``calibrate``, ``study``, ``changes``, ``verify``, ``confirm``."""
    message: str | None = None
    """One line that stays: something was found out. None: only the figures moved."""
    warning: bool = False
    """The message is something the user should know before trusting the answer."""
    number: int = 1
    """Of the trial that is made, or of the run of the confirmation."""
    num_trials: int | None = None
    """That the search makes at most."""
    config: TrialConfig | None = None
    """What is being measured."""
    current_samples_per_s: float | None = None
    best_samples_per_s: float | None = None
    best_config: TrialConfig | None = None
    left_s: float
    """Of the time budget. A run takes no longer, and mostly less."""
    expected_s: float | None = None
    """That the run is expected to take from now on. None: its search has not begun."""
