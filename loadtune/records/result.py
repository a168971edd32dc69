"""What a run found: trials, finalists, the bottleneck, and the whole record that is written to ``result.json``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from loadtune.records.bottleneck import Bottleneck
from loadtune.records.configs import Precision, TrialConfig
from loadtune.records.host import Device, HostFacts
from loadtune.records.memory import MemoryCeiling
from loadtune.records.remedies import Remedies
from loadtune.records.score import Objective, Score
from loadtune.records.timing import ComputePoint, Measurement, RecipeChoice, TrialFailure
from loadtune.records.workload import TuneConfig, WorkloadFacts

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

SCHEMA_VERSION = 1
"""Of result.json. 1 (2026-11): first."""

TrialOrigin = Literal["yours", "warm start", "search"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the throughput model said of a trial before it was run, with its 95% interval."""

    score: float
    """samples/s, or samples per joule where those are looked for."""
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration that was tried. Exactly one of measurement and failure is set."""

    number: int
    config: TrialConfig
    origin: TrialOrigin
    measurement: Measurement | None = None
    failure: TrialFailure | None = None
    predicted: Predicted | None = None
    """None: it was no proposal of the model's."""

    @property
    def outcome(self) -> Measurement | TrialFailure | None:
        """What came of it."""
        return self.measurement or self.failure


UnconfirmedReason = Literal["failed", "non_finite_loss", "wide_interval", "above_compute_only"]
"""``failed`` one of its runs ended in a failure; ``non_finite_loss`` its precision gave a loss that is NaN or infinite;
``wide_interval`` half of its 95% interval is as large as the value or larger; ``above_compute_only`` it reads more than
the same step without a loader, by more than noise explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unconfirmed:
    """Why a configuration that was measured is never the answer."""

    reason: UnconfirmedReason
    explanation: str
    """Figures and what to do, in sentences to show after the configuration's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """One configuration measured again, in rounds with the other finalists."""

    config: TrialConfig
    runs: tuple[Measurement, ...]
    """At least one."""
    tried: Measurement | None = None
    """Its run in the search, which counts for the spread between runs alone: it was picked for what it read there."""
    failures: tuple[TrialFailure, ...] = ()
    half_width_fraction: float | None = None
    """Of the 95% interval of the mean, as a share of it, from the spread between runs; it holds for all finalists at
    once, so also for the one that is picked. None: too few runs."""
    efficiency_half_width_fraction: float | None = None
    """Likewise of the mean samples per joule. None: too few runs, or of one of them no energy was read."""
    unconfirmed: Unconfirmed | None = None
    """Why it is never the answer. None: nothing rules it out."""

    @property
    def samples_per_s(self) -> float:
        """Mean over runs of each run's throughput."""
        return sum(run.samples_per_s for run in self.runs) / len(self.runs)

    @property
    def epoch_s(self) -> float | None:
        """Mean over runs of the seconds of an epoch, the start of its workers included. None: its length is unknown."""
        known = [run.epoch_s for run in self.runs if run.epoch_s is not None]
        return sum(known) / len(known) if known else None

    def score(self, objective: Objective) -> float:
        """Mean over runs of what each is judged by. Raises ValueError where that was not measured."""
        return sum(run.score(objective) for run in self.runs) / len(self.runs)

    def scored(self, objective: Objective) -> Score:
        """Throughput, or samples per joule where that is the objective, with its interval."""
        by_speed = objective == "samples-per-s"
        half = self.half_width_fraction if by_speed else self.efficiency_half_width_fraction
        value = self.samples_per_s if by_speed else self.score(objective)
        return Score(objective=objective, value=value, half_width_fraction=half)

    @property
    def wait_fraction(self) -> float:
        return sum(run.wait_fraction for run in self.runs) / len(self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Of a winner that was picked for its samples per joule of the GPU's board."""

    samples_per_joule: float
    """Mean over the confirmed runs."""
    half_width_fraction: float | None
    """Of its 95% interval, as that of the throughput."""
    gain: float | None
    """Over the user's own configuration; None: that one could not be measured."""
    gain_low: float | None = None
    """99% interval of the gain, which allows for having picked the best. None: too few runs to say."""
    gain_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The answer, compared with the user's settings: proven better than they are, or these settings themselves.

    Where they could not be measured, the best of the others.
    """

    config: TrialConfig
    samples_per_s: float
    half_width_fraction: float | None
    speedup: float | None
    """Over the user's own configuration; None: that one could not be measured."""
    speedup_low: float | None = None
    """99% interval of the speed-up, which allows for having picked the fastest. None: too few runs to say."""
    speedup_high: float | None = None
    compute_fraction: float | None = None
    """Share of the compute-only rate at this batch size and recipe. Near 1.0 no loader setting can help any more. None:
    that rate was not timed, or contradicts this one."""
    efficiency: Efficiency | None = None
    """Set where the objective is samples per joule; the figures above are of its throughput all the same."""

    @property
    def measured_once(self) -> bool:
        """Whether no finalist ran twice, so that no interval is known and nothing was confirmed by a second run."""
        return self.half_width_fraction is None

    @property
    def throughput(self) -> Score:
        half = self.half_width_fraction
        return Score(objective="samples-per-s", value=self.samples_per_s, half_width_fraction=half)

    @property
    def picked_by(self) -> Score:
        """What the run looked for: samples per joule, or the throughput."""
        found = self.efficiency
        if found is None:
            return self.throughput
        half = found.half_width_fraction
        return Score(objective="samples-per-joule", value=found.samples_per_joule, half_width_fraction=half)

    @property
    def gain(self) -> float | None:
        """In what it was picked by, over the user's own configuration. None: that one could not be measured."""
        return self.speedup if self.efficiency is None else self.efficiency.gain

    @property
    def different(self) -> bool | None:
        """False: the interval of the speed-up holds 1, there is no difference to be had. None: cannot be told."""
        if self.speedup_low is None or self.speedup_high is None:
            return None
        return not self.speedup_low <= 1.0 <= self.speedup_high


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """Everything one run measured and concluded. Written as JSON, read back equal."""

    schema_version: int = SCHEMA_VERSION
    loadtune_version: str
    created: str
    """ISO 8601, UTC."""
    seconds: float
    stage_seconds: dict[str, float]
    cut_short: str | None = None
    """Why the run ended early. None: it went to its end. A run cut short before its confirmation has no winner."""
    config: TuneConfig
    host: HostFacts
    device: Device
    facts: WorkloadFacts | None = None
    yours: TrialConfig | None = None
    assumed: tuple[str, ...] = ()
    """Settings of ``yours`` that the user did not give: batch_size, num_workers, pin_memory, precision; with workers
    persistent_workers."""
    recipes: tuple[RecipeChoice, ...] = ()
    ceilings: tuple[MemoryCeiling, ...] = ()
    compute_points: tuple[ComputePoint, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    """The ladder the study searched."""
    trials: tuple[Trial, ...] = ()
    finalists: tuple[Finalist, ...] = ()
    """The user's own configuration among them, where it runs."""
    confirmed_whole: bool = False
    """Whether the confirmation went to its end, also where the run was cut short after it."""
    best: Winner | None = None
    best_at_your_batch: Winner | None = None
    """Set where the user gave a batch size."""
    bottleneck: Bottleneck | None = None
    """Of ``best``. None: nothing was confirmed, or its precision was not searched."""
    remedies: Remedies | None = None
    """Changes outside of DataLoader's arguments, tried on ``best``. None: none was looked at."""
    notes: tuple[str, ...] = ()
    """What was left out and why, what was assumed, what to beware of: whole sentences."""

    def apply(self, loader: "DataLoader[Any]", *, keep_batch_size: bool = False) -> "DataLoader[Any]":
        """A new DataLoader with the settings of the answer; all else is as in `loader`, which stays as it
        is: the same dataset, sampler or batch sampler, collate function, ``worker_init_fn``, generator, multiprocessing
        context, timeout, ``pin_memory_device`` and ``drop_last``. Of a subclass of DataLoader nothing else is kept: a
        UserWarning says so.

        ``keep_batch_size`` takes the answer at the batch size that the run was given. A loader whose batch sampler or
        dataset makes the batches keeps them. Warns with UserWarning where the answer is not confirmed, as
        `best_loader_kwargs` does. Raises ResultError where there is no answer.
        """
        from loadtune.adopt import apply

        return apply(self, loader, keep_batch_size=keep_batch_size)

    def compute_only(self, precision: Precision) -> ComputePoint | None:
        """The fastest, at any batch size, under the recipe that this precision is trained with.

        Other points are of recipes that were turned down, or of the user's own. None: it was not timed.
        """
        trained = {choice.chosen for choice in self.recipes if choice.chosen.precision == precision}
        points = [point for point in self.compute_points if point.recipe in trained]
        return max(points, key=lambda point: point.samples_per_s, default=None)
