"""One trial: a configuration timed on the bench while the sensor watches the machine."""

from collections.abc import Callable

from loadtune.records import Measurement, TrialConfig, TrialFailure, Window, samples_per_s
from loadtune.seams import Bench, Clock, Sensor
from loadtune.study.stopping import StoppingRule

WINDOW_S = 0.4
"""Long enough that the synchronisation at its ends costs a fraction of a per cent, short enough for several a trial."""


def run_trial(
    bench: Bench,
    sensor: Sensor,
    clock: Clock,
    config: TrialConfig,
    rule: StoppingRule,
    also: Callable[[Window], None] = lambda window: None,
) -> Measurement | TrialFailure:
    """Time `config` until `rule` has seen enough. `also` is shown each window."""

    def watch(window: Window) -> bool:
        also(window)
        return rule.add(window)

    started = clock.now()
    run = bench.time_training(config, WINDOW_S, watch)
    if isinstance(run, TrialFailure):
        return run
    if not rule.kept or samples_per_s(rule.kept) <= 0:
        return TrialFailure(kind="crash", phase="training", message="the run ended before there was a rate to measure")
    return Measurement(
        windows=tuple(rule.kept),
        first_batch_s=run.first_batch_s,
        seconds=clock.now() - started,
        num_skipped_steps=run.num_skipped_steps,
        peak_allocated_bytes=run.peak_allocated_bytes,
        peak_reserved_bytes=run.peak_reserved_bytes,
        telemetry=sensor.between(rule.kept[0].start_s, rule.kept[-1].end_s),
        noisy=rule.noisy,
        workers=run.workers,
    )
