"""What was timed: windows of training steps, what they say of the long run, what the machine did meanwhile, and how a
trial can end otherwise. A window ends at a device synchronisation. Windows abut: nothing between two of them goes
unmeasured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.records.config import Precision, Recipe, TrialConfig
from loadtune.records.facts import HostFacts
from loadtune.records.loading import LoadingStep
from loadtune.records.statistics import Interval, around, mean_of_series
from loadtune.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Means over slices of one length. A series without any value is empty; a slice without one is None."""

    slice_s: float
    gpu_utilization_fraction: tuple[float | None, ...] = ()
    cpu_utilization_fraction: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What the machine did during a span, seen from outside of the training process. None: could not be read, and
    `missing` says why; 0 is measured. Means are integrals over time divided by it."""

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


PAGE_LOCK_SHARE = 0.01
"""Of a window's seconds. A block for a label a sample is locked as well, and nobody waits for that little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some consecutive training steps, synchronised with the device at both ends."""

    start_s: float
    """On the monotonic clock that all processes of the machine share."""
    seconds: float
    num_steps: int
    num_samples: int
    num_tokens: int | None = None
    """Elements of the batches' ``input_ids``, padding included. None: they have none, or nothing was loaded."""
    wait_s: float = 0.0
    """Host time spent in ``next(loader)``. Near 0: data was always there; near ``seconds``: the loader is the wall."""
    queue_start: float | None = None
    """Batches made ahead when the window began, unfinished ones in part. None: no queue (0 workers, resident batch)."""
    queue_end: float | None = None
    copy_s: float | None = None
    """Copies to the device: device time on CUDA, host time on a CPU. None, here and below: not measured."""
    compute_s: float | None = None
    """Forward pass to optimizer step. On CUDA gaps between kernels are in it."""
    num_skipped_steps: int = 0
    """Steps in which GradScaler left the optimizer out (fp16 overflow), which makes them faster. Where gradients are
    summed over several batches, all steps whose gradients were left out."""
    num_pinned: int | None = None
    """Batches that the pinning thread finished in this window. None, here and below: no thread pins."""
    least_unpinned: int | None = None
    """Fewest finished batches that waited for the pinning thread when a step asked for its batch. Above 0 the thread
    was always busy: `num_pinned` is its limit."""
    num_taken: int | None = None
    """Batches that the training process itself took from the workers. None: a pinning thread does, or no queue."""
    least_untaken: int | None = None
    """Minimum of the batches that it had left to take, before and after it took its own. Above 0 it hardly waited for a
    worker: its time in ``next(loader)`` is its own work, and `num_taken` is its limit."""
    page_lock_s: float | None = None
    """Host time in page-locking memory, of calls that ended in this window. A fresh loader locks pages until its queue
    was full once, and steps wait meanwhile. None: not on CUDA, or not known."""

    loss_is_finite: bool | None = None
    """Whether the loss of every step of the run so far was a finite number, warm-up included. None: not measured."""

    @property
    def end_s(self) -> float:
        return self.start_s + self.seconds

    @property
    def num_collected(self) -> int | None:
        """Batches taken from the workers by the pinning thread, without one by the training process. None: neither."""
        return self.num_taken if self.num_pinned is None else self.num_pinned

    @property
    def is_settling(self) -> bool:
        """Whether this is not yet how training goes on: fp16's scale is being found, or memory page-locked."""
        return self.num_skipped_steps > 0 or (self.page_lock_s or 0.0) > PAGE_LOCK_SHARE * self.seconds


Windows: TypeAlias = Sequence[Window]


def delivered_samples(windows: Windows) -> float:
    """What these windows would have trained on if each had begun and ended with an equally long queue: the long run.

    The least of three figures. What the workers made: a queue that shrinks is no throughput. What was taken from the
    workers, where whoever takes was always busy: batches that pile up there are no throughput either. What the steps
    alone would have consumed: where they hardly waited, a growing queue is no credit.
    """
    consumed, (seconds, waited, steps) = float(sum(w.num_samples for w in windows)), _sums(windows)
    grown = [w.queue_end - w.queue_start for w in windows if w.queue_end is not None and w.queue_start is not None]
    if len(grown) < len(windows) or steps == 0:
        return consumed
    made = consumed * (1 + math.fsum(grown) / steps)
    taken = consumed * seconds / (seconds - waited) if waited < seconds else math.inf
    return max(0.0, min(made, taken, consumed / steps * _collectable(windows)))


def _sums(windows: Windows) -> tuple[float, float, int]:
    """(Seconds, seconds of waiting, steps.)"""
    return sum(w.seconds for w in windows), sum(w.wait_s for w in windows), sum(w.num_steps for w in windows)


def _busy(windows: Windows) -> Windows:
    """Windows in which whoever takes batches from the workers was always busy. Empty: less than half of the time."""
    busy = [w for w in windows if (w.least_unpinned or w.least_untaken or 0) > 0 and w.num_collected is not None]
    return busy if _sums(busy)[0] >= _sums(windows)[0] / 2 else []


def _collectable(windows: Windows) -> float:
    """Batches that could have been collected from the workers in all windows, at the rate of the busy ones; no fewer
    than were collected. Infinite where whoever collects was idle, or was not watched: no bound then.

    Without a pinning thread the training process collects while it seems to wait, and trains in the rest of the time.
    """

    def at_once(some: Windows) -> float:
        collected, (seconds, waited, steps) = sum(w.num_collected or 0 for w in some), _sums(some)
        if any(w.num_pinned is not None for w in some):
            return collected
        return seconds / (waited / collected + (seconds - waited) / steps) if collected else math.inf

    busy = _busy(windows)
    return max(at_once(busy) * _sums(windows)[0] / _sums(busy)[0], at_once(windows)) if busy else math.inf


def samples_per_s(windows: Windows) -> float:
    """Throughput over abutting windows: delivered samples ÷ wall seconds. Raises ValueError on no windows."""
    if not windows:
        raise ValueError("no windows: nothing was measured")
    return delivered_samples(windows) / _sums(windows)[0]


def half_width_fraction(windows: Windows) -> float | None:
    """Half width of the 95% interval of the mean rate over windows, as a share of it; None below two windows.

    It knows only this run's own noise; fresh loaders differ by more, which the confirmation measures. Where collecting
    batches limits the rate, steps may be steadier than the collecting: the interval is no narrower than one batch.
    """
    rate = mean_of_series([w.num_samples for w in windows], [w.seconds for w in windows])
    width = rate and rate.half_width_fraction
    if width is None or not (collected := sum(w.num_collected or 0 for w in _busy(windows))):
        return width
    samples_a_step = sum(w.num_samples for w in windows) / _sums(windows)[2]
    is_limit = samples_a_step * _collectable(windows) <= delivered_samples(windows)
    return max(width, 1 / collected) if is_limit else width


FailureKind = Literal[
    "oom", "host_oom", "shm", "crash", "hang", "user_error", "unsupported", "non_finite_loss", "too_slow"
]

MEMORY_KINDS: tuple[FailureKind, ...] = ("oom", "host_oom", "shm")
"""The device's memory, the RAM or /dev/shm ran out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailure:
    """How a request to the training ended, when not with a figure. Data, never the end of the run."""

    kind: FailureKind
    """``host_oom`` killed for RAM; ``hang`` no sign of life; ``user_error`` the user's code raised; ``unsupported`` by
    the device; ``too_slow`` too few batches came in time."""
    phase: str
    """What was being done: ``build``, ``warm-up``, ``first batch``, ``training``, …"""
    message: str
    """One or two lines for people."""
    log_tail: str = ""
    """Last lines the process wrote, its traceback included; empty where there are none."""
    grown_bytes: int | None = None
    """RAM that the training process and its workers took until they were ended for it. None: they were not."""

    @property
    def is_of_memory(self) -> bool:
        """Whether the device's memory, the RAM or /dev/shm ran out."""
        return self.kind in MEMORY_KINDS


def is_barred(failures: Sequence[TrialFailure]) -> bool:
    """Whether a configuration with these failures is no answer. One may be chance, and what ran beside it counts; a
    loss that is not finite is none."""
    return len(failures) > 1 or any(failure.kind == "non_finite_loss" for failure in failures)


def raise_for_the_user(outcome: object) -> None:
    """Raise WorkloadError for a failure of the user's own code: it would fail in every other trial, too."""
    if isinstance(outcome, TrialFailure) and outcome.kind == "user_error":
        raise WorkloadError(f"{outcome.message.rstrip('.')}. Correct it, and run again.", outcome.log_tail or None)


def nothing_fits(problem: str, failure: TrialFailure) -> NothingFitsError:
    """With what to do about that."""
    return NothingFitsError(
        f"Even the smallest batch {problem}: {failure.message.rstrip('.')}. "
        "Free memory, choose another device with --device, or use a smaller model or --image-size."
    )


def non_finite_loss(precision: Precision, windows: Sequence[Window], phase: str) -> TrialFailure:
    """The failure of a run whose last window holds a loss that is NaN or infinite."""
    num_steps = sum(window.num_steps for window in windows)
    within = "in the first step" if num_steps == 1 else f"within the first {counted(num_steps, 'step')}"
    message = f"the loss in {precision} became NaN or infinite {within}"
    return TrialFailure(kind="non_finite_loss", phase=phase, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What the training says at the end of one timed run of training steps, beside the windows that it streamed."""

    first_batch_s: float
    """Until all workers were ready, and from there until one had loaded its first batch."""
    ready_s: float = 0.0
    """The part of it until all workers were ready."""
    peak_allocated_bytes: int | None = None
    """None on CPU."""
    batch_s: float = 0.0
    """Seconds in which a worker made a batch, by its own clock, mean over all. 0: there is none, or it tells none."""
    steps: tuple[LoadingStep, ...] = ()
    """What took the time of those that loaded, in this run and earlier ones with the same loader, the largest share
    first; at most `loading.KEPT_STEPS`. Empty: too little was seen."""
    differing: tuple[str, ...] = ()
    """What sets ranks apart, for people: one that loads more slowly than the others, or waits while they do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One configuration, timed on real training steps."""

    windows: tuple[Window, ...]
    """Those that count, one after the other: what came before still settled. At least one."""
    first_batch_s: float
    seconds: float
    """What this took, all told, start-up and warm-up included."""
    peak_allocated_bytes: int | None = None
    telemetry: Telemetry | None = None
    noisy: bool = False
    """It did not settle in time: it was measured while memory pages were locked or steps skipped."""
    epoch_samples: int | None = None
    """Samples of one epoch. None: not known."""
    restart_s: float = 0.0
    """Seconds that the start of workers adds to every epoch. 0: they outlive it, or there are none."""
    refill_s: float = 0.0
    """Seconds in which a worker makes a batch: no epoch begins with one that is ready. 0: no workers, or not known."""
    steps: tuple[LoadingStep, ...] = ()
    """See `TrainingRun.steps`."""
    differing: tuple[str, ...] = ()
    """See `TrainingRun.differing`."""

    @property
    def samples_per_s(self) -> float:
        """While training goes on; the start of an epoch is not in it."""
        return samples_per_s(self.windows)

    @property
    def epoch_s(self) -> float | None:
        """Seconds of one epoch, with its start. None: its length is unknown. The loop waits for the first batch at
        least; where workers are the bottleneck that wait is part of their rate."""
        if self.epoch_samples is None:
            return None
        steady_s = self.epoch_samples / self.samples_per_s
        return self.restart_s + steady_s + max(0.0, self.refill_s - self.wait_fraction * steady_s)

    @property
    def score(self) -> float:
        """What it is ranked by: samples ÷ seconds of one epoch, or the rate where its length is unknown."""
        return self.samples_per_s if self.epoch_s is None else (self.epoch_samples or 0) / self.epoch_s

    @property
    def throughput(self) -> Interval:
        return around(self.samples_per_s, half_width_fraction(self.windows))

    @property
    def wait_fraction(self) -> float:
        """Share of wall time the training process waits for the loader in the long run: what the host saw, and what
        was spared it by batches that were made before, which are no throughput either (`delivered_samples`)."""
        consumed = sum(w.num_samples for w in self.windows)
        lasting = delivered_samples(self.windows) / consumed if consumed else 1.0
        seen = sum(w.wait_s for w in self.windows) / sum(w.seconds for w in self.windows)
        return max(seen, 1 - (1 - seen) * lasting)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePoint:
    """Training steps on one batch that stays on the device: what no loader can beat at this size and recipe."""

    recipe: Recipe
    batch_size: int
    windows: tuple[Window, ...]
    num_timings: int = 1
    """How often it was timed; this is the fastest timing. 0: one step from a fresh state, in which fp16 may leave the
    optimizer out: it shapes the curve, and is not the compute-only rate of a configuration."""

    @property
    def samples_per_s(self) -> float:
        return samples_per_s(self.windows)

    @property
    def quickest_per_s(self) -> float:
        """Samples/s of the fastest window: company on the machine slows a window down, nothing speeds one up."""
        return max(window.num_samples / window.seconds for window in self.windows)

    @property
    def quickest_step_s(self) -> float:
        """Of the fastest window."""
        return self.batch_size / self.quickest_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChoice:
    """Why a precision is trained the way it is: the points that were timed on one resident batch."""

    chosen: Recipe
    points: tuple[ComputePoint, ...]
    """The plain recipe first."""

    @property
    def point(self) -> ComputePoint:
        """What was timed with the chosen recipe."""
        return next(point for point in self.points if point.recipe == self.chosen)


# What these say of a configuration

DISTURBED = 0.1
"""Share of the usable cores, or of the GPU, used by other processes from which on a segment counts as disturbed."""

SAME, GAIN = 0.01, 0.03
"""Rates that differ by less are the same; and the gain from which on a change is worth a line, or a run of a final."""

LAST_SHARE = 0.04
"""Of the time budget, for what comes after the final."""

MISREAD = 1.1
"""Times the compute-only rate that no noise explains: the curve is trusted to 5%, fresh loaders differ by 7%."""


def taken_by_others(outcome: object, host: HostFacts) -> tuple[float, str]:
    """Share of the cores or of the GPU, whichever others used more of, and its name. 0: nothing, or not read."""
    seen = outcome.telemetry if isinstance(outcome, Measurement) else None
    cores = (seen and seen.others_cpu_cores) or 0.0
    gpu = (seen and seen.gpu_others_sm_fraction) or 0.0
    return max((cores / max(1, host.num_usable_cores), "CPU cores"), (gpu, "GPU"))


def compute_rate(points: Sequence[ComputePoint], config: TrialConfig) -> ComputePoint | None:
    """The fastest timing of exactly this recipe and batch size: other load can only slow a timing down."""
    same = [point for point in points if (point.recipe, point.batch_size) == (config.recipe, config.batch_size)]
    return max((point for point in same if point.num_timings), key=lambda point: point.samples_per_s, default=None)


def compute_fraction(points: Sequence[ComputePoint], config: TrialConfig, samples_per_s: float) -> float | None:
    """Share of the compute-only rate. None: that rate was not timed, or is below the trained one and was timed once,
    or is so far below it that it was misread."""
    point = compute_rate(points, config)
    share = None if point is None else samples_per_s / point.samples_per_s
    if point is None or share is None or share > MISREAD:
        return None
    return share if share <= 1.0 or point.num_timings > 1 else None
