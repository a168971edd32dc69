"""One slow worker, or a few slow samples, that hold up the batches of the others. Pure, over records.

A DataLoader delivers batches in order, so one late batch holds back all that were made after it. The wait at each
worker's turn shows that, and cannot tell whose fault it is: workers that start together and are all alike finish
together, and the loop then waits for the first of them in every round and takes the others' batches at once. So a
worker is called slow by its own clock, and the waits only say whether that matters.
"""

import statistics
from collections.abc import Sequence

from loadtune.records.measurement import WorkerShare
from loadtune.records.result import LateBatches

MIN_BATCHES = 4
"""Batches each worker should have made before they are compared: one of them is left out, and two say little."""

SLOW = 1.5
"""Times the others' time a batch at which a worker is slow: workers that share cores differ by some tenths."""

LONG = 3.0
"""Times the usual time a batch at which a single batch is slow."""

CARRIES = 0.5
"""Share of all waiting that one worker or a few batches carry: more than all the others together."""


def late_batches(workers: Sequence[WorkerShare]) -> LateBatches | None:
    """Of one run. None: nothing stands out, or too little was seen."""
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
        return LateBatches(by="worker", ratio=usual[slowest] / others, wait_fraction=share)
    late = [share for share in workers if share.max_made_s >= LONG * statistics.median(usual)]
    share = sum(each.max_wait_s for each in late) / waited
    if late and share >= CARRIES:
        longest = max(each.max_made_s for each in late)
        return LateBatches(by="samples", ratio=longest / statistics.median(usual), wait_fraction=share)
    return None


def usually_late(runs: Sequence[Sequence[WorkerShare]]) -> LateBatches | None:
    """What more than half of these runs show alike, in the run that shows it most: workers start anew for each run."""
    seen = [found for workers in runs if (found := late_batches(workers)) is not None]
    alike = max((([f for f in seen if f.by == by]) for by in ("worker", "samples")), key=len)
    return max(alike, key=lambda found: found.wait_fraction) if 2 * len(alike) > len(runs) else None
