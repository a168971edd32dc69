"""Which size to run next: for the line's second point, for the hard ceiling, for the safe one. Nothing is run here.

What would be run next is also the prediction of both ceilings, with the margins of a size that is run.
"""

from loadtune.probe.forecast import Forecast
from loadtune.probe.tries import ROOM, Tries

LOW, TIMES = 32, 5
"""The line's first size, and how many times that its second is at the least. Smaller ones misjudge the slope:
workspaces and rounding weigh as much as the samples (a line through 1 to 16 was 12% short for ResNet-50)."""

THIRD = 0.3
"""Share of the budget that the line's second size may fill by the first one's word: n times the batch takes at most n
times the memory. The farther apart the two, the less a jump or a ripple bends the line."""

LEAN = 0.985
"""Of the size a line or a forecast ends at. On an H200 that took ten models' first proposals to 0.97 to 0.99 of the
truth without an OOM; at 0.99 one of ten ran out of memory, and the step back cost it 2%."""

NEAR = 0.98
"""A ceiling this close to what failed, or to what is predicted to, is left as it is: less than that is to be won by
another run, which may be an OOM."""

WORTH = 1.01
"""By how much a larger size has to be larger to be worth a run, after one that a forecast proposed."""

STEPS_BACK = (0.975, 0.975, 0.97, 0.9, 0.7)
"""From the smallest size that failed, after one failure, two, … Small at first: predictions are rarely off by more."""

SCARCE = 2
"""Runs that are left for the hard ceiling where the line took three sizes: the second of them has to fit."""

SCARCE_LEAN, SCARCE_STEP = 0.972, 0.979
"""`LEAN` and the step back where so few are left."""

VISIBLE, CLEAR = 0.1, 0.25
"""Shares of the budget by which memory has to have grown for its slope to be believed, and by which a further size is
made to grow it where it had not."""

LAST_ROOM = 0.8
"""Of the memory at the hard ceiling, where only one more run is left to find a safe size."""

_QUIETER, _QUIETEST = 0.99, 0.8


def second_size(tries: Tries) -> int | None:
    """Another size for the line: far enough from the first, never one that the first says cannot fit."""
    base, num_fits = tries.fitting[-1], len(tries.fitting)
    if tries.wall is not None:
        return _smaller(tries, base.batch_size) if num_fits == 1 else None
    size = base.batch_size * TIMES
    if base.peak_bytes and base.budget_bytes is not None:  # 0: the platform does not tell a process's own memory
        room = base.budget_bytes / base.peak_bytes
        if num_fits == 1:
            size = int(base.batch_size * min(max(TIMES, THIRD * room), 0.95 * room))
            size = max(size, min(base.batch_size + 1, int(base.batch_size * room)))
        elif _has_grown(tries) or tries.forecast is not None:
            return None
        elif tries.line is not None:
            free = base.budget_bytes - base.peak_bytes
            size = base.batch_size + int(min(CLEAR * base.budget_bytes, 0.95 * free) / tries.line.slope)
    elif num_fits > 1:
        return None
    larger = _above(base.batch_size, min(tries.cap, size))
    return (
        _smaller(tries, base.batch_size) if larger is None and num_fits == 1 and base.batch_size < tries.cap else larger
    )


def _smaller(tries: Tries, base: int) -> int | None:
    """Where no larger size is sure to fit the line's second point lies below."""
    smaller = max(tries.smallest, base // 2)
    return smaller if smaller < base else None


def _has_grown(tries: Tries) -> bool:
    """Whether memory rose visibly from the smallest size that fits to the largest."""
    first, last = tries.fitting[0], tries.fitting[-1]
    if first.peak_bytes is None or last.peak_bytes is None or last.budget_bytes is None:
        return True
    return last.peak_bytes - first.peak_bytes >= VISIBLE * last.budget_bytes


def next_hard(tries: Tries, *, num_left: int, scarce: bool) -> int | None:
    """The next size worth running for the hard ceiling, or None when it stands; `scarce`: two runs were left for it."""
    base, wall, end = tries.largest, tries.wall, predicted_end(tries)
    if base >= tries.cap or base + 1 == wall or _is_near(tries, base, wall, end):
        return None
    if wall is not None and (end is None or _lean(tries, end, LEAN) >= wall):
        if end is None:
            return (wall + base) // 2
        step = SCARCE_STEP if scarce else STEPS_BACK[min(tries.num_walls, len(STEPS_BACK)) - 1]
        return _above(base, int(wall * step))
    lean = 2 * base if end is None else _lean(tries, end, SCARCE_LEAN if scarce and num_left > 1 else LEAN)
    size = min(tries.cap, lean)
    worth = base * WORTH if tries.forecast is not None else base
    return size if size > worth or size == tries.cap > base else None


def _is_near(tries: Tries, base: int, wall: int | None, end: int | None) -> bool:
    """Whether another run could win next to nothing. A cap that fits for sure is worth one: it is the answer then."""
    if end is None:
        return False
    if wall is None and _lean(tries, end, LEAN) >= tries.cap:
        return False
    return base >= NEAR * min(size for size in (tries.cap, wall, end) if size is not None)


def next_safe(tries: Tries, *, is_last: bool) -> int | None:
    """The next size worth running for the safe ceiling. None: a comfortable one was run, or none is left to try."""
    size = _safe_below(tries, tries.largest)
    if is_last:
        size = min(size, tries.with_share(tries.largest, LAST_ROOM))
    size = max(tries.smallest, size)
    known = tries.largest_comfortable
    return None if tries.is_verified(size) or (known is not None and known >= size) else size


def _safe_below(tries: Tries, hard: int) -> int:
    """The largest size that leaves room, and at which no steady step is predicted to retry, where `hard` fits."""
    top = hard if tries.has_room(hard) else tries.with_share(hard, ROOM)
    uneasy = [r.batch_size for r in tries.reports if r.num_steady_retries or not r.fits]
    if uneasy and min(uneasy) <= top:
        top = tries.with_share(min(uneasy), ROOM)
    return _quiet_below(tries.forecast, top)


def predicted_ceilings(tries: Tries, *, num_left: int) -> tuple[int, int] | None:
    """The largest size that fits and the largest safe one, as predicted. None: only runs can tell.

    That is so where the largest size that was run stands already, where memory does not grow with the batch, and where
    the time of a step is the limit: that one is known by steps that were timed.
    """
    hard = next_hard(tries, num_left=num_left, scarce=num_left <= SCARCE)
    if hard is None or predicted_end(tries) is None or hard == tries.quick_cap:
        return None
    return hard, max(tries.smallest, _safe_below(tries, hard))


def _above(base: int, size: int) -> int | None:
    return size if size > base else None


def predicted_end(tries: Tries) -> int | None:
    """Largest size that the allocator's forecast, or else the line, says fits. None: nothing to go by."""
    budget, line = tries.fitting[-1].budget_bytes, tries.line
    if line is None or budget is None:
        return None
    by_line = int(line.size_at(budget))
    if tries.forecast is None or by_line <= tries.largest:
        return max(by_line, tries.largest)
    return tries.forecast.largest(tries.largest, int(by_line * 1.05))


def _lean(tries: Tries, end: int, lean: float) -> int:
    """A size somewhat below the predicted end: as predictions go, a size that fits."""
    size = min(end, int(end * lean + 0.5))
    return size if tries.forecast is None else _steady_below(tries.forecast, size, tries.largest)


def _steady_below(forecast: Forecast, size: int, base: int) -> int:
    """The size, or a smaller one, whose neighbours are predicted to fit as well: memory is not monotonic."""
    smaller = size
    while smaller > max(base, _QUIETEST * size):
        if all(forecast.outcome(int(smaller * factor)) is not None for factor in (1.0, 0.99, 1.01)):
            return smaller
        smaller = int(smaller * 0.995)
    return smaller


def _quiet_below(forecast: Forecast | None, top: int) -> int:
    """The largest size, in steps of 1%, round which no steady step is predicted to need a retry of the allocator.

    Neighbours are asked as well: one sample more or less decides which cached block a request falls into.
    """
    size = top
    while forecast is not None and size > _QUIETEST * top:
        near = (forecast.outcome(int(size * factor)) for factor in (1.0, 0.99, 0.995, 1.005, 1.01))
        if all(outcome is not None and outcome.num_steady_retries == 0 for outcome in near):
            return size
        size = int(size * _QUIETER)
    return top
