"""A run, as its stages have it. It times one configuration on the training, and sees what others did meanwhile."""

import math
from collections.abc import Callable
from pathlib import Path

from loadtune.decide.segment import Segment
from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.records.config import TrialConfig
from loadtune.records.facts import HostFacts
from loadtune.records.measurement import (
    DISTURBED,
    Measurement,
    TrialFailure,
    Window,
    is_barred,
    non_finite_loss,
    taken_by_others,
)
from loadtune.run.state import Budget, Journal, State
from loadtune.seams import Clock, Listener, Sensor, Training
from loadtune.units import counted, percent_text, seconds_text

SEGMENT_S, SEGMENT_SHARE, SEGMENT_LEAST_S = 2.4, 0.01, 0.5
"""Of the measured part of a segment, at most, where every worker delivers in less: seconds, share of the time budget,
and seconds at the least. More segments tell more than longer ones."""

WINDOW_S = 0.4
"""Long enough that the synchronisation at its ends costs a fraction of a per cent, short enough for several a trial."""

MAX_DISTURBED_REPEATS, REPEAT_OF_LEFT = 2, 0.1
"""Disturbed repeats in a row after which no segment is repeated: this machine is not quiet. And the share of the time
left that a repeat may take."""


class Run:
    """What a stage works with. The time budget is counted from now on."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        training: Training,
        sensor: Sensor,
        folder: Path,
        host_now: Callable[[], HostFacts],
        listener: Listener | None = None,
    ) -> None:
        """``host_now`` reads the machine anew: its memory changes while a run goes on."""
        self.state, self.training, self._host_now = state, training, host_now
        self.budget = Budget(clock, state.config.time_budget_s, clock())
        self.journal = Journal(state, self.budget, folder, listener)
        self._sensor = sensor
        self._disturbed_repeats = 0
        """How many of the latest repeats in a row were disturbed by other processes too."""

    def host_now(self) -> HostFacts:
        """What a rank has of the machine now."""
        return self._host_now().shared_by(self.state.facts.num_ranks if self.state.facts else 1)

    @property
    def segment_s(self) -> float:
        """Of the measured part of a segment, at most, where every worker delivers in less."""
        return max(SEGMENT_LEAST_S, min(SEGMENT_S, SEGMENT_SHARE * self.budget.total_s))

    def timed(self, config: TrialConfig, limit_s: float = math.inf) -> Measurement | TrialFailure:
        """``limit_s``: seconds after which a segment that has not seen enough is given up.

        A segment that other processes disturbed is run once more, and the quieter of the two counts. Where that run
        fails the first one does, unless the loss was not finite."""
        first = self._timed_once(config, limit_s)
        before, name = taken_by_others(first, self.state.host)
        if before < DISTURBED or not isinstance(first, Measurement):
            return first
        if self._disturbed_repeats >= MAX_DISTURBED_REPEATS or first.seconds > REPEAT_OF_LEFT * self.budget.left_s:
            return first
        used = f"Other processes used {percent_text(before)} of the {name} during this measurement."
        self.journal.tell(f"{used} It is repeated.")
        again = self._timed_once(config, limit_s)
        if isinstance(again, TrialFailure) and is_barred([again]):
            return again
        after = taken_by_others(again, self.state.host)[0] if isinstance(again, Measurement) else before
        self._disturbed_repeats = 0 if after < DISTURBED else self._disturbed_repeats + 1
        return again if isinstance(again, Measurement) and after < before else first

    def _timed_once(self, config: TrialConfig, limit_s: float) -> Measurement | TrialFailure:
        self.journal.running = config
        self.journal.tell()
        try:
            return self.run_trial(config, Segment(config.loader, self.segment_s, limit_s))
        except LoadtuneError as error:  # a change of the code that makes the job unfit for training fails alone
            if isinstance(error, OutOfTimeError) or not config.remedies:
                raise
            return TrialFailure(kind="user_error", phase="training", message=str(error))

    def run_trial(self, config: TrialConfig, segment: Segment) -> Measurement | TrialFailure:
        """Time `config` until `segment` has seen enough, or the loss is no longer finite."""
        clock, facts = self.budget.clock, self.state.facts
        started, windows = clock(), list[Window]()

        def watch(window: Window) -> bool:
            windows.append(window)
            self.journal.tell(rate=window.num_samples / window.seconds)
            return window.loss_is_finite is not False and segment.add(window)

        ran = self.training.time_training(config, WINDOW_S, watch)
        if isinstance(ran, TrialFailure):
            return ran
        if windows[-1].loss_is_finite is False:
            return non_finite_loss(config.precision, windows, phase="training")
        if segment.gave_up:
            steps = counted(sum(window.num_steps for window in windows), "step")
            message = f"it trained {steps} in {seconds_text(clock() - started)}"
            return TrialFailure(kind="too_slow", phase="training", message=message)
        start_s, end_s = segment.kept[0].start_s, segment.kept[-1].end_s
        seen = self.journal.aside("Telemetry is missing", lambda: self._sensor.between(start_s, end_s))
        starts_workers = config.loader.num_workers > 0 and not config.loader.persistent_workers  # with every epoch
        return Measurement(
            windows=tuple(segment.kept),
            first_batch_s=ran.first_batch_s,
            seconds=clock() - started,
            peak_allocated_bytes=ran.peak_allocated_bytes,
            telemetry=None if seen is None else seen.of_one(facts.num_ranks if facts else 1),
            noisy=not segment.settled,
            restart_s=max(ran.ready_s, ran.first_batch_s - ran.batch_s) if starts_workers else 0.0,
            refill_s=ran.batch_s,
            steps=ran.steps,
            differing=ran.differing,
            epoch_samples=facts.dataset_length if facts else None,
        )
