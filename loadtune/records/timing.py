"""What was timed: windows of steps, what the machine did meanwhile, and how a trial can end otherwise.

Raw windows are kept; statistics are derived from them. A window ends at a device synchronisation, so its wall seconds
are the seconds its steps took. Windows abut: nothing between two of them goes unmeasured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadtune.records import intervals
from loadtune.records.configs import Recipe

FailureKind = Literal["oom", "host_oom", "shm", "crash", "hang", "user_error", "unsupported"]


MEMORY_KINDS: tuple[FailureKind, ...] = ("oom", "host_oom", "shm")
"""The device's memory, the RAM or /dev/shm ran out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailure:
    """How a request to the bench ended, when not with a figure. Data, never the end of the run."""

    kind: FailureKind
    """``oom`` device memory; ``host_oom`` killed for RAM; ``shm`` /dev/shm ran full; ``crash`` the process died;
    ``hang`` no sign of life; ``user_error`` the dataset's or model's own code raised; ``unsupported`` the device
    cannot do this."""
    phase: str
    """What was being done: ``build``, ``warm-up``, ``first batch``, ``training``, …"""
    message: str
    """One or two lines for people."""
    log_tail: str = ""
    """Last lines the process wrote, its traceback included; empty where there are none."""

    @property
    def is_of_memory(self) -> bool:
        """Whether the device's memory, the RAM or /dev/shm ran out."""
        return self.kind in MEMORY_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some consecutive training steps, synchronised with the device at both ends."""

    start_s: float
    """On the monotonic clock that all processes of the machine share."""
    seconds: float
    num_steps: int
    num_samples: int
    wait_s: float = 0.0
    """Host time spent in ``next(loader)``. Near 0: data was always there; near ``seconds``: the loader is the wall."""
    queue_start: float | None = None
    """Batches ready in the prefetch queue when the window began. None: no queue (0 workers, resident batch)."""
    queue_end: float | None = None

    @property
    def end_s(self) -> float:
        return self.start_s + self.seconds


def delivered_samples(windows: Sequence[Window]) -> float:
    """Samples these abutting windows trained on, less those that only came out of a queue that ran down meanwhile.

    A batch that was prefetched before the first window began is not throughput. A queue that filled up is no credit:
    then the training step was the slower side and what it consumed is the throughput.
    """
    consumed = float(sum(w.num_samples for w in windows))
    steps = sum(w.num_steps for w in windows)
    first, last = windows[0].queue_start, windows[-1].queue_end
    if first is None or last is None or steps == 0:
        return consumed
    drained_steps = min(max(0.0, first - last), float(steps))
    return consumed * (1 - drained_steps / steps)


def samples_per_s(windows: Sequence[Window]) -> float:
    """Throughput over abutting windows: delivered samples ÷ wall seconds. Raises ValueError on no windows."""
    if not windows:
        raise ValueError("no windows: nothing was measured")
    return delivered_samples(windows) / sum(w.seconds for w in windows)


def half_width_fraction(windows: Sequence[Window]) -> float | None:
    """Half width of the 95% interval of the mean rate over windows, as a share of it; None below two windows.

    It knows only this run's own noise; fresh loaders differ by more, which the confirmation measures.
    """
    return intervals.half_width_fraction([w.num_samples for w in windows], [w.seconds for w in windows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What the machine did during a span, sampled from outside the training process. None: could not be read."""

    seconds: float
    num_readings: int
    gpu_utilization_fraction: float | None = None
    """Duty cycle: share of time in which any kernel ran. 1.0 does not mean the chip is full; 0.5: it idles half."""
    gpu_memory_used_bytes: int | None = None
    """Peak over the span, other processes' share included."""
    gpu_power_w: float | None = None
    cpu_utilization_fraction: float | None = None
    """Whole machine, of the usable cores: 1.0 is all of them busy."""
    bench_cpu_cores: float | None = None
    """Cores' worth of CPU time the bench and its workers used: 3.0 is three cores full all the time."""
    bench_rss_bytes: int | None = None
    """Peak resident memory of the bench and its workers; pages they share are counted once per process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What the bench says of one timed run of training steps, first window to last."""

    windows: tuple[Window, ...]
    first_batch_s: float
    """From ``iter(loader)`` to the first batch in hand: workers' start-up included."""
    num_skipped_steps: int = 0
    """Steps in which GradScaler left the optimizer out (fp16 overflow): they are faster than a real one."""
    peak_allocated_bytes: int | None = None
    """None on CPU."""
    peak_reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One configuration, timed on real training steps with a fresh loader."""

    windows: tuple[Window, ...]
    """Those that count: warm-up is already left out. At least one."""
    first_batch_s: float
    seconds: float
    """What this took, all told, start-up and warm-up included."""
    num_skipped_steps: int = 0
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    telemetry: Telemetry | None = None
    noisy: bool = False
    """The run ended before its interval was narrow enough and its halves agreed."""

    @property
    def samples_per_s(self) -> float:
        return samples_per_s(self.windows)

    @property
    def half_width_fraction(self) -> float | None:
        return half_width_fraction(self.windows)

    @property
    def wait_fraction(self) -> float:
        """Share of wall time the training process waited for the loader, as the host saw it."""
        return sum(w.wait_s for w in self.windows) / sum(w.seconds for w in self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePoint:
    """Training steps on one batch that stays on the device: what no loader can beat at this size and recipe."""

    recipe: Recipe
    batch_size: int
    windows: tuple[Window, ...]

    @property
    def samples_per_s(self) -> float:
        return samples_per_s(self.windows)

    @property
    def quickest_per_s(self) -> float:
        """Samples/s of the fastest window: company on the machine slows a window down, nothing speeds one up."""
        return max(window.num_samples / window.seconds for window in self.windows)

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
    def gain(self) -> float | None:
        """Chosen over plain by their fastest windows, as it was chosen; 1.0 is no gain. None: plain was not timed."""
        plain = next((p for p in self.points if p.recipe == Recipe(precision=self.chosen.precision)), None)
        best = next((p for p in self.points if p.recipe == self.chosen), None)
        return best.quickest_per_s / plain.quickest_per_s if plain and best else None
