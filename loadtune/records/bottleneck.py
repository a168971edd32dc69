"""What limits the winner, and what a change would bring: as the throughput model, fitted to the run, says it."""

from dataclasses import dataclass
from typing import Literal

from loadtune.records.configs import TrialConfig

Resource = Literal["workers", "cores", "pinning", "main", "device"]
"""``workers`` the worker processes that load samples; ``cores`` the usable CPU cores, shared by loading and training;
``pinning`` the one thread that copies batches to page-locked memory; ``main`` the training process's own thread, which
launches steps, and loads where there are no workers; ``device`` what computes, copies to it included."""

Part = Literal["waiting", "loading", "collating", "computing", "copying", "launching", "synchronizing"]
"""What a resource spends its time with. ``waiting`` is a worker's, for storage, a network or a sleep; ``synchronizing``
GradScaler's wait for the device in each step."""

ChangeKind = Literal["twice_the_cores", "half_the_loading"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Median of the posterior with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimit:
    """What one resource allows by itself."""

    resource: Resource
    samples_per_s: Estimate
    probability: float
    """That it is the one that limits; of all resources together 1."""
    shares: dict[Part, float]
    """Of its busy time, in the median; together 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedChange:
    """What a change is predicted to bring at the winner's settings. It was not tried."""

    kind: ChangeKind
    num_workers: int
    """With the change."""
    samples_per_s: Estimate
    gain: Estimate
    """Throughput after the change ÷ before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """The winner with another number of workers."""

    num_workers: int
    samples_per_s: Estimate
    limits: dict[Resource, float]
    """Samples/s that each resource allows, in the median. Without those that are not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateBatches:
    """Batches that came late, and held up others that were ready, because batches are delivered in order."""

    by: Literal["worker", "samples"]
    """``worker``: one worker process is slow in all it makes; ``samples``: single batches are, whoever makes them."""
    ratio: float
    """Seconds a batch of that worker, or of the longest batch, ÷ the usual ones."""
    wait_fraction: float
    """Of all time blocked in ``next(loader)``."""


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
    late: LateBatches | None
    """None: no worker and no batch stood out in most of its runs."""
    limits: tuple[ResourceLimit, ...]
    """The one that limits most probably comes first."""
    changes: tuple[PredictedChange, ...]
    """Those that are predicted to gain 3% or more, most first."""
    roofline: tuple[RooflinePoint, ...]
    """By number of workers, fewest first; each is a number that can run."""
