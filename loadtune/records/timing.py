"""What was timed, what the machine did meanwhile, and how a trial can end otherwise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadtune.errors import WorkloadError
from loadtune.records.configs import Precision, Recipe
from loadtune.records.score import Objective, Score
from loadtune.records.telemetry import Telemetry
from loadtune.records.window import Window, delivered_samples, half_width_fraction, samples_per_s
from loadtune.units import counted

FailureKind = Literal[
    "oom", "host_oom", "shm", "crash", "hang", "user_error", "unsupported", "non_finite_loss", "too_slow"
]


MEMORY_KINDS: tuple[FailureKind, ...] = ("oom", "host_oom", "shm")
"""The device's memory, the RAM or /dev/shm ran out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailure:
    """How a request to the bench ended, when not with a figure. Data, never the end of the run."""

    kind: FailureKind
    """``oom`` device memory; ``host_oom`` killed for RAM; ``shm`` /dev/shm ran full; ``crash`` the process died;
    ``hang`` no sign of life; ``user_error`` the dataset's or model's own code raised; ``unsupported`` the device
    cannot do this; ``non_finite_loss`` the loss became NaN or infinite; ``too_slow`` its queue was not turned over in
    time."""
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


def raise_for_the_user(outcome: object) -> None:
    """Raise WorkloadError for a failure of the user's own code: it would fail in every other trial, too."""
    if isinstance(outcome, TrialFailure) and outcome.kind == "user_error":
        raise WorkloadError(
            f"{outcome.message.rstrip('.')}. Correct it, and run again.",
            outcome.log_tail or None,
        )


def non_finite_loss(precision: Precision, windows: Sequence[Window], phase: str) -> TrialFailure:
    """The failure of a run whose last window holds a loss that is NaN or infinite."""
    num_steps = sum(window.num_steps for window in windows)
    what = "the value that step(batch) returned" if precision == "own" else f"the loss in {precision}"
    within = "in the first step" if num_steps == 1 else f"within the first {counted(num_steps, 'step')}"
    message = f"{what} became NaN or infinite {within}"
    return TrialFailure(kind="non_finite_loss", phase=phase, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """One worker's part in a run, first window to last. Workers deliver in turn, in the order of their numbers."""

    num_batches: int = 0
    """Handed out of those it made."""
    wait_s: float = 0.0
    """What the training process waited for them, all together."""
    max_wait_s: float = 0.0
    num_made: int = 0
    """Batches it made, also those that were not delivered. Without the first, for which a worker opens its files."""
    made_s: float = 0.0
    """Seconds of `num_made` by the worker's own clock, without collating and sending."""
    max_made_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What the bench says of one timed run of training steps, first window to last."""

    windows: tuple[Window, ...]
    first_batch_s: float
    """Until all workers were ready, and from there until one had loaded its first batch."""
    ready_s: float = 0.0
    """The part of it until all workers were ready."""
    num_skipped_steps: int = 0
    """Steps in which GradScaler left the optimizer out (fp16 overflow): they are faster than a real one."""
    peak_allocated_bytes: int | None = None
    """None on CPU."""
    peak_reserved_bytes: int | None = None
    workers: tuple[WorkerShare, ...] = ()
    """In the order of their numbers. Empty: 0 workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One configuration, timed on real training steps."""

    windows: tuple[Window, ...]
    """Those that count, one after the other: what came before still settled. At least one."""
    first_batch_s: float
    seconds: float
    """What this took, all told, start-up and warm-up included."""
    num_skipped_steps: int = 0
    """Of the whole run, as `TrainingRun` has it: most of them lie before the windows that count."""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    telemetry: Telemetry | None = None
    noisy: bool = False
    """It did not settle in time: it was measured while memory pages were locked or steps skipped."""
    workers: tuple[WorkerShare, ...] = ()
    """Of the whole run, warm-up included. Empty: 0 workers, or not measured."""
    repeated: bool = False
    """Whether it was run again, because other processes disturbed it; this is the quieter of the two."""
    epoch_samples: int | None = None
    """Samples of one epoch. None: not known."""
    restart_s: float = 0.0
    """Seconds that the start of workers adds to every epoch. 0: they outlive it, or there are none."""
    refill_s: float = 0.0
    """Seconds in which a worker makes a batch: no epoch begins with one that is ready. 0: there are no workers."""

    @property
    def samples_per_s(self) -> float:
        """While training goes on; the start of an epoch is not in it."""
        return samples_per_s(self.windows)

    @property
    def epoch_s(self) -> float | None:
        """Seconds of one epoch, with its start. None: its length is unknown.

        The loop waits for the first batch at least. Where workers are the bottleneck that wait is part of their rate.
        """
        if self.epoch_samples is None:
            return None
        steady_s = self.epoch_samples / self.samples_per_s
        return self.restart_s + steady_s + max(0.0, self.refill_s - self.wait_fraction * steady_s)

    @property
    def epoch_samples_per_s(self) -> float:
        """Samples ÷ seconds of one epoch; the rate where the length of an epoch is unknown."""
        return self.samples_per_s if self.epoch_s is None else (self.epoch_samples or 0) / self.epoch_s

    @property
    def half_width_fraction(self) -> float | None:
        return half_width_fraction(self.windows)

    @property
    def samples_per_joule(self) -> float | None:
        """Throughput over the mean power of the GPU's board meanwhile, by the driver's energy counter. The rest of the
        machine is not in it. None: no such counter could be read."""
        seen = self.telemetry
        if seen is None or not seen.gpu_energy_j:
            return None
        return self.samples_per_s * seen.seconds / seen.gpu_energy_j

    def score(self, objective: Objective) -> float:
        """What it is judged by; more is better. Raises ValueError where that was not measured."""
        score = self.epoch_samples_per_s if objective == "samples-per-s" else self.samples_per_joule
        if score is None:
            raise ValueError("no energy was read: this measurement has no samples per joule")
        return score

    def scored(self, objective: Objective) -> Score:
        """Throughput, or samples per joule where that is the objective. Energy is read over a whole run, so nothing of
        one run gives it an interval."""
        if objective == "samples-per-s":
            return Score(objective=objective, value=self.samples_per_s, half_width_fraction=self.half_width_fraction)
        return Score(objective=objective, value=self.score(objective), half_width_fraction=None)

    @property
    def wait_fraction(self) -> float:
        """Share of wall time the training process waits for the loader in the long run: what the host saw, and what
        was spared it by batches that were made before, which are no throughput either (`delivered_samples`)."""
        return self._standing_still(sum(w.wait_s for w in self.windows) / sum(w.seconds for w in self.windows))

    @property
    def compute_fraction(self) -> float | None:
        """Share of wall time in training steps. Near 1.0 the step is the bottleneck."""
        return self._at_work(_share([w.compute_s for w in self.windows], self.windows))

    @property
    def _lasting(self) -> float:
        """Of the samples that were trained on, those that would have been in the long run."""
        consumed = sum(w.num_samples for w in self.windows)
        return delivered_samples(self.windows) / consumed if consumed else 1.0

    def _at_work(self, seen: float | None) -> float | None:
        return None if seen is None else min(1.0, seen * self._lasting)

    def _standing_still(self, seen: float) -> float:
        return max(seen, 1 - (1 - seen) * self._lasting)


def _share(parts: Sequence[float | None], windows: Sequence[Window]) -> float | None:
    """Of the windows in which it was measured. None: in none of them."""
    known = [(part, w.seconds) for part, w in zip(parts, windows, strict=True) if part is not None]
    return math.fsum(part for part, _ in known) / math.fsum(seconds for _, seconds in known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePoint:
    """Training steps on one batch that stays on the device: what no loader can beat at this size and recipe."""

    recipe: Recipe
    batch_size: int
    windows: tuple[Window, ...]
    compile_s: float | None = None
    """Spent compiling before anything was timed; 0: this size had been compiled before. None: not a compiled recipe."""
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

    @property
    def step_s(self) -> float:
        return sum(w.seconds for w in self.windows) / sum(w.num_steps for w in self.windows)

    @property
    def half_width_fraction(self) -> float | None:
        return half_width_fraction(self.windows)


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
