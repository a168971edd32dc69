"""The seams: what the deciding code needs from the world, as protocols. `loadtune.testing` has a fake for each."""

from collections.abc import Callable
from typing import Protocol

from loadtune.records import (
    ComputePoint,
    EpochCost,
    FitReport,
    LoaderConfig,
    Progress,
    Reading,
    Recipe,
    SavingCost,
    Telemetry,
    TrainingRun,
    TrialConfig,
    TrialFailure,
    Window,
    WorkloadFacts,
)

Watch = Callable[[Window], bool]
"""Told each window as it ends; True: go on, False: enough."""

Listener = Callable[[Progress], None]


class Clock(Protocol):
    """The machine's monotonic clock, in seconds: the same in every process of the machine."""

    def now(self) -> float: ...


class Sensor(Protocol):
    """Samples the machine from outside the training process while it is open."""

    def latest(self) -> Reading | None:
        """The newest reading; None before the first."""
        ...

    def between(self, start_s: float, end_s: float) -> Telemetry | None:
        """What happened in that span of the monotonic clock; None: no reading falls into it."""
        ...


class Bench(Protocol):
    """Owns the device. Every answer is a record; whatever dies inside comes back as a `TrialFailure`."""

    def describe(self) -> WorkloadFacts:
        """Build the workload and train one small batch of it.

        Raises WorkloadError where the user's dataset or model cannot be used, BenchError where no bench starts.
        """
        ...

    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        """Time steps on one resident batch for about ``seconds`` after warm-up, two steps at the least."""
        ...

    def try_batch(
        self,
        recipe: Recipe,
        batch_size: int,
        num_steps: int = 3,
        *,
        trace: bool = False,
        verify: bool = False,
        partial_batch_size: int | None = None,
    ) -> FitReport:
        """Train ``num_steps`` real steps from a fresh state; the report says whether they fit.

        With ``trace`` it holds what was asked of the allocator, where the device has one that tells. With ``verify``
        an evaluation pass and, where it is given, a step on ``partial_batch_size`` samples precede the last step.
        """
        ...

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        """Train on real batches, shuffled and full, with a fresh loader, until ``watch`` says enough.

        A window lasts at least ``window_s`` and, where that is affordable, a multiple of num_workers steps.
        """
        ...

    def time_epochs(self, loader: LoaderConfig, seconds: float) -> EpochCost | TrialFailure:
        """Take batches, without training on them, across the ends of epochs; for about ``seconds``, or once."""
        ...

    def time_saving(self, config: TrialConfig, seconds: float) -> SavingCost | TrialFailure:
        """Save checkpoints while training with this loader's workers, and without any; about ``seconds``, or once.

        The files lie in the run's own folder and are gone afterwards.
        """
        ...
