"""Time training steps on one resident batch: the rate that no loader can beat."""

import math
import time

from loadtune.bench.line import Line
from loadtune.bench.training import Trainer
from loadtune.records import Window
from loadtune.workload import Batch

# As many windows as the time is cut into: enough to see whether the rate still drifts, each long enough to be a rate.
_NUM_WINDOWS = 4
_MIN_WINDOWS = 2


def time_windows(trainer: Trainer, batch: Batch, seconds: float, line: Line) -> tuple[Window, ...]:
    """Windows that abut, for about ``seconds`` in all; two at the least, however long they take.

    Where gradients of several batches are summed, each window holds whole rounds of them, and so its share of the
    optimizer's steps.
    """
    line.enter("compute")
    trainer.synchronize()
    begun = time.monotonic()
    windows = [_window(trainer, batch, begun, seconds / _NUM_WINDOWS, trainer.accumulate, line)]
    # Half a window short of the end is close enough to it: a further one would overshoot by more.
    enough = seconds * (1 - 0.5 / _NUM_WINDOWS)
    while len(windows) < _MIN_WINDOWS or windows[-1].end_s - begun < enough:
        if windows[-1].loss_is_finite is False:
            break
        last = windows[-1]
        planned = round(seconds / _NUM_WINDOWS * last.num_steps / last.seconds)
        windows.append(_window(trainer, batch, last.end_s, seconds / _NUM_WINDOWS, planned, line))
    return tuple(windows)


def _window(trainer: Trainer, batch: Batch, start: float, at_least_s: float, planned: int, line: Line) -> Window:
    """Steps are planned, not timed one by one: the host runs many steps ahead of a GPU, so its clock knows nothing.

    Where the plan was too short it is made up for; each plan costs one synchronisation, and two mostly do.
    """
    steps = 0
    while steps == 0 or planned > 0:
        planned = trainer.accumulate * max(1, round(planned / trainer.accumulate))
        for _ in range(planned):
            trainer.step(batch)
            line.pulse()
        trainer.synchronize()
        steps += planned
        seconds = time.monotonic() - start
        # Nine tenths are long enough: making up for the rest by a step of its own would only cost a synchronisation.
        planned = 0 if seconds >= 0.9 * at_least_s else math.ceil((at_least_s - seconds) * steps / seconds)
    return Window(
        start_s=start,
        seconds=seconds,
        num_steps=steps,
        num_samples=steps * trainer.num_samples(batch),
        loss_is_finite=trainer.loss_is_finite(),
    )
