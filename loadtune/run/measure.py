"""A run, as its stages have it, and one segment of training under one configuration: what of it counts, how long it may
take, how it is timed on the training, and what other processes did meanwhile."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.records.config import LoaderConfig, TrialConfig
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
from loadtune.statistics.rate import samples_per_s
from loadtune.units import counted, percent_text, seconds_text

SEGMENT_S, SEGMENT_SHARE, SEGMENT_LEAST_S = 2.4, 0.01, 0.5
"""Of the measured part of a segment, at most, where every worker delivers in less: seconds, share of the time budget,
and seconds at the least. More segments tell more than longer ones."""

WINDOW_S = 0.4
"""Long enough that the synchronisation at its ends costs a fraction of a per cent, short enough for several a trial."""

START_S = 0.025
"""Of one worker: on two CPU cores 148 of them took 3.4 s to start."""

LEAST_S = 3.0
"""Of a segment whose batches take no time: switching, settling, measuring."""

WARM_STEPS = 2
"""Ahead of a batch size that is new to a recipe."""

ROUNDS = 15
"""Rounds of the workers that a segment spans where there is time: over fewer, eight workers read 9% apart (H200)."""

FEWEST_STEPS, FEWEST_WINDOWS = 2, 3
"""That are measured: fewer say next to nothing. Where steps are long two windows have to do."""

SETTLING = 2.0
"""Times the seconds that a segment is measured at most: locking the pages of a queue of 16 workers takes 2 to 5 s."""

MAX_DISTURBED_REPEATS, REPEAT_OF_LEFT = 2, 0.1
"""Disturbed repeats in a row after which no segment is repeated: this machine is not quiet. And the share of the time
left that a repeat may take."""


class Segment:
    """Call `add` with each window; it returns whether to go on.

    **Settling** ends once every worker delivered and the last window locked no pages and skipped no step. After
    `SETTLING` times ``max_s`` seconds it ends once every worker delivered (`settled` is then False). Without workers
    the first window may count. A queue that grows or shrinks is corrected for.

    **Measuring** lasts until every worker delivered once more. It lasts half of ``max_s`` and until every worker
    delivered `ROUNDS` times, but no longer than ``max_s`` for that.
    """

    def __init__(self, loader: LoaderConfig, max_s: float, limit_s: float = math.inf) -> None:
        """``limit_s``: seconds after which a segment that has not seen enough ends all the same, as `gave_up`."""
        self.kept: list[Window] = []
        self.settled = True
        self.gave_up = False
        self._measuring = loader.num_workers == 0
        self._seen_s, self._num_steps = 0.0, 0
        self._loader, self._max_s, self._limit_s = loader, max_s, limit_s

    def add(self, window: Window) -> bool:
        """Take one window; False once enough was seen, or it takes too long."""
        may_settle = self._seen_s < SETTLING * self._max_s or self._num_steps < self._loader.num_workers
        self._seen_s, self._num_steps = self._seen_s + window.seconds, self._num_steps + window.num_steps
        if self._measuring and not (window.is_settling and may_settle):
            self.kept.append(window)
            if self._is_enough():
                return False
        else:  # where pages are locked later on, what was kept before is left out too: all that counts is one stretch
            self.kept.clear()
            self.settled = not window.is_settling and self._num_steps >= self._loader.num_workers
            self._measuring = self.settled or not may_settle
        self.gave_up = self._seen_s > self._limit_s
        return not self.gave_up

    def _is_enough(self) -> bool:
        seconds, num_steps = sum(w.seconds for w in self.kept), sum(w.num_steps for w in self.kept)
        if len(self.kept) < FEWEST_STEPS or num_steps < self._loader.num_workers or samples_per_s(self.kept) <= 0:
            return False
        is_long = seconds >= self._max_s / 2 and num_steps >= ROUNDS * max(1, self._loader.num_workers)
        return seconds >= self._max_s or (is_long and len(self.kept) >= FEWEST_WINDOWS)


def expected_seconds(
    configs: Sequence[TrialConfig], rates: NDArray[np.float64], sample_s: float
) -> NDArray[np.float64]:
    """What the shortest segment of each takes at these samples/s, a worker loading a sample in ``sample_s``: start and
    fill, a round of the workers that settles, and one that is measured."""
    loaders = [config.loader for config in configs]
    settings = [(each.batch_size, each.num_workers, max(FEWEST_STEPS, each.num_workers)) for each in loaders]
    batches, workers, measured = np.array(settings, float).reshape(-1, 3).T
    with np.errstate(divide="ignore"):  # a rate of 0 takes for ever
        step_s = (workers + measured + WARM_STEPS) / rates
    return np.asarray(LEAST_S + START_S * workers + batches * (sample_s * (workers > 0) + step_s))


# On a training


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
