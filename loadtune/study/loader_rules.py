"""What can hold a loader up: one rule each, from `Evidence` to a `Hindrance`, or None where no figure shows it."""

import math

from loadtune.records import Hindrance
from loadtune.study.phrases import cores_text, count, device_takes, named
from loadtune.study.walls import IDLE_WORKER, Evidence, least, without_share
from loadtune.units import bytes_text, percent_text, rate_text, ratio_text

SLOW_WORKER = 1.5
"""Times the median's seconds a batch: batches go out in turn, so all wait for the slowest. Who waits for whom would not
tell: workers that started together deliver together, and the first one's turn takes all the waiting."""

CARRIES = 0.5
"""Share of all waiting: more than everything else together."""

READ_SHARE = 0.01
"""Of a decoded sample's bytes, read from disk for each: encoded images are a tenth of it, a page cache that holds all
leaves nothing."""

STRAY_PER_S = 64 << 10
"""Bytes/s read that no sample need be in: code that is paged in, a log. Sixteen pages: a disk that slow is broken."""

SELDOM_READ = 0.5
"""Share of the time without a read, looked at twice a second, from which on a loader that waits does not wait for the
disk: code that was paged in at once made 88 KiB/s of a loader that slept."""

NEARLY_FULL = 0.8
"""Of the workers there is room for: the next rung of the ladder, a fifth more, would not have fitted."""

WITHHELD = 0.1
"""Of the CPU time asked for: as much as the compute-only rate leaves before the device counts as the wall."""

BUSY_CPU = 0.9
"""Of the usable cores: with more in use processes wait for one another's."""

FAR = 1.2
"""A loader that alone does this much more than in training is not what holds training up all the time."""


def slow_worker(e: Evidence) -> Hindrance | None:
    """One worker is slower than the others, which wait for its turn."""
    if not e.waits or (e.slowest_worker_ratio or 0.0) < SLOW_WORKER:
        return None
    share = e.slowest_wait_fraction
    figures = f"One of {_workers(e)} takes {ratio_text(e.slowest_worker_ratio)} as long for a batch as the others"
    figures += "." if share is None else f"; {percent_text(share)} of all waiting is for it."
    return named("slow_worker", figures, least(e.slowest_worker_ratio, _gain(e)))


def slow_samples(e: Evidence) -> Hindrance | None:
    """A few batches are late, and those made after them wait for their turn."""
    if not e.waits or (e.late_wait_fraction or 0.0) < CARRIES:
        return None
    figures = (
        f"{percent_text(e.late_wait_fraction)} of all waiting is for single batches, the longest of which took "
        f"{ratio_text(e.late_batch_ratio)} the usual time."
    )
    return named("slow_samples", figures, least(without_share(e.wait_fraction), _gain(e)))


def taking(e: Evidence) -> Hindrance | None:
    """What looks like waiting is the training process's own work: it takes over batches that are there.

    By its CPU, too: a batch that its worker has counted and not sent yet is there and cannot be taken.
    """
    if not (e.waits and e.is_taking_the_wall) or cores(e) is not None:
        return None
    figures = (
        f"Made batches stand before the training process, which spends {percent_text(e.wait_fraction)} of the time on "
        f"getting its next one: it rebuilds each by itself ({cores_text(e.main_cores)} core){device_takes(e)}."
    )
    return named("loader", figures, least(without_share(e.wait_fraction), _gain(e)))


def host_memory(e: Evidence) -> Hindrance | None:
    """More workers could help, and have no room for their batches."""
    room, cores_there, there = e.most_workers_in_memory, e.num_usable_cores or math.inf, e.num_workers or 0
    capped = room is not None and room < cores_there and there >= NEARLY_FULL * room
    if not (e.waits and there < cores_there and (capped or e.num_memory_failures)):
        return None
    figures = f"Batches in flight take {bytes_text(e.in_flight_bytes)}; "
    figures += (
        f"RAM and /dev/shm hold those of {count(room, 'worker')}, with {count(e.num_usable_cores, 'core')} there."
        if capped
        else f"{count(e.num_memory_failures, 'trial')} with more of them ran out of RAM or /dev/shm."
    )
    return named("host_memory", figures, _gain(e))


def storage(e: Evidence) -> Hindrance | None:
    """Workers have time to spare and read from disk."""
    idle = e.worker_cores is not None and e.worker_cores < IDLE_WORKER
    if not (e.waits and idle and _reads_from_disk(e)):
        return None
    figures = (
        f"Training waits {percent_text(e.wait_fraction)} of the time; a worker uses {cores_text(e.worker_cores)} core, "
        f"and {bytes_text(e.disk_read_bytes_per_s)}/s come from disk."
    )
    return named("storage", figures, _gain(e))


def cores(e: Evidence) -> Hindrance | None:
    """A limit on the CPU holds the job up, or training and loading want the same cores."""
    throttled = (e.throttled_fraction or 0.0) >= WITHHELD
    beside = e.on_gpu is False and bool(e.num_workers)  # without workers all of it is in turn
    shared = beside and (e.job_cores or 0.0) >= BUSY_CPU * (e.num_usable_cores or math.inf)
    if e.is_saturated or not (throttled or shared):
        return None
    if throttled:
        figures = f"A CPU limit withholds {percent_text(e.throttled_fraction)} of the CPU time the job asks for."
    else:
        figures = f"Training and loading share {count(e.num_usable_cores, 'core')} and use {cores_text(e.job_cores)}."
    return named("cores", figures, _gain(e))


def workers(e: Evidence) -> Hindrance | None:
    """Training waits for samples to be made."""
    if not e.waits or _is_uneven(e) or _is_not_told_apart(e) or e.pinning_is_the_wall:
        return None
    who = f"{_workers(e)} make" if e.num_workers else "without workers the loader makes"
    busy = f" at {cores_text(e.worker_cores)} core each" if e.num_workers and e.worker_cores is not None else ""
    figures = (
        f"Training waits {percent_text(e.wait_fraction)} of the time: {who} "
        f"{rate_text(e.made_per_s)}{busy}{device_takes(e)}."
    )
    return named("workers", figures, _gain(e))


def uneven(e: Evidence) -> Hindrance | None:
    """Training waits for a loader that alone is fast enough."""
    if not (e.waits and _is_uneven(e)):
        return None
    figures = (
        f"Training waits {percent_text(e.wait_fraction)} of the time at {rate_text(e.trained_per_s)}, though the "
        f"loader alone makes {rate_text(least(e.workers_per_s, e.pinned_per_s))}."
    )
    return named("loader", figures, _gain(e))


def not_told_apart(e: Evidence) -> Hindrance | None:
    """Training waits, and workers and pinning were not timed apart."""
    if not (e.waits and _is_not_told_apart(e)) or e.pinning_is_the_wall:
        return None
    figures = (
        f"Training waits {percent_text(e.wait_fraction)} of the time for {_workers(e)} and the pinning behind them, "
        "not timed apart."
    )
    return named("loader", figures, _gain(e))


def pinning(e: Evidence) -> Hindrance | None:
    """The one thread that pins hands on less than the workers make."""
    if not e.pinning_is_the_wall:
        return None
    gain = e.gain_without("pinning")
    if e.pinning_stretches and not e.waits:
        figures = (
            f"Most likely: beside the pinning thread ({cores_text(e.pin_thread_cores)} core) steps take "
            f"{e.stretch:.1f} times as long as alone."
        )
        if e.waits_each_step:
            figures += " GradScaler waits for each step, so late launches show."
        return named("pinning", figures, gain)
    if e.pin_thread_per_s is None:
        core = "" if e.pin_thread_cores is None else f" uses {cores_text(e.pin_thread_cores)} core and"
        before = "" if e.unpinned_batches is None else f" with {e.unpinned_batches:.1f} batches before it"
        figures = f"The pinning thread{core} hands on {rate_text(e.trained_per_s)}{before}."
        return named("pinning", figures, gain)
    bandwidth = "" if e.sample_bytes is None else f" ({bytes_text(e.pin_thread_per_s * e.sample_bytes)}/s)"
    # Where training does not wait for it, it holds up by sharing the interpreter and the memory with it.
    likely = "" if e.waits else "Most likely: "
    figures = (
        f"{likely}the loader alone hands on {rate_text(e.pinned_per_s)}{bandwidth} pinned, "
        f"{rate_text(e.workers_per_s)} unpinned{device_takes(e)}."
    )
    return named("pinning", figures, gain)


def _gain(e: Evidence) -> float | None:
    """Until the next wall; where no other was timed, as if nothing were waited for any more."""
    gain = e.gain_without("workers") if e.compute_per_s else None
    return without_share(e.wait_fraction) if gain is None else gain


def _is_uneven(e: Evidence) -> bool:
    if not e.num_workers:
        return False  # the training process makes its batches by itself, in turn: what it waits is what that takes
    alone = least(e.workers_per_s, e.pinned_per_s)
    return alone is not None and e.trained_per_s is not None and alone >= FAR * e.trained_per_s


def _is_not_told_apart(e: Evidence) -> bool:
    return bool(e.pinned and e.num_workers) and (e.workers_per_s is None or e.pinned_per_s is None)


def _reads_from_disk(e: Evidence) -> bool:
    if not e.trained_per_s or e.disk_read_bytes_per_s is None or e.sample_bytes is None:
        return False
    enough = e.disk_read_bytes_per_s >= max(STRAY_PER_S, READ_SHARE * e.sample_bytes * e.trained_per_s)
    return enough and (e.disk_idle_fraction or 0.0) < SELDOM_READ


def _workers(e: Evidence) -> str:
    return count(e.num_workers, "worker")
