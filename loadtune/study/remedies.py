"""What a user can do about a verdict: a sentence or two, as concrete as the figures allow. Words alone, no judgement.

In: the bound and the `Evidence` it was found in. Out: text of two lines of a terminal at most, which says whether more
workers can help.
"""

import math
from collections.abc import Callable, Mapping

from loadtune.records import Bound
from loadtune.study.walls import IDLE_WORKER, Evidence, least
from loadtune.units import bytes_text, counted

CHEAP_SAMPLE_PER_S = 5000.0
"""One process alone makes so many: below 0.2 ms a sample, calling, collating and handing over cost as much as making
it, and a whole batch at a time saves most of that."""


def advice(bound: Bound, e: Evidence) -> str:
    """What to change."""
    return _REMEDIES[bound](e)


def _fewer_bytes(e: Evidence) -> str:
    """The dataset's own figures: what a sample weighs, and what it could."""
    if e.sample_bytes is None:
        return "Send fewer bytes: uint8, scaled on the GPU."
    now = f"Send fewer bytes: {bytes_text(e.sample_bytes)} a sample now"
    if e.uint8_bytes is not None:
        return f"{now}, {bytes_text(e.uint8_bytes)} as uint8, scaled on the GPU."
    if e.half_bytes is not None:
        return f"{now}, {bytes_text(e.half_bytes)} cast to 16 bits in the worker."
    return f"{now}."


def _cheaper_samples(e: Evidence) -> str:
    if (e.one_process_per_s or 0.0) >= CHEAP_SAMPLE_PER_S:
        return "Samples are cheap, handing them over is not: make whole batches with __getitems__."
    less = "leave transforms out" if e.on_gpu is False else "scale on the GPU"
    return f"Make a sample cheaper: decode smaller, cache decoded samples, {less}."


def _workers(e: Evidence) -> str:
    if _at_least(e.most_workers_tried, (e.num_workers or 0) + 1):
        return f"More workers did not pay when tried. {_cheaper_samples(e)}"
    if e.failed_with_more_workers:
        failed = counted(len(e.failed_with_more_workers), "trial")
        kinds = ", ".join(dict.fromkeys(e.failed_with_more_workers))
        return f"What more workers gain is not known: {failed} with more failed ({kinds}). Mend what ended them first."
    if _at_least(e.num_workers, e.num_usable_cores):
        # Workers that sleep share cores well, and how many more would help was not measured: nothing is said of them.
        are_busy = _at_least(e.worker_cores, IDLE_WORKER)
        shared = "More workers cannot fix it: they would share the same cores. " if are_busy else ""
        return f"{shared}{_cheaper_samples(e)}"
    return f"{_more_workers(e)} {_cheaper_samples(e)}"


def _more_workers(e: Evidence) -> str:
    """How many it takes, where that is known and there are cores for them."""
    needed = _workers_needed(e)
    if needed is None or not _at_least(e.num_usable_cores, needed):
        return "More workers were not measured (--max-workers)."
    return f"About {counted(needed, 'worker')} would do, which {'was' if needed == 1 else 'were'} not measured."


def _workers_needed(e: Evidence) -> int | None:
    one = e.made_per_s / e.num_workers if e.workers_per_s and e.made_per_s and e.num_workers else e.one_process_per_s
    wall = least(e.compute_per_s, e.transfer_per_s)
    return math.ceil(wall / one) if one and wall else None


def _slow_worker(e: Evidence) -> str:
    return (
        "More workers cannot fix it. in_order=False or a larger prefetch_factor lets the others go on; look for what "
        "holds that one up: a lock, a large file."
    )


def _slow_samples(e: Evidence) -> str:
    return (
        "More workers cannot fix it. Look for samples that are slow to read; a larger prefetch_factor, or "
        "in_order=False, hides a few of them."
    )


def _storage(e: Evidence) -> str:
    return (
        "More workers help only while the disk has more to give. Keep the data in RAM or on a local SSD, or pack small "
        "files into few large ones."
    )


def _host_memory(e: Evidence) -> str:
    smaller = least(e.uint8_bytes, e.half_bytes)
    sample = "" if smaller is None else f" (a sample could be {bytes_text(smaller)})"
    return f"More workers cannot fix it: they do not fit. Smaller samples{sample}, prefetch_factor=1, or more /dev/shm."


def _cores(e: Evidence) -> str:
    if e.throttled_fraction:
        return f"More workers cannot fix it: raise the CPU limit. {_cheaper_samples(e)}"
    return f"More workers cannot fix it: training needs those cores too. {_cheaper_samples(e)}"


def _pinning(e: Evidence) -> str:
    return f"More workers cannot fix it: pinning is one thread's work. {_fewer_bytes(e)}"


def _transfer(e: Evidence) -> str:
    pin = "Try pin_memory=True. " if e.pinned is False else ""
    return f"More workers cannot fix it. {pin}{_fewer_bytes(e)}"


def _startup(e: Evidence) -> str:
    if e.persistent is False:
        return "More workers cannot fix it, fewer start sooner. persistent_workers=True keeps them between epochs."
    return (
        "More workers cannot fix it. Draw several epochs as one (num_samples of RandomSampler), so that the queue "
        "stays full in between."
    )


def _compute(e: Evidence) -> str:
    compiling = "" if e.compile_tried else "torch.compile (--tune compile measures it), "
    return (
        f"More workers cannot fix it: the loader keeps up. Make the step itself faster: {compiling}a smaller model "
        "or image."
    )


def _loader(e: Evidence) -> str:
    if e.is_taking_the_wall:
        pin = "Try pin_memory=True: a thread takes them then. " if e.on_gpu and e.pinned is False else ""
        return f"More workers cannot fix it. {pin}Make batches of few, large tensors. {_fewer_bytes(e)}"
    if e.workers_per_s is None:
        return f"Fewer bytes help against either. {_fewer_bytes(e)}"
    return (
        "Batches come unevenly, or training and workers want the same cores: try prefetch_factor=4, or fewer workers "
        "where all cores are busy."
    )


def _unclear(e: Evidence) -> str:
    if e.on_gpu is False:
        return "Training and loading share the same cores here: what one gains the other may lose."
    look = "Look at the training loop with torch.profiler."
    return look if e.wait_fraction is None else f"More workers cannot fix it: data is there when asked for. {look}"


_REMEDIES: Mapping[Bound, Callable[[Evidence], str]] = {
    "compute": _compute,
    "workers": _workers,
    "slow_worker": _slow_worker,
    "slow_samples": _slow_samples,
    "storage": _storage,
    "host_memory": _host_memory,
    "cores": _cores,
    "pinning": _pinning,
    "transfer": _transfer,
    "startup": _startup,
    "loader": _loader,
    "unclear": _unclear,
}


def _at_least(number: float | None, other: float | None) -> bool:
    return number is not None and other is not None and number >= other
