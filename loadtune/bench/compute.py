"""Steps on one resident batch: first those nobody counts, then timed ones, the rate that no loader can beat."""

import math
import time

from loadtune.bench.protocol import Line
from loadtune.bench.training import Trainer
from loadtune.records import Recipe, Window
from loadtune.workload import Batch

# On CUDA the first step chooses kernels (0.1 to 18 s were seen), the second runs with the optimizer's state in place,
# the third with the allocator settled. On a CPU the first step is the only one that differs.
_CUDA_STEPS = 3
_CPU_STEPS = 1
# An fp16 run begins with a scale of 2^16, which is halved in each step that overflows and leaves the optimizer out. A
# model that still overflows at 2^-4 will go on doing so, and its windows say it.
_MAX_UPDATES = 20


class WarmUp:
    """Remembers what is warm, because on a CPU a step may take seconds."""

    def __init__(self) -> None:
        self._warm: set[tuple[Recipe, int]] = set()

    def run(self, trainer: Trainer, recipe: Recipe, batch: Batch, line: Line) -> None:
        """Warm this recipe at this batch size. Ends with the device idle."""
        line.enter("warm-up")
        key = (recipe, trainer.num_samples(batch))
        on_cuda = trainer.device.type == "cuda"
        if on_cuda or key not in self._warm:
            least = _CUDA_STEPS if on_cuda else _CPU_STEPS
            for number in range(1, _MAX_UPDATES + 1):
                halvings, compiled = trainer.num_halvings(), trainer.num_compiled()
                for _ in range(trainer.accumulate):  # only the last of them can tell that the scale is too large
                    trainer.step(batch)
                    trainer.synchronize()
                    line.pulse()
                settled = trainer.num_halvings() == halvings and trainer.num_compiled() == compiled
                if number * trainer.accumulate >= least and settled:
                    break
        self._warm.add(key)


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
