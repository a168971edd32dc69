"""What was timed: windows of training steps, what they say of the long run, and how a trial can end otherwise. A window
ends at a device synchronisation. Windows abut: nothing between two of them goes unmeasured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.records.config import Precision, Recipe, TrialConfig
from loadtune.records.facts import HostFacts
from loadtune.records.loading import LoadingStep
from loadtune.records.telemetry import Telemetry
from loadtune.statistics.interval import Interval, around
from loadtune.statistics.rate import delivered_samples, half_width_fraction, samples_per_s
from loadtune.units import counted

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
