"""What workers and cores allow a loop that trains: the part of the throughput model that needs no fit. Pure.

Seconds a batch are the soft maximum of three demands, as in `resources`: of the workers, of the cores, of the step.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

SHARPNESS = 8.0
"""Power of the soft maximum, dimensionless: near a tie of two demands each slows the other by up to 9%."""
BATCH_COST_S, HAND_COST_S = 1e-3, 5e-4
"""Seconds a batch that a worker takes beyond loading it, for queues and shared memory, and the training process for
taking it. Medians of the model's priors, fitted on H200s; used until a loop's own hand-over was measured."""
NEAR = 0.05
"""Share of the time a batch by which fewer workers may be slower: their number costs memory and starting."""
WAITS = 1.5
"""Seconds of loading ÷ its CPU seconds from which on workers wait, for storage, a network or a timer, so that more of
them than cores may be busy."""
MOST = 256
"""Workers on one machine at the most. RAM and /dev/shm may allow fewer."""


def soft_maximum(needed: Any, sharpness: Any = SHARPNESS) -> Any:
    """Of demands along the first axis, none of which is negative."""
    import numpy as np  # here: whoever only shows what was found needs none

    needed = np.asarray(needed, dtype=float)
    most = needed.max(axis=0)
    return most * ((needed / most) ** sharpness).sum(axis=0) ** (1 / sharpness)


def most_by_cores(num_cores: float, load_s: float, cpu_s: float) -> int:
    """Workers that can be busy at a time: one a core, or `MOST` where they wait rather than compute."""
    return MOST if load_s >= WAITS * cpu_s else max(1, int(num_cores + 0.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a batch takes, by the clocks of whoever loads and trains. Seconds a batch."""

    load_s: float
    """Of one worker, without the time in which it was ready to run and got no core."""
    cpu_s: float
    """CPU seconds of loading."""
    queued_s: float = 0.0
    """Seconds in which the worker was ready to run and got no core."""
    step_cpu_s: float = 0.0
    """CPU seconds of the training process, loading excluded. 0 where ranks wait for each other: not known."""
    cores_busy: float | None = None
    """Share of the time in which the usable cores ran something. None: not measured."""


class Loop(NamedTuple):
    """Of the training process: seconds a batch beside loading, the cores that are there, and whether it has workers."""

    step_s: float
    cores: float
    handover_s: float
    """Taking a batch that stands ready. 0: not measured."""


def demands(work: Work, loop: Loop, num_workers: int) -> dict[str, float]:
    """Seconds a batch that each of the three needs. Without workers the training process loads, and all add up."""
    if num_workers == 0:
        return {"workers": work.load_s + loop.step_s, "cores": 0.0, "the step": 0.0}
    return {
        "workers": (work.load_s + BATCH_COST_S) / num_workers,
        "cores": (work.cpu_s + work.step_cpu_s) / loop.cores,
        "the step": loop.step_s + (loop.handover_s or HAND_COST_S),
    }


def batch_s(work: Work, loop: Loop, num_workers: int) -> float:
    """Predicted seconds a batch."""
    return float(soft_maximum(list(demands(work, loop, num_workers).values())))


def fewest(work: Work, loop: Loop, most: int) -> int:
    """Workers from 1 on with which a batch takes at most `NEAR` longer than with any number up to ``most``."""
    predicted = [batch_s(work, loop, number) for number in range(1, most + 1)]
    return next(number for number, seconds in enumerate(predicted, 1) if seconds <= (1 + NEAR) * min(predicted))
