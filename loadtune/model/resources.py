"""What each resource needs for a sample, and the throughput that follows. Pure, over arrays of settings.

Operational analysis (Denning and Buzen, ACM Computing Surveys 10, 1978): a resource that is busy `d` seconds for each
sample allows 1/d samples/s. The slowest one bounds throughput. Near a tie several of them slow each other down, which a
soft maximum describes: ``seconds = (sum of d^n)^(1/n)``. The demands `d`:

======================  ======================================================================  ==============
resource                seconds a sample                                                        used where
======================  ======================================================================  ==============
workers                 (make + batch_cost ÷ batch_size) ÷ (num_workers × busy)                 num_workers > 0
cores                   CPU seconds of loading, of the training process, and on a CPU of        always
                        computing ÷ usable cores
pinning                 bytes ÷ pinning rate + hand_cost ÷ batch_size                           pinned, on a GPU
main                    launch × crowding ÷ batch_size; unpinned also hand_cost ÷ batch_size    num_workers > 0
                        and the copy, which the CPU makes
device                  compute + bytes ÷ copy rate + sync × crowding × pin_busy ÷ batch_size   a GPU
======================  ======================================================================  ==============

``make`` is the wall time of one worker for a sample: ``wait + load × crowding``. There ``load`` grows by ``pile`` with
each doubling of the batch beyond 256: the objects of a large batch outgrow the caches. ``busy`` is the share of its
time in which a worker that is never out of work makes samples; collating and sending take the rest.

``sync`` is what GradScaler's wait for the device costs a step, in recipes of ``job.syncing``. During this wait no
kernel is launched, and the pinning thread, busy for the share ``pin_busy`` of the time, slows the launches after it.
Measured with fp16 on H200s, beyond a step without a loader, which waits too: 10 to 42 ms beside pinned floats, 0 to 8
ms beside pinned bytes, nothing where batches are not pinned.

``crowding`` is what a worker's CPU time grows by while cores are shared: ``1 + crowd × (busy cores ÷ usable cores)²``.
Busy cores follow from the throughput itself, so both are iterated.

Copies run on the stream that computes, so both add up. With 0 workers the training process does everything in turn:
loading, pinning, copying and computing add up in ``main``. (Unpinned copies wait for the step before, and while a batch
is pinned its memory cannot be reused.) Measured on an H200, also with pinning: 7.16 ms for 6.89 of computing, 0.25 of
loading and pinning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtune.model.workers import BATCH_COST_S, HAND_COST_S, SHARPNESS, soft_maximum
from loadtune.records.result import Part, Resource

Array = NDArray[np.float64]

RESOURCES: tuple[Resource, ...] = ("workers", "cores", "pinning", "main", "device")

_ROUNDS = 4
"""Iterations of throughput and crowding: later ones change a rate by less than 1% at 99 of 100 draws from the prior."""


class Prior(NamedTuple):
    """Of one parameter: it is log-normal."""

    median: float
    sd: float
    """Of the logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is known before the first segment."""

    sample_s: float
    """Seconds to load one sample in the training process, with nothing beside it."""
    sample_cpu_s: float
    """CPU seconds of that; the rest is waiting, for storage or a network."""
    sample_bytes: float
    num_cores: float
    """Usable ones."""
    on_gpu: bool
    compute: Mapping[str, tuple[tuple[float, float], ...]]
    """By recipe: (batch size, seconds a sample) of training steps without a loader, smallest batch first."""
    changes: tuple[str, ...] = ()
    """Names of the changes of the code in this job."""
    changed: tuple["Job", ...] = ()
    """The same job with changes of the code, which a point counts from 1 on."""
    syncing: frozenset[str] = frozenset()
    """Recipes in which every step waits for the device: fp16 with GradScaler and an optimizer that is not fused."""

    @property
    def codes(self) -> tuple["Job", ...]:
        """With no change of the code, and with each combination of changes."""
        return (self, *self.changed)


POINT = np.dtype([("batch_size", float), ("num_workers", float), ("pinned", bool), ("recipe", int), ("code", int)])
"""A setting; recipe and code are places among ``Job.compute`` and `Job.codes`."""

Points = NDArray[np.void]
"""Settings: an array of `POINT`."""


PRIORS: Mapping[str, Prior] = {
    "load": Prior(1.0, 0.4),  # × sample_s: in a worker, collating included
    "busy": Prior(0.8, 0.15),
    "pile": Prior(4e-7, 1.0),  # s a sample and doubling of the batch beyond 256
    "batch_cost": Prior(BATCH_COST_S, 1.2),  # s a batch: queues, pickling, shared memory
    "crowd": Prior(0.5, 0.8),
    "spin": Prior(1.0, 0.8),  # how much computing on a CPU is slowed by workers, whose cores its threads wait for
    "pin_rate": Prior(3.0e9, 0.6),  # bytes/s of the one thread
    "unpinned_rate": Prior(3.5e9, 0.6),  # bytes/s: opening shared memory and a pageable copy
    "copy_rate": Prior(2.0e10, 0.6),  # bytes/s from page-locked memory
    "hand_cost": Prior(HAND_COST_S, 1.0),  # s a batch in the pinning thread
    "launch": Prior(1.5e-2, 0.8),  # CPU s a step in the training process
    "sync": Prior(8e-3, 1.0),  # s a step
    "small": Prior(0.25, 0.7),  # seconds a sample below the smallest measured batch grow with this power of 1 ÷ batch
    "sharpness": Prior(SHARPNESS, 0.8),  # n of the soft maximum
}
"""One more for each recipe follows: by how much its step takes longer in training than it did alone."""

COMPUTE = Prior(1.03, 0.10)


def prior_of(job: Job) -> tuple[Array, Array]:
    """(Mean, standard deviation) of the logarithm of each parameter.

    Without a loader no step was shorter than what launching it takes, which bounds ``launch`` and ``sync``.
    """
    shortest_s = min(size * seconds for curve in job.compute.values() for size, seconds in curve)
    bounds = {"launch": 0.8 * shortest_s, "sync": 0.3 * shortest_s}
    bounded = [prior._replace(median=min(prior.median, bounds.get(name, np.inf))) for name, prior in PRIORS.items()]
    medians, sds = np.array([*bounded, *(COMPUTE for _ in job.compute)]).T
    return np.log(medians), sds


def compute_s(job: Job, points: Points, small: Array) -> Array:
    """Seconds a sample of a step without a loader: between measured sizes interpolated on a log-log scale, below them
    growing by the power ``small`` of 1 ÷ batch size, above them along a line through two measured steps."""
    alone, below = np.empty(len(points)), np.empty(len(points))
    curves = [[*each.compute.values()] for each in job.codes]
    for code, recipe in set(zip(points["code"].tolist(), points["recipe"].tolist(), strict=True)):
        curve, at = curves[code][recipe], (points["code"] == code) & (points["recipe"] == recipe)
        sizes, seconds = np.log([size for size, _ in curve]), np.log([each for _, each in curve])
        wanted = np.log(points["batch_size"][at])
        below[at] = np.maximum(0.0, sizes[0] - wanted)
        alone[at] = np.interp(wanted, sizes, seconds) + _beyond(curve, points["batch_size"][at])
    return np.exp(alone + np.minimum(1.0, small) * below)


def _beyond(curve: Sequence[tuple[float, float]], sizes: Array) -> Array:
    """Logarithm of the seconds a sample ÷ those at the largest measured size, for sizes above it; 0 for others."""
    top, top_s = curve[-1]
    other = next((point for point in reversed(curve) if 2 * point[0] <= top), None)
    more_s = top_s if other is None else (top * top_s - other[0] * other[1]) / (top - other[0])  # of one more sample
    share = min(1.0, max(0.0, more_s / top_s))
    return np.log(share + (1 - share) * np.minimum(1.0, top / sizes))


class Demands(NamedTuple):
    """Seconds a sample."""

    by_resource: Mapping[Resource, Array]
    """0 where a resource is not used."""
    parts: Mapping[Resource, Mapping[Part, Array]]
    """What a resource is busy with; only their shares count, not their sum. Empty unless asked for."""
    seconds: Array
    """What a sample takes, all of them together."""
    make: Array
    """Of one worker, or of the training process with 0 workers."""
    device: Array
    pin: Array
    """Of the pinning thread; 0 where there is none."""
    cpu: Array
    """CPU seconds of the workers; 0 where there are none."""
    compute: Array
    """Of training steps without a loader: nothing trains faster."""


def demands(theta: Array, job: Job, points: Points, *, with_parts: bool = False) -> Demands:
    """At these parameters, which are logarithms: of shape (P,), or (n, P) for n rows of demands at once."""
    values = np.exp(theta)
    value = {name: values[..., at, None] for at, name in enumerate(PRIORS)}
    b, w, pinned, recipe, code = (points[name] for name in POINT.names or ())
    slower, in_process, gpu = values[..., len(PRIORS) + recipe], w == 0, job.on_gpu
    known = np.array([(each.sample_s, each.sample_cpu_s, each.sample_bytes) for each in job.codes])
    sample_s, cpu_s, sample_bytes = known[code].T
    wait_s = np.maximum(0.0, sample_s - cpu_s)
    load_s = cpu_s * value["load"] + value["pile"] * np.maximum(0.0, np.log2(b / 256))
    send_s = np.where(in_process, 0.0, value["batch_cost"] / b)
    compute = compute_s(job, points, value["small"])
    alone_s = compute * slower
    none = np.zeros(len(b))
    syncs = np.array([[name in each.syncing for name in job.compute] for each in job.codes])[code, recipe]
    sync_s = np.where(syncs & gpu, value["sync"] / b, 0.0)
    rate = np.where(pinned, value["copy_rate"], value["unpinned_rate"])
    copy_s = sample_bytes / rate if gpu else none
    launch_s = value["launch"] / b if gpu else none
    pins = pinned & gpu
    lock_s, hand_s = np.where(pins, sample_bytes / value["pin_rate"], 0.0), value["hand_cost"] / b
    core_s = np.where(in_process, 0.0, launch_s + hand_s + send_s + lock_s)
    if gpu:  # copying from pageable memory is the CPU's work
        core_s = core_s + np.where(pinned | in_process, 0.0, copy_s)
    n, crowding, stolen = value["sharpness"], np.ones(len(b)), np.zeros(len(b))
    pin_s = np.where(pins & ~in_process, lock_s + hand_s, 0.0)
    pin_busy = pin_s / np.maximum(alone_s, pin_s)
    away, most_busy = np.where(in_process, 0.0, 1.0), np.where(in_process, 1.0, w + 1.0)
    per_worker = away / (np.maximum(1, w) * np.minimum(1.0, value["busy"]))
    main_s = np.where(in_process, np.where(pins, hand_s, 0.0) + lock_s, np.where(pins, 0.0, hand_s + copy_s))
    needed = np.zeros((len(RESOURCES), *np.broadcast_shapes((*theta.shape[:-1], 1), b.shape)))
    needed[2] = pin_s
    for _ in range(_ROUNDS):
        loads_s = load_s * crowding
        make = wait_s + loads_s
        launches_s = launch_s * crowding
        computing_s = 0.0 if gpu else alone_s * job.num_cores * (1 + value["spin"] * stolen)
        waits_s = sync_s * crowding * pin_busy
        device_s = alone_s + waits_s + copy_s
        needed[0] = (make + send_s) * per_worker
        needed[1] = (loads_s + core_s + computing_s) * away / job.num_cores
        needed[3] = main_s + np.where(in_process, make + np.maximum(device_s, launches_s), launches_s)
        needed[4] = device_s * away if gpu else 0.0
        seconds = soft_maximum(needed, n)
        pin_busy = np.minimum(1.0, pin_s / seconds)
        busy = np.minimum(most_busy, (loads_s + core_s) / seconds + (0 if gpu else 1.0))
        stolen = np.minimum(1.0, loads_s / seconds / job.num_cores)
        crowding = 1 + value["crowd"] * away * np.minimum(1.5, busy / job.num_cores) ** 2
    parts: dict[Resource, Mapping[Part, Array]] = {}
    if with_parts:
        here = in_process.astype(float)
        parts = {
            "workers": {
                "waiting": wait_s + 0 * loads_s,
                "loading": loads_s,
                "collating": (make + send_s) / np.minimum(1.0, value["busy"]) - make,
            },
            "cores": {
                "loading": loads_s,
                "collating": send_s + hand_s,
                "launching": launch_s,
                "copying": core_s - send_s - hand_s - launch_s,
                "computing": computing_s + none,
            },
            "pinning": {"copying": lock_s, "collating": hand_s},
            "main": {
                "waiting": wait_s * here,
                "loading": loads_s * here,
                "collating": np.where(in_process & ~pins, 0.0, hand_s),
                "copying": (lock_s + copy_s) * here + np.where(pins, 0.0, copy_s) * (1 - here),
                "computing": alone_s * here,
                "launching": launches_s * (1 - here),
            },
            "device": {"computing": alone_s, "copying": copy_s, "synchronizing": waits_s},
        }
    cpu = np.where(in_process, 0.0, loads_s + send_s)
    by_resource = dict(zip(RESOURCES, needed, strict=True))
    return Demands(by_resource, parts, seconds, make, device_s, by_resource["pinning"], cpu, compute)
