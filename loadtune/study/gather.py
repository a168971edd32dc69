"""Evidence from what a run measured: records in, plain numbers out. Judges nothing."""

import math
import statistics
from collections.abc import Callable, Sequence

from loadtune.records import (
    Device,
    FailureKind,
    Finalist,
    HostFacts,
    LoaderPoint,
    Telemetry,
    TransferPoint,
    Window,
    WorkloadFacts,
    pinning_seldom_rests,
    taking_seldom_rests,
)
from loadtune.records.confirmed import MISREAD
from loadtune.study.evidence import usually_held_back
from loadtune.study.walls import Evidence

WIDE_FLOATS = ("float32", "float64")
"""Whose elements would be smaller in 16 bits."""

IMAGE_DIMENSIONS = 3
"""Of a sample: (C, H, W). Floats of that shape were mostly bytes once."""


def gather(
    finalist: Finalist,
    *,
    facts: WorkloadFacts,
    host: HostFacts,
    device: Device,
    compute_per_s: float | None = None,
    loader_points: Sequence[LoaderPoint] = (),
    transfer_points: Sequence[TransferPoint] = (),
    most_workers_tried: int | None = None,
    failed_with_more_workers: tuple[FailureKind, ...] | None = None,
    most_workers_in_memory: int | None = None,
    num_memory_failures: int | None = None,
    in_flight_bytes: int | None = None,
    restart_s: float | None = None,
    compile_tried: bool | None = None,
) -> Evidence:
    """What is known of one confirmed configuration.

    ``compute_per_s``, and the points of `transfer_points`, belong to exactly its recipe, batch size and pinning. A
    compute-only rate that training has left behind was misread, so it counts as not measured.
    ``restart_s``, from an epoch's last batch to the next one's first, is estimated where it was not timed.
    """
    loader = finalist.config.loader
    pins = loader.pin_memory and loader.num_workers > 0  # without workers the training process pins by itself
    uint8, half = smaller_bytes(facts)
    return Evidence(
        trained_per_s=finalist.samples_per_s,
        compute_per_s=None if compute_per_s and compute_per_s * MISREAD < finalist.samples_per_s else compute_per_s,
        workers_per_s=_rate_of(loader_points, pinned=loader.pin_memory and not pins),
        pinned_per_s=_rate_of(loader_points, pinned=True) if pins else None,
        transfer_per_s=next((point.samples_per_s for point in transfer_points), None),
        one_process_per_s=1 / facts.sample_s if facts.sample_s > 0 else None,
        wait_fraction=finalist.wait_fraction,
        **_in_training(finalist),
        num_workers=loader.num_workers,
        num_usable_cores=host.num_usable_cores,
        most_workers_tried=most_workers_tried,
        failed_with_more_workers=failed_with_more_workers,
        most_workers_in_memory=most_workers_in_memory,
        num_memory_failures=num_memory_failures,
        in_flight_bytes=in_flight_bytes,
        **_of_the_machine([run.telemetry for run in finalist.runs if run.telemetry is not None]),
        sample_bytes=facts.sample_bytes,
        uint8_bytes=uint8,
        half_bytes=half,
        epoch_s=finalist.epoch_s or facts.dataset_length / finalist.samples_per_s,
        restart_s=_restart_s(finalist, facts) if restart_s is None else restart_s,
        waits_each_step=finalist.config.recipe.waits_each_step,
        on_gpu=device.kind == "cuda",
        pinned=loader.pin_memory,
        pinning_seldom_rests=_in_every_run(finalist, pinning_seldom_rests, lambda window: window.least_unpinned),
        taking_seldom_rests=_in_every_run(finalist, taking_seldom_rests, lambda window: window.least_untaken),
        persistent=loader.persistent_workers if loader.num_workers else None,
        compile_tried=compile_tried,
    )


def _in_training(finalist: Finalist) -> dict[str, float | None]:
    """What windows and workers' own clocks say."""
    late = usually_held_back([run.workers for run in finalist.runs])
    slow, single = (late if late is not None and late.by == by else None for by in ("worker", "samples"))
    return {
        "compute_fraction": _mean([run.compute_fraction for run in finalist.runs]),
        "copy_fraction": _mean([run.copy_fraction for run in finalist.runs]),
        "idle_fraction": _mean([run.idle_fraction for run in finalist.runs]),
        "slowest_worker_ratio": None if slow is None else slow.ratio,
        "slowest_wait_fraction": None if slow is None else slow.wait_share,
        "late_batch_ratio": None if single is None else single.ratio,
        "late_wait_fraction": None if single is None else single.wait_share,
        "unpinned_batches": _mean_over_steps(finalist, lambda window: window.unpinned),
        "ready_batches": _mean_over_steps(finalist, lambda window: window.ready),
    }


def _in_every_run(
    finalist: Finalist, seldom_rests: Callable[[Sequence[Window]], bool], least: Callable[[Window], int | None]
) -> bool | None:
    """Whether it is so in all of its runs. None: there is no such thing, or it was not watched."""
    if any(least(window) is None for run in finalist.runs for window in run.windows):
        return None
    return all(seldom_rests(run.windows) for run in finalist.runs)


def _of_the_machine(watched: Sequence[Telemetry]) -> dict[str, float | None]:
    """What was seen from outside, mean over runs."""
    return {
        "worker_cores": _mean([worker.cpu_cores for t in watched for worker in t.workers]),
        "pin_thread_cores": _mean([t.pin_thread_cores for t in watched]),
        "main_cores": _mean([t.main_cpu_cores for t in watched]),
        "job_cores": _mean([t.bench_cpu_cores for t in watched]),
        "throttled_fraction": _mean([t.cpu_throttled_fraction for t in watched]),
        "disk_read_bytes_per_s": _mean([t.disk_read_bytes_per_s for t in watched]),
        "disk_idle_fraction": _mean([t.disk_idle_fraction for t in watched]),
    }


def smaller_bytes(facts: WorkloadFacts) -> tuple[int | None, int | None]:
    """(as uint8, in 16 bits) of one sample, target included. None: it is no image of floats, or that small already."""
    num_elements = math.prod(facts.input_shape)
    floats = facts.input_dtype in (*WIDE_FLOATS, "float16", "bfloat16")
    width = {"float64": 8, "float32": 4}.get(facts.input_dtype, 2)
    rest = facts.sample_bytes - width * num_elements
    uint8 = num_elements + rest if floats and len(facts.input_shape) == IMAGE_DIMENSIONS else None
    return uint8, 2 * num_elements + rest if facts.input_dtype in WIDE_FLOATS else None


def _restart_s(finalist: Finalist, facts: WorkloadFacts) -> float:
    """Of an epoch, what passes before its first batch: workers that stay have only to make it, others to start too."""
    loader = finalist.config.loader
    if loader.num_workers == 0:
        return 0.0
    if loader.persistent_workers:
        return loader.batch_size * facts.sample_s
    return statistics.fmean(run.first_batch_s for run in finalist.runs)


def _rate_of(points: Sequence[LoaderPoint], *, pinned: bool) -> float | None:
    return next((point.samples_per_s for point in points if point.config.pin_memory == pinned), None)


def _mean_over_steps(finalist: Finalist, figure: Callable[[Window], float | None]) -> float | None:
    """None: not known in some window."""
    windows = [window for run in finalist.runs for window in run.windows]
    known = [value * window.num_steps for window in windows if (value := figure(window)) is not None]
    return math.fsum(known) / sum(window.num_steps for window in windows) if len(known) == len(windows) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
