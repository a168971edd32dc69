"""What a run found: trials, finalists, the bottleneck, and the whole record that is written to ``result.json``."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from loadtune.records.config import TrialConfig, TuneConfig
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.records.loading import LoadingStep
from loadtune.records.measurement import ComputePoint, Measurement, RecipeChoice, TrialFailure
from loadtune.records.memory import MemoryCeiling
from loadtune.records.statistics import Interval, around

Resource = Literal["workers", "cores", "pinning", "main", "device"]
"""``workers`` the worker processes that load samples; ``cores`` the usable CPU cores, shared by loading and training;
``pinning`` the one thread that copies batches to page-locked memory; ``main`` the training process's own thread, which
launches steps, and loads where there are no workers; ``device`` what computes, copies to it included."""

Part = Literal["waiting", "loading", "collating", "computing", "copying", "launching", "synchronizing"]
"""What a resource spends its time with. ``waiting`` is a worker's, for storage, a network or a sleep; ``synchronizing``
GradScaler's wait for the device in each step."""

ChangeKind = Literal["twice_the_cores", "half_the_loading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimit:
    """What one resource allows by itself."""

    resource: Resource
    samples_per_s: Interval
    probability: float
    """That it is the one that limits; of all resources together 1."""
    shares: dict[Part, float]
    """Of its busy time, in the median; together 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """The winner with another number of workers."""

    num_workers: int
    samples_per_s: Interval
    limits: dict[Resource, float]
    """Samples/s that each resource allows, in the median. Without those that are not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """Of the winner."""

    config: TrialConfig
    num_predicted: int
    """Trials that were predicted before they ran."""
    num_missed: int
    """Those of them that were measured outside the 95% interval of their prediction."""
    explained: float
    """Samples/s that the resources alone give for the winner ÷ samples/s that it was measured with; 1 between the
    rate of all resources together and that of the slowest alone."""
    holds: bool
    """Whether the model describes this job. False: its predictions missed too often, or its resources give another
    throughput than was measured; then no resource is named."""
    limits: tuple[ResourceLimit, ...]
    """The one that limits most probably comes first."""
    predicted: dict[ChangeKind, Interval] = field(default_factory=dict)
    """Throughput after a change that was not tried ÷ before it: of changes predicted to gain 3% or more."""
    roofline: tuple[RooflinePoint, ...]
    """By number of workers, fewest first; each is a number that can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRemedy:
    """One change of the code: what was predicted of it, what was measured, and what to write."""

    name: str
    """As in ``loadtune.changes.CHANGES``: ``uint8_transfer``."""
    title: str
    """What to do, in a few words: ``send uint8 images``."""
    changes: str
    """What changes for training: pixels, order, memory."""
    code: str
    """Lines of Python to paste."""
    predicted: Interval | None = None
    """Throughput with it ÷ without it. None: the model does not know."""
    gain: Interval | None = None
    """Measured throughput with it ÷ without it, 99%. None: it was not measured by itself."""
    reason: str | None = None
    """Why it was not tried, or how it failed. None: it was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """Of the best configuration."""

    tried: tuple[TriedRemedy, ...] = ()
    """Those that were tried, in order."""
    config: TrialConfig | None = None
    """The best configuration with all remedies that were kept. None: none was."""
    gain: Interval | None = None
    """Of the contestant with changes, over the best configuration without any, 99%. None: none ran."""


SCHEMA_VERSION = 2
"""Of result.json and run.json. 1: up to version 0.2. 2 (2026-11): why a finalist is not confirmed, in figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A configuration that was run. Exactly one of measurement and failure is set."""

    config: TrialConfig
    measurement: Measurement | None = None
    failure: TrialFailure | None = None

    @classmethod
    def of(cls, config: TrialConfig, outcome: Measurement | TrialFailure, **more: Any) -> Self:
        """With what came of it."""
        more["measurement" if isinstance(outcome, Measurement) else "failure"] = outcome
        return cls(config=config, **more)


Failed = tuple[TrialConfig, TrialFailure]


def failures_of(attempts: Iterable[Attempt]) -> list[Failed]:
    return [(each.config, each.failure) for each in attempts if each.failure is not None]


def measured_of(attempts: Iterable[Attempt]) -> list[tuple[TrialConfig, Measurement]]:
    return [(each.config, each.measurement) for each in attempts if each.measurement is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Attempt):
    """One configuration that was tried."""

    number: int
    predicted: Interval | None = None
    """Samples/s, as the throughput model said before it was run. None: it was no proposal of the model's."""

    @property
    def held(self) -> bool | None:
        """Whether the prediction held. None: there was none, or nothing was measured."""
        if self.predicted is None or self.measurement is None:
            return None
        return bool(self.predicted.holds(self.measurement.samples_per_s))


UnconfirmedReason = Literal["failed", "non_finite_loss", "above_compute_only"]
"""``failed`` one of its runs ended in a failure; ``non_finite_loss`` its precision gave a loss that is NaN or infinite;
``above_compute_only`` it reads more than the same step without a loader, by more than noise explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unconfirmed:
    """Why a configuration that was measured is never the answer."""

    reason: UnconfirmedReason
    config: TrialConfig
    """What failed or reads too much: itself, or another one of its precision or of fp32."""
    failures: tuple[TrialFailure, ...] = ()
    """Of ``config``."""
    compute_per_s: float | None = None
    """The compute-only rate that it reads more than."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """One configuration measured again, in rounds with the other finalists."""

    config: TrialConfig
    runs: tuple[Measurement, ...]
    """At least one."""
    failures: tuple[TrialFailure, ...] = ()
    half_width_fraction: float | None = None
    """Of the 95% interval of the mean, as a share of it. It holds for all finalists at once, so also for the one that
    is picked. None: too few runs."""
    unconfirmed: Unconfirmed | None = None
    """Why it is never the answer. None: nothing rules it out."""

    @property
    def samples_per_s(self) -> float:
        """Mean over runs of each run's throughput."""
        return sum(run.samples_per_s for run in self.runs) / len(self.runs)

    @property
    def score(self) -> float:
        """Mean over runs of what each is ranked by."""
        return sum(run.score for run in self.runs) / len(self.runs)

    @property
    def throughput(self) -> Interval:
        return around(self.samples_per_s, self.half_width_fraction)


MISSED = 1.1
"""Gain that has to be excluded before a user is told to keep the settings: most would not leave a larger one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The answer, compared with the user's settings: proven better than they are, or these settings themselves.

    Where they could not be measured, the best of the others.
    """

    config: TrialConfig
    samples_per_s: float
    half_width_fraction: float | None
    """Of its 95% interval, as a share of it. None: no finalist ran twice."""
    speedup: Interval | None = None
    """Over the user's own configuration, with a 99% interval, which allows for having picked the fastest. None: that
    one could not be measured."""
    rival_gain: Interval | None = None
    """Of these settings, where they are the user's own: the contestant that may gain most over them, with its 99%
    interval. None: another is the answer, or nothing else ran."""
    compute_fraction: float | None = None
    """Share of the compute-only rate at this batch size and recipe. Near 1.0 no loader setting can help any more. None:
    that rate was not timed, or contradicts this one."""

    @property
    def inconclusive(self) -> bool:
        """Whether it is the user's own for want of proof: a gain above `MISSED` is not excluded."""
        return self.rival_gain is not None and (self.rival_gain.high or math.inf) > MISSED

    @property
    def throughput(self) -> Interval:
        return around(self.samples_per_s, self.half_width_fraction)


def finalist_of(finalists: Sequence[Finalist], found: TrialConfig | Winner | None) -> Finalist | None:
    """What the confirmation measured of a configuration, or of a winner's. None: it did not measure that one."""
    config = found.config if isinstance(found, Winner) else found
    return next((each for each in finalists if each.config == config and each.runs), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything one run measured and concluded. Written as JSON, read back equal."""

    schema_version: int = SCHEMA_VERSION
    loadtune_version: str
    created: str
    """ISO 8601, UTC."""
    seconds: float
    stage_seconds: dict[str, float]
    cut_short: str | None = None
    """Why the run ended early. None: it went to its end. A run cut short before its confirmation has no winner."""
    interrupted_by: str | None = None
    """The signal that ended it early: ``SIGINT`` for Ctrl-C, ``SIGTERM`` or ``SIGHUP``. None: no signal did."""
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
    trials: tuple[Trial, ...] = ()
    finalists: tuple[Finalist, ...] = ()
    """The user's own configuration among them, where it runs."""
    confirmed_whole: bool = False
    """Whether the confirmation went to its end. The run may have been cut short after it."""
    best: Winner | None = None
    best_at_your_batch: Winner | None = None
    """Set where the user gave a batch size."""
    bottleneck: Bottleneck | None = None
    """Of ``best``. None: nothing was confirmed, or its precision was not searched."""
    remedies: Remedies | None = None
    """Changes of the code, tried on ``best``. None: none was looked at."""
    notes: tuple[str, ...] = ()
    """What was left out and why, what was assumed, what to beware of: whole sentences."""

    @property
    def steps(self) -> tuple[LoadingStep, ...]:
        """What takes the time of loading with the settings of ``best``, the largest share first, at most 8: each with
        its name, its share of that time, 0 to 1, and the share of its own time in which it waits.

        Empty: nothing was confirmed, too little was seen, or the dataset is a stream, at which nobody looks.
        """
        best = finalist_of(self.finalists, self.best)
        return next((run.steps for run in reversed(best.runs if best else ()) if run.steps), ())

    def loader_kwargs(self, config: TrialConfig) -> dict[str, Any]:
        """What ``DataLoader`` takes; without the batch size where the user's batch sampler or dataset makes batches."""
        fixed = self.facts is not None and self.facts.fixed_batch_size is not None
        return {name: value for name, value in config.loader.kwargs().items() if not (fixed and name == "batch_size")}
