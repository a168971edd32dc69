"""The seams: what the deciding code needs from the world, and how what it asks for is done."""

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from loadtune.records.config import Recipe, TrialConfig
from loadtune.records.facts import WorkloadFacts
from loadtune.records.loading import Examined
from loadtune.records.measurement import ComputePoint, Progress, Telemetry, TrainingRun, TrialFailure, Window
from loadtune.records.memory import BatchTry, FitReport

Action = TypeVar("Action")
Outcome = TypeVar("Outcome")
Answer = TypeVar("Answer")

Watch = Callable[[Window], bool]
"""Told each window as it ends; True: go on, False: enough."""

Listener = Callable[[Progress], None]

Clock = Callable[[], float]
"""``time.monotonic``: seconds that never go back and count alike in every process of the machine."""


class Sensor(Protocol):
    """Samples the machine from outside the training process while it is open."""

    def between(self, start_s: float, end_s: float) -> Telemetry | None:
        """What happened in that span of the monotonic clock; None: no reading falls into it."""


class Training(Protocol):
    """Owns the device. Every answer is a record; whatever dies inside comes back as a `TrialFailure`. Every request
    raises OutOfTimeError once the moment `until_s` has come, on the monotonic clock."""

    until_s: float
    num_trainings: int
    """Times that real batches were trained on, before an interruption too: each has an order of its own."""

    def describe(self) -> WorkloadFacts:
        """Build the workload and train one small batch of it.

        Raises WorkloadError where the user's dataset or model cannot be used, TrainingError where no training starts.
        """

    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        """Time steps on one resident batch for about ``seconds`` after warm-up, two steps at the least."""

    def try_batch(self, asked: BatchTry) -> FitReport:
        """Train real steps from a fresh state; the report says whether they fit."""

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        """Train on real batches, shuffled and full, until ``watch`` says enough.

        A window lasts at least ``window_s`` and, where that is affordable, a multiple of num_workers steps.
        """

    def examine(self, config: TrialConfig, names: tuple[str, ...]) -> tuple[Examined, ...] | TrialFailure:
        """Find out what each of these remedies would change, on top of those that ``config`` has; nothing is trained.

        One answer for each name, in their order.
        """


def drive(decider: Generator[Action, Outcome, Answer], do: Callable[[Action], Outcome]) -> Answer:
    """Do what a decider asks for, one action after another, and tell it what came of each. Returns what it decides."""
    outcome: Any = None
    while True:
        try:
            action = decider.send(outcome)
        except StopIteration as end:
            decided: Answer = end.value
            return decided
        outcome = do(action)
