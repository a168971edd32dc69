"""Windows of training steps, and what they say of the long run.

Raw windows are kept; statistics are derived from them. A window ends at a device synchronisation, so its wall seconds
are the seconds its steps took. Windows abut: nothing between two of them goes unmeasured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtune.records import intervals

PAGE_LOCK_SHARE = 0.01
"""Of a window's seconds. A block for a label a sample is locked as well, and nobody waits for that little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Some consecutive training steps, synchronised with the device at both ends."""

    start_s: float
    """On the monotonic clock that all processes of the machine share."""
    seconds: float
    num_steps: int
    num_samples: int
    num_tokens: int | None = None
    """Elements of the batches' ``input_ids``, padding included. None: they have none, or nothing was loaded."""
    wait_s: float = 0.0
    """Host time spent in ``next(loader)``. Near 0: data was always there; near ``seconds``: the loader is the wall."""
    queue_start: float | None = None
    """Batches made ahead when the window began, those in the making by how far they should have come, because workers
    in step finish all at once. None: nothing is made ahead (0 workers, resident batch)."""
    queue_end: float | None = None
    copy_s: float | None = None
    """Copies to the device: on CUDA device time around them, on a CPU host time. None: not measured, here and below."""
    compute_s: float | None = None
    """Forward to optimizer step, likewise: on CUDA gaps between kernels count, a step too small to fill the GPU too."""
    idle_s: float | None = None
    """The device had nothing to do: from the end of a step to the next copy. With copy and compute it adds up to about
    ``seconds``. Near 0: the host is always ahead; on a CPU it is ``wait_s`` and the loop's own work."""
    num_skipped_steps: int = 0
    """Steps in which GradScaler left the optimizer out (fp16 overflow): they are faster than a real one. Where several
    batches' gradients are summed, all steps whose gradients were left out."""
    unpinned: float | None = None
    """Batches that workers had made and the pinning thread had not taken when a step asked for its batch, mean over the
    steps. None: nothing is pinned by a thread."""
    ready: float | None = None
    """Batches that could be handed out, or only came too early for their turn, likewise. None: no queue."""
    num_pinned: int | None = None
    """Batches that the pinning thread pinned in this window, the one it is at neither way. None: as for `unpinned`."""
    least_unpinned: int | None = None
    """The fewest that stood before the pinning thread when a step asked for its batch, likewise. Above 0 it hardly ever
    waited for a worker, and `num_pinned` is all it can do."""
    num_taken: int | None = None
    """Batches that the training process itself took from the workers in this window, and rebuilt. None: a pinning
    thread does that, or there is no queue."""
    least_untaken: int | None = None
    """The fewest that it had not taken when a step asked for its batch, and when it had it, likewise. Above 0 it hardly
    ever waited for a worker: what it spends in ``next(loader)`` is its own work, and `num_taken` is all it can do. One
    that looks for a batch which is not made yet takes all others on the way, and leaves none."""
    page_lock_s: float | None = None
    """Host time in page-locking memory that batches are pinned into; of a call that has ended in this window all, where
    it began before too. A fresh loader locks until its queue has once been full, and steps wait for the driver
    meanwhile. None: not on CUDA, or not told."""

    loss_is_finite: bool | None = None
    """Whether the loss of every step of the run so far was a finite number, warm-up included. None: not measured."""

    @property
    def end_s(self) -> float:
        return self.start_s + self.seconds

    @property
    def is_settling(self) -> bool:
        """Whether this is not yet how training goes on: fp16's scale is being found, or memory page-locked."""
        return self.num_skipped_steps > 0 or (self.page_lock_s or 0.0) > PAGE_LOCK_SHARE * self.seconds


def delivered_samples(windows: Sequence[Window]) -> float:
    """What these windows would have trained on had each begun and ended with as much made ahead: the long run.

    The least of three figures. What the workers made: batches that came out of a queue that ran down are no throughput.
    What the pinning thread pinned, where it did not rest: batches that pile up before it are none either, nor are those
    that it had pinned before; without one the training process takes them over, and the same is true of it. And what
    the steps alone would have taken: where they hardly waited they are the slower side, and a queue that filled up
    meanwhile is no credit.
    """
    consumed = float(sum(w.num_samples for w in windows))
    steps = sum(w.num_steps for w in windows)
    grown = [w.queue_end - w.queue_start for w in windows if w.queue_end is not None and w.queue_start is not None]
    if len(grown) < len(windows) or steps == 0:
        return consumed
    made = consumed * (1 + math.fsum(grown) / steps)
    seconds, waited = sum(w.seconds for w in windows), sum(w.wait_s for w in windows)
    taken = consumed * seconds / (seconds - waited) if waited < seconds else math.inf
    return max(0.0, min(made, taken, _taken_over_samples(windows)))


def _without_rest(windows: Sequence[Window]) -> list[Window]:
    """Those in which whoever takes batches from the workers did not rest, where they are half of the time or more: a
    queue that was full of pinned batches has none before the thread until the workers have made the next ones."""
    busy = [w for w in windows if (w.least_unpinned or w.least_untaken or 0) > 0 and _num_taken_over(w) is not None]
    return busy if sum(w.seconds for w in busy) >= sum(w.seconds for w in windows) / 2 else []


def _taken_over_samples(windows: Sequence[Window]) -> float:
    """Samples that the pinning thread could have collected from the workers in all windows, at its rate in those in
    which it was busy. Without a pinning thread it is the training process that collects.

    No fewer than it did collect: the other windows may have been its fast ones. Infinite where it was idle, or was not
    watched: it is no bound then.
    """
    busy = _without_rest(windows)
    busy_s, steps = sum(w.seconds for w in busy), sum(w.num_steps for w in windows)
    if busy_s <= 0 or steps == 0:
        return math.inf
    samples_a_step = sum(w.num_samples for w in windows) / steps
    return samples_a_step * max(_could_take(busy) * sum(w.seconds for w in windows) / busy_s, _could_take(windows))


def _could_take(windows: Sequence[Window]) -> float:
    """Batches that could be collected from the workers in the time of these windows, if nothing else had to be done.

    Without a pinning thread the training process collects while it seems to wait, and trains in the rest of the time.
    Some batches it may have collected before, out of their turn. Of others the steps may be still to come.
    """
    num_taken = _count_taken_over(windows)
    if any(w.num_pinned is not None for w in windows):
        return num_taken
    seconds, waited = sum(w.seconds for w in windows), sum(w.wait_s for w in windows)
    steps = sum(w.num_steps for w in windows)
    return seconds / (waited / num_taken + (seconds - waited) / steps) if num_taken > 0 and seconds > 0 else math.inf


def _count_taken_over(windows: Sequence[Window]) -> int:
    return sum(_num_taken_over(window) or 0 for window in windows)


def _num_taken_over(window: Window) -> int | None:
    return window.num_taken if window.num_pinned is None else window.num_pinned


def sample_tokens(windows: Sequence[Window]) -> float | None:
    """Mean tokens of a sample, padding included. None: batches are no text."""
    counted = [(w.num_tokens, w.num_samples) for w in windows if w.num_tokens is not None]
    num_samples = sum(samples for _, samples in counted)
    return sum(tokens for tokens, _ in counted) / num_samples if num_samples else None


def samples_per_s(windows: Sequence[Window]) -> float:
    """Throughput over abutting windows: delivered samples ÷ wall seconds. Raises ValueError on no windows."""
    if not windows:
        raise ValueError("no windows: nothing was measured")
    return delivered_samples(windows) / sum(w.seconds for w in windows)


def half_width_fraction(windows: Sequence[Window]) -> float | None:
    """Half width of the 95% interval of the mean rate over windows, as a share of it; None below two windows.

    It knows only this run's own noise; fresh loaders differ by more, which the confirmation measures. Where collecting
    batches limits the rate, steps may be steadier than the collecting: the interval is no narrower than one batch.
    """
    width = intervals.half_width_fraction([w.num_samples for w in windows], [w.seconds for w in windows])
    num_taken = _count_taken_over(_without_rest(windows))
    if width is None or not num_taken or _taken_over_samples(windows) > delivered_samples(windows):
        return width
    return max(width, 1 / num_taken)
