"""The rate of windows of training steps in the long run, and how well these windows tell it."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from loadtune.statistics.interval import mean_of_series

if TYPE_CHECKING:
    from loadtune.records.measurement import Window

Windows: TypeAlias = Sequence["Window"]


def delivered_samples(windows: Windows) -> float:
    """What these windows would have trained on if each had begun and ended with an equally long queue: the long run.

    The least of three figures. What the workers made: a queue that shrinks is no throughput. What was taken from the
    workers, where whoever takes was always busy: batches that pile up there are no throughput either. What the steps
    alone would have consumed: where they hardly waited, a growing queue is no credit.
    """
    consumed, (seconds, waited, steps) = float(sum(w.num_samples for w in windows)), _sums(windows)
    grown = [w.queue_end - w.queue_start for w in windows if w.queue_end is not None and w.queue_start is not None]
    if len(grown) < len(windows) or steps == 0:
        return consumed
    made = consumed * (1 + math.fsum(grown) / steps)
    taken = consumed * seconds / (seconds - waited) if waited < seconds else math.inf
    return max(0.0, min(made, taken, consumed / steps * _collectable(windows)))


def _sums(windows: Windows) -> tuple[float, float, int]:
    """(Seconds, seconds of waiting, steps.)"""
    return sum(w.seconds for w in windows), sum(w.wait_s for w in windows), sum(w.num_steps for w in windows)


def _busy(windows: Windows) -> Windows:
    """Windows in which whoever takes batches from the workers was always busy. Empty: less than half of the time."""
    busy = [w for w in windows if (w.least_unpinned or w.least_untaken or 0) > 0 and w.num_collected is not None]
    return busy if _sums(busy)[0] >= _sums(windows)[0] / 2 else []


def _collectable(windows: Windows) -> float:
    """Batches that could have been collected from the workers in all windows, at the rate of the busy ones; no fewer
    than were collected. Infinite where whoever collects was idle, or was not watched: no bound then.

    Without a pinning thread the training process collects while it seems to wait, and trains in the rest of the time.
    """

    def at_once(some: Windows) -> float:
        collected, (seconds, waited, steps) = sum(w.num_collected or 0 for w in some), _sums(some)
        if any(w.num_pinned is not None for w in some):
            return collected
        return seconds / (waited / collected + (seconds - waited) / steps) if collected else math.inf

    busy = _busy(windows)
    return max(at_once(busy) * _sums(windows)[0] / _sums(busy)[0], at_once(windows)) if busy else math.inf


def samples_per_s(windows: Windows) -> float:
    """Throughput over abutting windows: delivered samples ÷ wall seconds. Raises ValueError on no windows."""
    if not windows:
        raise ValueError("no windows: nothing was measured")
    return delivered_samples(windows) / _sums(windows)[0]


def half_width_fraction(windows: Windows) -> float | None:
    """Half width of the 95% interval of the mean rate over windows, as a share of it; None below two windows.

    It knows only this run's own noise; fresh loaders differ by more, which the confirmation measures. Where collecting
    batches limits the rate, steps may be steadier than the collecting: the interval is no narrower than one batch.
    """
    rate = mean_of_series([w.num_samples for w in windows], [w.seconds for w in windows])
    width = rate and rate.half_width_fraction
    if width is None or not (collected := sum(w.num_collected or 0 for w in _busy(windows))):
        return width
    samples_a_step = sum(w.num_samples for w in windows) / _sums(windows)[2]
    is_limit = samples_a_step * _collectable(windows) <= delivered_samples(windows)
    return max(width, 1 / collected) if is_limit else width
