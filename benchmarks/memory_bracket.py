"""The search for the true ceiling: who judges a size, and which size is judged next. Pure: processes are the caller's.

A truth is a bracket, the largest size that was seen to fit and the smallest that was seen to fail, at most 1% apart.
"""

from collections.abc import Callable
from typing import Literal

Verdict = Literal["fits", "oom", "error"]
Judge = Callable[[int], Verdict]

RESOLUTION = 0.01
VOTERS = 3
# A bracket is found within 3 sizes where the first is within 1% of the truth, within 6 where it is within 10%.
MAX_SIZES = 12


def vote(run: Callable[[], Verdict]) -> Verdict:
    """Two of up to three runs decide; a third only where the first two differ. None of a kind: an error."""
    seen: list[Verdict] = []
    for _ in range(VOTERS):
        seen.append(run())
        if seen.count(seen[-1]) * 2 > VOTERS:
            return seen[-1]
    return "error"


def find_bracket(judge: Judge, start: int, resolution: float = RESOLUTION) -> tuple[int | None, int | None]:
    """(largest that fits, smallest that fails), from `start` outwards in growing steps, then halving.

    Ends where a size can be judged neither way, with what is known until then; None: that side was not found.
    """
    fits: int | None = None
    fails: int | None = None
    size, step = max(1, start), resolution
    for _ in range(MAX_SIZES):
        verdict = judge(size)
        if verdict == "error":
            break
        if verdict == "fits":
            fits = size
        else:
            fails = size
        if fits is not None and fails is not None:
            if is_narrow(fits, fails, resolution):
                break
            size = (fits + fails) // 2
            continue
        size = _outwards(size, step, up=verdict == "fits")
        step *= 2
        if size < 1:
            break
    return fits, fails


def is_narrow(fits: int, fails: int, resolution: float = RESOLUTION) -> bool:
    """Whether nothing is left to be found between the two."""
    return fails - fits <= max(1.0, resolution * fits)


def _outwards(size: int, step: float, *, up: bool) -> int:
    """One step on, at least one sample; downwards it ends at 0."""
    return max(size + 1, int(size * (1 + step))) if up else min(size - 1, int(size * (1 - step)) + 1)
