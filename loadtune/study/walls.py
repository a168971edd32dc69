"""What a verdict is reached from: plain numbers of one configuration, and the walls they stand for.

In: nothing but numbers. Out: how fast the job would go if one part took no time. Apart from the rules, which only
compare, and from `gather`, which knows where the numbers come from.
"""

from dataclasses import dataclass

from loadtune.records import FailureKind

COMPUTE_BOUND = 0.9
"""At this share of the compute-only rate the device is the wall: what is left is within the noise of fresh loaders."""

WAITING = 0.15
"""A data wait above this share of the step names the loader; below it the loader keeps up, unless `EXPLAINS` says that
little more is missing."""

EXPLAINS = 0.5
"""Of the time that is not computing: a part that takes more of it is what is missing to the compute-only rate."""

TIGHT = 1.1
"""A part that alone does no more than this many times the trained rate may be the wall: fresh loaders differ by 6 to
7%, and a loader alone has been seen slower than under training."""

IDLE_WORKER = 0.5
"""Cores' worth of CPU below which a worker mostly waits for something else."""

FULL = 0.9
"""Cores' worth of CPU of one worker or thread from which on it cannot go faster."""

STANDING, NONE_READY = 1.0, 0.5
"""Batches before the pinning thread, and behind it, on average: with these it is never idle, and whoever comes for a
batch mostly finds none."""

SLOWER = 0.9
"""With pinning, a loader below this share of what it does without is held up by the pinning, not by noise."""

STRETCHED = 1.15
"""A step that takes the device this many times as long as alone is slowed by what runs beside it, not by noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured of one configuration. None: not measured, or there is no such thing here."""

    trained_per_s: float | None = None
    """Samples/s, confirmed."""
    compute_per_s: float | None = None
    """Of the same step on a batch that stays on the device."""
    workers_per_s: float | None = None
    """Of the loader alone, without pinning."""
    pinned_per_s: float | None = None
    """Of the loader alone, with pinning; None where the configuration does not pin."""
    transfer_per_s: float | None = None
    """Of copies to the device alone, from memory such as the configuration trains from."""
    one_process_per_s: float | None = None
    """Samples/s that one process makes by itself."""

    wait_fraction: float | None = None
    """Share of the time in which training waited for its next batch."""
    compute_fraction: float | None = None
    """Share of the time in which the device computed; with `copy_fraction` and `idle_fraction` its own account."""
    copy_fraction: float | None = None
    idle_fraction: float | None = None
    slowest_worker_ratio: float | None = None
    """Seconds a batch takes the slowest worker ÷ the median of all: 1 where all are alike."""
    slowest_wait_fraction: float | None = None
    """Of all waiting, the share at the slowest worker's turns: 1 ÷ workers where all are alike."""
    late_batch_ratio: float | None = None
    """Seconds the longest single batch took ÷ the usual ones. None: no few batches stand out, whoever made them."""
    late_wait_fraction: float | None = None
    """Of all waiting, the share for those."""
    unpinned_batches: float | None = None
    """Batches that were made and not yet pinned when one was asked for, on average."""
    ready_batches: float | None = None
    """Likewise those that could be handed out."""
    pinning_seldom_rests: bool | None = None
    """In each run batches stood before the pinning thread throughout half of the time or more."""
    taking_seldom_rests: bool | None = None
    """Likewise before the training process, where it takes them from the workers itself."""

    num_workers: float | None = None
    num_usable_cores: float | None = None
    most_workers_tried: float | None = None
    failed_with_more_workers: tuple[FailureKind, ...] = ()
    """How trials with more workers than this configuration failed, one for each."""
    most_workers_in_memory: float | None = None
    """Workers whose batches fit RAM and /dev/shm at this batch size."""
    num_memory_failures: float | None = None
    """Trials with more batches in flight that RAM or /dev/shm ended."""
    in_flight_bytes: float | None = None
    """Of the batches asked for ahead and in the making."""

    worker_cores: float | None = None
    """Cores' worth of CPU time of one worker, on average: 1.0 is busy all the time."""
    pin_thread_cores: float | None = None
    """Likewise of the thread that pins."""
    main_cores: float | None = None
    """Likewise of the training process, all its threads."""
    job_cores: float | None = None
    """Likewise of the whole job. Not of the machine: on one that is shared its cores may be busy with others' work."""
    throttled_fraction: float | None = None
    """Of the CPU time the job asked for, the share that a limit on it withheld."""
    disk_read_bytes_per_s: float | None = None
    disk_idle_fraction: float | None = None
    """Share of the time in which nothing was read."""

    sample_bytes: float | None = None
    uint8_bytes: float | None = None
    """The same sample with a byte for each element; None: it is no image of floats."""
    half_bytes: float | None = None
    """The same with two bytes for each element; None: it has no more than that."""

    epoch_s: float | None = None
    restart_s: float | None = None
    """Of an epoch, the time at its beginning in which no batch is ready."""

    waits_each_step: bool | None = None
    """The host waits for the device in every step, so that whatever it launches late the device waits for."""
    on_gpu: bool | None = None
    pinned: bool | None = None
    persistent: bool | None = None
    """Workers stay from one epoch to the next."""
    compile_tried: bool | None = None
    """This run looked at torch.compile, whatever came of it: to advise it would be to send the user back."""

    @property
    def utilization(self) -> float | None:
        """Trained ÷ compute-only rate, or the device's own account where that was not timed."""
        if self.trained_per_s is None or not self.compute_per_s:
            return self.compute_fraction
        return self.trained_per_s / self.compute_per_s

    @property
    def is_saturated(self) -> bool:
        return (self.utilization or 0.0) >= COMPUTE_BOUND

    @property
    def waits(self) -> bool:
        """Training is held up by its loader."""
        return not self.is_saturated and (self.wait_fraction or 0.0) >= min(WAITING, EXPLAINS * self._missing)

    @property
    def _missing(self) -> float:
        """Share of the compute-only rate; all of it where that is not known."""
        return 1.0 if self.utilization is None else 1 - self.utilization

    @property
    def made_per_s(self) -> float | None:
        """What the workers make, alone or in training, where either is noisy: they made what was trained on."""
        return max((rate for rate in (self.workers_per_s, self.trained_per_s) if rate is not None), default=None)

    @property
    def stretch(self) -> float | None:
        """Times as long as alone that a step takes the device. None: not timed in both ways."""
        if self.compute_fraction is None or not self.compute_per_s or not self.trained_per_s:
            return None
        return self.compute_fraction * self.compute_per_s / self.trained_per_s

    @property
    def is_stretched(self) -> bool:
        return (self.stretch or 1.0) >= STRETCHED

    @property
    def pin_thread_per_s(self) -> float | None:
        """What pinning hands on where it, and not the workers, limits the loader. None: not known, or not so."""
        if self.pinned_per_s is None or self.workers_per_s is None or not self.num_workers:
            return None
        return self.pinned_per_s if self.pinned_per_s < SLOWER * self.workers_per_s else None

    @property
    def pinning_is_the_wall(self) -> bool:
        """By what it does alone, or by what it looks like in training.

        Where training does not wait for it, it can hold it up only by sharing the interpreter and the memory with it:
        that is said where copies do not explain what is missing.
        """
        tight = self._is_tight(self.pin_thread_per_s)
        if not self.waits:
            return (tight or self.pinning_stretches) and not self.is_saturated and not self._copies_explain
        seldom_idle = self.pinning_seldom_rests or (self.ready_batches or 0.0) < NONE_READY
        behind = (self.unpinned_batches or 0.0) >= STANDING and seldom_idle
        return tight or behind or self._is_pin_thread_full

    @property
    def is_taking_the_wall(self) -> bool:
        """The training process itself takes batches from the workers, seldom finds none, and uses a whole core."""
        return bool(self.taking_seldom_rests) and (self.main_cores or 0.0) >= FULL

    @property
    def pinning_stretches(self) -> bool:
        """Steps take longer than alone beside a pinning thread that uses a whole core."""
        return self._is_pin_thread_full and self.is_stretched

    @property
    def _is_pin_thread_full(self) -> bool:
        return (self.pin_thread_cores or 0.0) >= FULL

    @property
    def _copies_explain(self) -> bool:
        """Most of the time that is not computing."""
        return self.utilization is not None and (self.copy_share or 0.0) >= EXPLAINS * self._missing

    @property
    def copy_share(self) -> float | None:
        """Share of the time that copies to the device take: on the same stream, so nothing is computed meanwhile."""
        if self.copy_fraction is not None or self.trained_per_s is None or not self.transfer_per_s:
            return self.copy_fraction
        return self.trained_per_s / self.transfer_per_s

    def _is_tight(self, per_s: float | None) -> bool:
        """Whether a part of this rate may be what holds training up."""
        return per_s is not None and self.trained_per_s is not None and per_s <= TIGHT * self.trained_per_s

    def gain_without(self, part: str) -> float | None:
        """Ratio of the next wall to the trained rate, were ``compute``, ``workers``, ``pinning`` or ``transfer`` free.

        Workers, pinning and device work side by side, so the slowest counts; copies and compute share a stream, so
        their times add up. A wall that training has passed is none, unless training waits there: then it stands where
        training is. None: no other wall was timed, or for ``compute`` none of the loader's.
        """
        if not self.trained_per_s:
            return None
        loader = {"workers": self.workers_per_s, "pinning": self.pin_thread_per_s}
        known = [wall for name, wall in loader.items() if name != part and wall and self._stands(wall)]
        device = self._device_per_s(part)
        known += [device] if device and (known or part != "compute") else []
        return max(1.0, min(known) / self.trained_per_s) if known else None

    def _stands(self, per_s: float) -> bool:
        return self.waits or per_s > (self.trained_per_s or 0.0)

    def _device_per_s(self, part: str) -> float | None:
        """Samples/s of the device and the way to it, one of which may take no time."""
        if part == "compute":
            return self.transfer_per_s
        if part == "transfer" or not self.compute_per_s or not self.transfer_per_s:
            return self.compute_per_s
        return 1 / (1 / self.compute_per_s + 1 / self.transfer_per_s)


def without_share(share: float | None) -> float | None:
    """Ratio at which a job goes that no longer spends this share of its time; None: all of it, or not known."""
    return None if share is None or share >= 1.0 else 1 / (1 - max(0.0, share))


def least(*gains: float | None) -> float | None:
    """The smallest of those that are known."""
    return min((gain for gain in gains if gain is not None), default=None)
