"""One segment of training under one configuration: what of it counts, and how it is timed on the bench."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from loadtune.records import (
    LoaderConfig,
    Measurement,
    TrainingRun,
    TrialConfig,
    TrialFailure,
    Window,
    non_finite_loss,
    samples_per_s,
)
from loadtune.seams import Bench, Clock, Sensor
from loadtune.units import counted, seconds_text

WINDOW_S = 0.4
"""Long enough that the synchronisation at its ends costs a fraction of a per cent, short enough for several a trial."""

START_S = 0.025
"""Of one worker: on two CPU cores 148 of them took 3.4 s to start."""

LEAST_S = 3.0
"""Of a segment whose batches take no time: switching, settling, measuring."""

WARM_STEPS = 2
"""Ahead of a batch size that is new to a recipe."""

ROUNDS = 15
"""Rounds of the workers that a segment spans where there is time: workers differ from round to round, and on an H200
eight of them read 9% apart over fewer."""

FEWEST_STEPS = 2
"""That are measured: one gives no interval."""

FEWEST_WINDOWS = 3
"""Below, an interval says next to nothing. Where steps are long two have to do."""

SETTLING = 2.0
"""Times the seconds that a segment is measured at most: locking the pages of a queue of 16 workers takes 2 to 5 s."""


class Segment:
    """Call `add` with each window; it returns whether to go on.

    **Settling** ends where there is evidence that this is how training goes on: every worker delivered once, and the
    last window locked no pages and skipped no step. A queue that grows or shrinks is corrected for; on an H200 and on
    CPUs, segments that waited for it to be steady told the same rates within 2%. After `SETTLING` times ``max_s``
    seconds settling ends once every worker delivered (`settled` is then False). Without workers the first window may
    count.

    **Measuring** lasts as long as the queue is turned over once. It lasts half of ``max_s`` and until every worker
    delivered `ROUNDS` times, but no longer than ``max_s`` for that.
    """

    def __init__(self, loader: LoaderConfig, max_s: float, limit_s: float = math.inf) -> None:
        """``limit_s``: seconds after which a segment that has not seen enough ends all the same, as `gave_up`."""
        self.kept: list[Window] = []
        self.settled = True
        self._measuring = loader.num_workers == 0
        self._left_out: list[Window] = []
        self.gave_up = False
        self._loader, self._max_s, self._limit_s = loader, max_s, limit_s

    def add(self, window: Window) -> bool:
        """Take one window; False once enough was seen, or it takes too long."""
        going_on = self._goes_on(window)
        self.gave_up = going_on and _seconds([*self._left_out, *self.kept]) > self._limit_s
        return going_on and not self.gave_up

    def _goes_on(self, window: Window) -> bool:
        may_settle = _seconds([*self._left_out, *self.kept]) < SETTLING * self._max_s or not self._has_had_a_round()
        if self._measuring and not (window.is_settling and may_settle):
            self.kept.append(window)
            return not self._is_enough()
        # Where pages are locked later on, what was kept before is left out too: all that counts is one stretch.
        self._left_out += [*self.kept, window]
        self.kept.clear()
        self.settled = not window.is_settling and self._has_had_a_round()
        self._measuring = self.settled or not may_settle
        return True

    def _has_had_a_round(self) -> bool:
        return sum(w.num_steps for w in (*self._left_out, *self.kept)) >= self._loader.num_workers

    def _is_enough(self) -> bool:
        seconds, num_steps = _seconds(self.kept), sum(w.num_steps for w in self.kept)
        if len(self.kept) < FEWEST_STEPS or num_steps < self._loader.num_prefetched or samples_per_s(self.kept) <= 0:
            return False
        if seconds >= self._max_s:
            return True
        if len(self.kept) < FEWEST_WINDOWS:
            return False
        return seconds >= self._max_s / 2 and num_steps >= ROUNDS * max(1, self._loader.num_workers)


def _seconds(windows: Sequence[Window]) -> float:
    return sum(window.seconds for window in windows)


def expected_seconds(
    loaders: Sequence[LoaderConfig], rates: NDArray[np.float64], sample_s: float
) -> NDArray[np.float64]:
    """What the shortest segment of each loader takes at these samples/s, a worker loading a sample in ``sample_s``:
    start and fill, a round of the workers that settles, one turnover of the queue."""
    batches = np.array([loader.batch_size for loader in loaders], float)
    workers = np.array([loader.num_workers for loader in loaders], float)
    measured = [max(FEWEST_STEPS, loader.num_prefetched) for loader in loaders]
    steps = workers + np.array(measured, float) + WARM_STEPS
    return np.asarray(LEAST_S + START_S * workers + batches * (sample_s * (workers > 0) + steps / rates))


def run_trial(
    bench: Bench,
    sensor: Sensor,
    clock: Clock,
    config: TrialConfig,
    segment: Segment,
    also: Callable[[Window], None] = lambda window: None,
    epoch_samples: int | None = None,
) -> Measurement | TrialFailure:
    """Time `config` until `segment` has seen enough, or the loss is no longer finite. `also` is shown each window."""
    seen: list[Window] = []

    def watch(window: Window) -> bool:
        also(window)
        seen.append(window)
        return window.loss_is_finite is not False and segment.add(window)

    started = clock.now()
    run = bench.time_training(config, WINDOW_S, watch)
    if isinstance(run, TrialFailure):
        return run
    if seen and seen[-1].loss_is_finite is False:
        return non_finite_loss(config.precision, seen, phase="training")
    if segment.gave_up:
        message = (
            f"it trained {counted(sum(w.num_steps for w in seen), 'step')} in {seconds_text(clock.now() - started)}"
        )
        return TrialFailure(kind="too_slow", phase="training", message=message)
    if not segment.kept or samples_per_s(segment.kept) <= 0:
        return TrialFailure(kind="crash", phase="training", message="the run ended before there was a rate to measure")
    refill_s = _batch_s(run) if config.loader.num_workers else 0.0
    return Measurement(
        windows=tuple(segment.kept),
        first_batch_s=run.first_batch_s,
        seconds=clock.now() - started,
        num_skipped_steps=run.num_skipped_steps,
        peak_allocated_bytes=run.peak_allocated_bytes,
        peak_reserved_bytes=run.peak_reserved_bytes,
        telemetry=sensor.between(segment.kept[0].start_s, segment.kept[-1].end_s),
        noisy=not segment.settled,
        workers=run.workers,
        epoch_samples=epoch_samples,
        restart_s=0.0 if config.loader.keeps_workers else max(run.ready_s, run.first_batch_s - refill_s),
        refill_s=refill_s,
    )


def _batch_s(run: TrainingRun) -> float:
    """In which a worker made a batch, mean over all. A first one, which opens files, only where there was no other."""
    num_made = sum(worker.num_made for worker in run.workers)
    if num_made == 0:
        return run.first_batch_s - run.ready_s
    return sum(worker.made_s for worker in run.workers) / num_made
