"""Which size to run next: for the line's second point, for the hard ceiling, for the safe one. Nothing is run here.

What would be run next is also the prediction of both ceilings, with the margins of a size that is run.
"""

from collections.abc import Callable

from loadtune.probe.forecast import Forecast, Outcome
from loadtune.probe.tries import ROOM, Tries

LOW, TIMES = 32, 5
"""The line's first size, and how many times that its second is at the least. Smaller ones misjudge the slope:
workspaces and rounding weigh as much as the samples (a line through 1 to 16 was 12% short for ResNet-50)."""

THIRD = 0.3
"""Share of the budget that the line's second size may fill by the first one's word: n times the batch takes at most n
times the memory. The farther apart the two, the less a jump or a ripple bends the line."""

SURE = 0.95
"""The same of a size whose step is to be timed as well."""

LEAN = 0.985
"""Of the size a line or a forecast ends at. On an H200 that took ten models' first proposals to 0.97 to 0.99 of the
truth without an OOM; at 0.99 one of ten ran out of memory, and the step back cost it 2%."""

NEAR = 0.98
"""A ceiling this close to what failed, or to what is predicted to, is left as it is: less than that is to be won by
another run, which may be an OOM."""

WORTH = 1.01
"""By how much a larger size has to be larger to be worth a run, after one that a forecast proposed."""

STEP_BACK = 0.979
"""From the smallest size that failed: predictions are rarely off by more."""

SCARCE, SCARCE_LEAN = 2, 0.972
"""Runs that are left for the hard ceiling where the line took three sizes, and `LEAN` there: the second has to fit."""

VISIBLE, CLEAR = 0.1, 0.25
"""Shares of the budget by which memory has to have grown for its slope to be believed, and by which a further size is
made to grow it where it had not."""

LAST_ROOM = 0.8
"""Of the memory at the hard ceiling, where only one more run is left to find a safe size."""

LOWEST = 0.8
"""Of a size, down to which a forecast is asked for one that suits better."""


def second_size(tries: Tries) -> int | None:
    """Another size for the line: far enough from the first, never one that the first says cannot fit."""
    base = tries.largest
    if tries.wall is None and (size := min(tries.cap, _farther(tries))) > base:
        return size
    smaller = max(tries.smallest, base // 2)  # where no larger size is sure to fit the second point lies below
    return smaller if len(tries.fitting) == 1 and smaller < base < tries.cap else None


def _farther(tries: Tries) -> int:
    """A larger size from which the line is known; 0: it is known."""
    base, is_first = tries.fitting[-1], len(tries.fitting) == 1
    times = base.batch_size * TIMES
    if not base.peak_bytes or base.budget_bytes is None:  # the platform does not tell a process's own memory
        return times if is_first else 0
    if is_first:
        fits = base.batch_size * base.budget_bytes / base.peak_bytes
        size = int(min(max(times, THIRD * fits, tries.large), SURE * fits))
        return max(size, min(base.batch_size + 1, int(fits)))
    grown = base.peak_bytes - (tries.fitting[0].peak_bytes or 0)
    if grown >= VISIBLE * base.budget_bytes or tries.forecast is not None:
        return 0
    if tries.line is None:
        return times
    free = base.budget_bytes - base.peak_bytes
    return base.batch_size + int(min(CLEAR * base.budget_bytes, SURE * free) / tries.line.slope)


def next_hard(tries: Tries, *, num_left: int, scarce: bool) -> int | None:
    """The next size worth running for the hard ceiling, or None when it stands; `scarce`: two runs were left for it."""
    base, wall, end = tries.largest, tries.wall, tries.end
    lean = None if end is None else _lean(tries, end, LEAN)
    if base >= tries.cap or base + 1 == wall:
        return None
    if lean is None:
        size = min(tries.cap, 2 * base) if wall is None else (wall + base) // 2
    elif (wall or lean < tries.cap) and base >= NEAR * min(tries.cap, wall or tries.cap, end or tries.cap):
        return None  # a cap that fits for sure is worth a run: it is the answer then
    elif wall is not None and lean >= wall:
        size = int(wall * STEP_BACK)
    else:
        size = min(tries.cap, _lean(tries, end, SCARCE_LEAN) if end and scarce and num_left > 1 else lean)
        if tries.forecast is not None and size < tries.cap and size <= base * WORTH:
            return None
    return size if size > base else None


def next_safe(tries: Tries, *, is_last: bool) -> int | None:
    """The next size worth running for the safe ceiling. None: a comfortable one was run, or none is left to try."""
    size = _safe_below(tries, tries.largest)
    if is_last:
        size = min(size, tries.with_share(tries.largest, LAST_ROOM))
    size = max(tries.smallest, size)
    return None if size in tries.verified or (tries.largest_comfortable or 0) >= size else size


def _safe_below(tries: Tries, hard: int) -> int:
    """The largest size that leaves room, and at which no steady step is predicted to retry, where `hard` fits."""
    top = hard if tries.has_room(hard) else tries.with_share(hard, ROOM)
    uneasy = [r.batch_size for r in tries.reports if r.num_steady_retries or not r.fits]
    if uneasy and min(uneasy) <= top:
        top = tries.with_share(min(uneasy), ROOM)
    if tries.forecast is None:
        return top
    return _first_below(tries.forecast, top, LOWEST * top, lambda outcome: not outcome.num_steady_retries) or top


def predicted_ceilings(tries: Tries, *, num_left: int) -> tuple[int, int] | None:
    """The largest size that fits and the largest safe one, as predicted. None: only runs can tell.

    That is so where the largest size that was run stands already, where memory does not grow with the batch, and where
    the time of a step is the limit: that one is known by steps that were timed.
    """
    hard = next_hard(tries, num_left=num_left, scarce=num_left <= SCARCE)
    if hard is None or tries.end is None or hard == tries.quick_cap:
        return None
    return hard, max(tries.smallest, _safe_below(tries, hard))


def _lean(tries: Tries, end: int, lean: float) -> int:
    """A size somewhat below the predicted end: as predictions go, a size that fits."""
    size = min(end, int(end * lean + 0.5))
    if tries.forecast is None:
        return size
    least = max(tries.largest, int(LOWEST * size))
    return _first_below(tries.forecast, size, least, lambda outcome: True) or least


def _first_below(forecast: Forecast, top: int, least: float, suits: Callable[[Outcome], bool]) -> int | None:
    """The largest size, in steps of half a percent, that is predicted to fit and to suit. None: none above `least`.

    Its neighbours are asked as well: memory is not monotonic, and one sample more or less decides which cached block a
    request falls into.
    """
    size = top
    while size > least:
        near = (forecast.outcome(int(size * factor)) for factor in (1.0, 0.99, 0.995, 1.005, 1.01))
        if all(outcome is not None and suits(outcome) for outcome in near):
            return size
        size = int(size * 0.995)
    return None
