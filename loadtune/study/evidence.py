"""What a run's figures say of one worker and of a few samples. Pure, over records.

The loader hands batches out in turn, so one late batch holds back all that were made after it. The wait by turn shows
that, and cannot tell whose fault it is: workers that start together and are all alike finish together, and the loop
then waits for the first of them in every round and takes the others' batches at once. So a worker is called slow by its
own clock, and the waits only say whether that matters.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadtune.records import WorkerShare

MIN_BATCHES = 4
"""Batches each worker should have made before they are compared: one of them is left out, and two say little."""

SLOW = 1.5
"""Times the others' time a batch at which a worker is slow: workers that share cores differ by some tenths."""

LONG = 3.0
"""Times the usual time a batch at which a single batch is slow."""

CARRIES = 0.5
"""Share of all waiting that one worker or a few batches carry: more than all the others together."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """One late batch after the other held up batches that were there."""

    by: Literal["worker", "samples"]
    """``worker``: one of them is slow in all it makes; ``samples``: single batches are, whoever makes them."""
    worker: int | None
    ratio: float
    """Time a batch over the usual one: of that worker, or of the longest batch."""
    wait_share: float
    """Of all waiting."""


def held_back(workers: Sequence[WorkerShare]) -> HeldBack | None:
    """What the order of the batches costs. None: nothing stands out, or too little was seen."""
    waited = sum(share.wait_s for share in workers)
    if len(workers) < 2 or waited <= 0 or any(share.num_made < MIN_BATCHES for share in workers):
        return None
    usual = [(share.made_s - share.max_made_s) / (share.num_made - 1) for share in workers]  # one batch is no worker
    slowest = max(range(len(usual)), key=usual.__getitem__)
    others = statistics.median(usual[:slowest] + usual[slowest + 1 :])
    if others <= 0:
        return None
    share = workers[slowest].wait_s / waited
    if usual[slowest] >= SLOW * others and share >= CARRIES:
        return HeldBack(by="worker", worker=slowest, ratio=usual[slowest] / others, wait_share=share)
    late = [share for share in workers if share.max_made_s >= LONG * statistics.median(usual)]
    share = sum(each.max_wait_s for each in late) / waited
    if late and share >= CARRIES:
        longest = max(each.max_made_s for each in late)
        return HeldBack(by="samples", worker=None, ratio=longest / statistics.median(usual), wait_share=share)
    return None


def usually_held_back(runs: Sequence[Sequence[WorkerShare]]) -> HeldBack | None:
    """What more than half of these runs show alike, in the run that shows it most: workers start anew for each run."""
    seen = [found for workers in runs if (found := held_back(workers)) is not None]
    alike = max((([f for f in seen if f.by == by]) for by in ("worker", "samples")), key=len)
    return max(alike, key=lambda found: found.wait_share) if 2 * len(alike) > len(runs) else None
