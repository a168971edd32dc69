"""One trial: a configuration timed on the bench while the sensor watches the machine."""

from collections.abc import Callable

from loadtune.records import (
    Measurement,
    TrainingRun,
    TrialConfig,
    TrialFailure,
    Window,
    non_finite_loss,
    samples_per_s,
)
from loadtune.seams import Bench, Clock, Sensor
from loadtune.study.segment import Segment
from loadtune.units import counted, seconds_text

WINDOW_S = 0.4
"""Long enough that the synchronisation at its ends costs a fraction of a per cent, short enough for several a trial."""


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
