"""Fakes for every seam: a training with a known surface and memory line, a clock, a sensor. With them the whole tuner
runs in about a second, with known answers."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from loadtune.errors import OutOfTimeError
from loadtune.records.config import Precision, Recipe, TrialConfig
from loadtune.records.facts import GpuFacts, HostFacts, WorkloadFacts
from loadtune.records.loading import Examined
from loadtune.records.measurement import ComputePoint, Telemetry, TrainingRun, TrialFailure, Window
from loadtune.records.memory import NUM_STEPS, BatchTry, FitReport
from loadtune.seams import Watch

GIB = 1024**3


@dataclass(slots=True)
class FakeClock:
    """Moves only when somebody spends time on it."""

    at_s: float = 1000.0

    def __call__(self) -> float:
        return self.at_s

    def spend(self, seconds: float) -> None:
        self.at_s += seconds


@dataclass(slots=True)
class FakeSensor:
    """Always reads the same."""

    clock: FakeClock

    def between(self, start_s: float, end_s: float) -> Telemetry:
        return Telemetry(seconds=end_s - start_s, gpu_utilization_fraction=0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """A machine and a job of known speed. The defaults resemble ResNet-50 on one H200 with 16 cores."""

    compute_per_s: dict[Precision, float] = field(
        default_factory=lambda: {"fp32": 2300.0, "fp16": 3100.0, "bf16": 2600.0}
    )
    """Saturated samples/s of the plain recipe."""
    channels_last_gain: float = 1.7
    fused_gain: float = 1.1
    half_batch: float = 16.0
    """Batch at which half of the saturated rate is reached."""
    sample_s: float = 1 / 330
    """What one sample costs a worker."""
    pinned_per_s: float = 3900.0
    """Wall of the pin-memory thread and the copy behind it."""
    pageable_per_s: float = 2450.0
    fixed_bytes: int = GIB
    bytes_per_sample: dict[Precision, float] = field(default_factory=lambda: {"fp32": 87e6, "fp16": 45e6, "bf16": 45e6})
    budget_bytes: int = 139 * GIB
    quiet_share: float = 0.95
    """Of the budget: above it the allocator has to try again in every step."""

    def compute_rate(self, recipe: Recipe, batch_size: int) -> float:
        rate = self.compute_per_s[recipe.precision] * batch_size / (batch_size + self.half_batch)
        rate *= self.channels_last_gain if recipe.memory_format == "channels_last" else 1.0
        return rate * (self.fused_gain if recipe.fused_optimizer else 1.0)

    def training_rate(self, config: TrialConfig) -> float:
        """Samples/s of real training: the least of compute, loader and transfer; in turn where no worker helps."""
        transfer = self.pinned_per_s if config.loader.pin_memory else self.pageable_per_s
        fed = min(self.compute_rate(config.recipe, config.batch_size), transfer)
        if config.loader.num_workers == 0:
            return 1 / (self.sample_s + 1 / fed)
        return min(fed, config.loader.num_workers / self.sample_s)

    def wait_fraction(self, config: TrialConfig) -> float:
        """Share of the time in which training waits for its loader, the pinning thread included."""
        compute = self.compute_rate(config.recipe, config.batch_size)
        ahead = compute if config.loader.pin_memory else min(compute, self.pageable_per_s)
        return 1 - self.training_rate(config) / ahead

    def peak_bytes(self, precision: Precision, batch_size: int) -> int:
        return int(self.fixed_bytes + self.bytes_per_sample[precision] * batch_size)

    def largest_batch(self, precision: Precision) -> int:
        return int((self.budget_bytes - self.fixed_bytes) / self.bytes_per_sample[precision])


@dataclass(slots=True)
class FakeTraining:
    """Answers from a `Surface`, spends time on a `FakeClock`, and fails where `fail` says so.

    `fail` is asked before each training run and may name a failure for it; `requests` logs what was asked for.
    """

    surface: Surface = field(default_factory=Surface)
    clock: FakeClock = field(default_factory=FakeClock)
    noise: float = 0.01
    """Relative standard deviation of one window."""
    between_runs: float = 0.02
    """Relative standard deviation from one run to the next."""
    fail: Callable[[TrialConfig], TrialFailure | None] = lambda config: None
    finite: Callable[[TrialConfig], bool] = lambda config: True
    """Whether the loss of each step of a training run is a finite number."""
    examined: dict[str, Examined] = field(default_factory=dict)
    """What is said of a remedy. Others are refused."""
    remedy_gains: dict[str, float] = field(default_factory=dict)
    """By what a remedy multiplies the rate of training."""
    sample_tokens: Callable[[int], float] | None = None
    """Batch size → tokens of a sample. None: samples are no text."""
    seed: int = 0
    facts: WorkloadFacts | None = None
    prepare_s: float = 1.0
    """What a training run takes before its first window."""
    build_s: float = 0.0
    """What describing takes before the first request."""
    compute_s: float = 0.0
    """What timing a recipe takes besides its steps."""
    requests: list[tuple[str, int]] = field(default_factory=list)
    until_s: float = math.inf
    """When requests end, as the run sets it."""
    num_trainings: int = 0

    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def _begin(self, request: str, batch_size: int) -> None:
        """Log a request, or refuse it where the time is over."""
        self._spend(0.0, request)
        self.requests.append((request, batch_size))

    def _spend(self, seconds: float, phase: str) -> None:
        """Raises OutOfTimeError where the time ends meanwhile."""
        left_s = self.until_s - self.clock()
        self.clock.spend(max(0.0, min(seconds, left_s)))
        if left_s <= seconds:
            raise OutOfTimeError("The time budget ended.", phase=phase)

    def describe(self) -> WorkloadFacts:
        if self.build_s and not self.requests:
            self._spend(self.build_s, "build")
        return self.facts or fake_facts(self.surface)

    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        self._begin("compute", batch_size)
        self._spend(self.compute_s, "compute")
        if failure := self._unfit(recipe, batch_size, "compute"):
            return failure
        step_s = batch_size / self.surface.compute_rate(recipe, batch_size)
        num_steps = max(1, round(seconds / 4 / step_s))
        windows = [self._window(step_s, num_steps, batch_size) for _ in range(4)]
        return ComputePoint(recipe=recipe, batch_size=batch_size, windows=tuple(windows))

    def try_batch(self, asked: BatchTry) -> FitReport:
        self._begin("memory", asked.batch_size)
        step_s = asked.batch_size / self.surface.compute_rate(asked.recipe, asked.batch_size)
        self._spend(NUM_STEPS * step_s, "memory")
        peak = self.surface.peak_bytes(asked.recipe.precision, asked.batch_size)
        report = FitReport(
            precision=asked.recipe.precision,
            batch_size=asked.batch_size,
            budget_bytes=self.surface.budget_bytes,
            seconds=NUM_STEPS * step_s,
        )
        if failure := self._unfit(asked.recipe, asked.batch_size, "first step"):
            return replace(report, failure=failure)
        retries = int(peak > self.surface.quiet_share * self.surface.budget_bytes)
        return replace(
            report,
            first_step_peak_bytes=peak,
            steady_peak_bytes=peak,
            num_alloc_retries=retries * NUM_STEPS,
            num_steady_retries=retries if asked.verify else None,
            step_s=step_s,
        )

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        self._begin("training", config.batch_size)
        self._spend(self.prepare_s, "prepare")
        if failure := self.fail(config):
            return failure
        if failure := self._unfit(config.recipe, config.batch_size, "training"):
            return failure
        luck = max(0.1, self._random.gauss(1.0, self.between_runs))
        gain = math.prod(self.remedy_gains.get(name, 1.0) for name in config.remedies)
        step_s = config.batch_size / (self.surface.training_rate(config) * luck * gain)
        num_steps = max(1, round(window_s / step_s))
        goes_on, is_finite = True, self.finite(config)
        while goes_on:
            window = self._window(step_s, num_steps, config.batch_size, self.surface.wait_fraction(config))
            tokens = self.sample_tokens and round(self.sample_tokens(config.batch_size) * window.num_samples)
            goes_on = watch(replace(window, loss_is_finite=is_finite, num_tokens=tokens))
        return TrainingRun(first_batch_s=1.0, ready_s=1.0)

    def examine(self, config: TrialConfig, names: tuple[str, ...]) -> tuple[Examined, ...] | TrialFailure:
        self._begin("examine", config.batch_size)
        self._spend(1.0, "remedies")
        found = (self.examined.get(name, Examined(name=name, refused="the fake has none")) for name in names)
        return tuple(replace(seen, after=seen.before) if seen.name in config.remedies else seen for seen in found)

    def _unfit(self, recipe: Recipe, batch_size: int, phase: str) -> TrialFailure | None:
        """As batch normalization refuses a batch of one, and as memory runs out."""
        if batch_size < self.describe().min_batch_size:
            message = "ValueError: Expected more than 1 value per channel when training"
            return TrialFailure(kind="user_error", phase=phase, message=message)
        if batch_size > self.surface.largest_batch(recipe.precision):
            return TrialFailure(kind="oom", phase=phase, message=f"out of memory at a batch of {batch_size}")
        return None

    def _window(self, step_s: float, num_steps: int, batch_size: int, wait_fraction: float = 0.0) -> Window:
        seconds = step_s * num_steps * max(0.1, self._random.gauss(1.0, self.noise))
        start = self.clock()
        self._spend(seconds, "training")
        return Window(
            start_s=start,
            seconds=seconds,
            num_steps=num_steps,
            num_samples=num_steps * batch_size,
            wait_s=wait_fraction * seconds,
        )


def fake_facts(surface: Surface) -> WorkloadFacts:
    """ImageNet-sized images for a `Surface`."""
    return WorkloadFacts(
        dataset_length=1_281_167,
        input_shape=(3, 224, 224),
        takes_channels_last=True,
        input_dtype="float32",
        sample_bytes=3 * 224 * 224 * 4 + 8,
        sample_s=surface.sample_s,
        sample_cpu_s=surface.sample_s,
        num_classes=1000,
        num_parameters=25_557_032,
        precisions=tuple(surface.compute_per_s),
        min_batch_size=1,
        device_name="Fake GPU",
        memory_capacity_bytes=surface.budget_bytes,
    )


def fake_host(*, num_usable_cores: int = 16, num_gpus: int = 1) -> HostFacts:
    """A machine that fits the default `Surface`."""
    gpu = {"name": "Fake GPU", "total_bytes": 140 * GIB, "free_bytes": 139 * GIB, "utilization_fraction": 0.0}
    uuids = [f"GPU-{index:08d}-0000-0000-0000-000000000000" for index in range(num_gpus)]
    return HostFacts(
        hostname="fake",
        os="Linux",
        python="3.12.0",
        torch="2.11.0",
        cuda="13.0",
        driver="580.0",
        cpu_name="Fake CPU",
        num_usable_cores=num_usable_cores,
        num_listed_cores=num_usable_cores,
        ram_total_bytes=128 * GIB,
        ram_limit_bytes=128 * GIB,
        ram_available_bytes=120 * GIB,
        shm_total_bytes=64 * GIB,
        shm_free_bytes=64 * GIB,
        gpus=tuple(GpuFacts(uuid=uuid, index=index, **gpu) for index, uuid in enumerate(uuids)),
    )
