"""Time training steps on one resident batch: the rate that no loader can beat."""

import time

from loadtune.bench.line import Line
from loadtune.bench.training import Trainer
from loadtune.records import Window
from loadtune.workload import Batch

# As many windows as the time is cut into: enough to see whether the rate still drifts, each long enough to be a rate.
_NUM_WINDOWS = 4
_MIN_WINDOWS = 2


def time_windows(trainer: Trainer, batch: Batch, seconds: float, line: Line) -> tuple[Window, ...]:
    """Windows that abut, for about ``seconds`` in all; two steps at the least, however long they take."""
    line.enter("compute")
    trainer.synchronize()
    begun = time.monotonic()
    windows: list[Window] = []
    while len(windows) < _MIN_WINDOWS or windows[-1].end_s - begun < seconds * (1 - 0.5 / _NUM_WINDOWS):
        start = windows[-1].end_s if windows else begun
        windows.append(_window(trainer, batch, start, seconds / _NUM_WINDOWS, line))
    return tuple(windows)


def _window(trainer: Trainer, batch: Batch, start: float, at_least_s: float, line: Line) -> Window:
    steps = 0
    while steps == 0 or time.monotonic() - start < at_least_s:
        trainer.step(batch)
        steps += 1
        line.pulse()
    trainer.synchronize()
    seconds = time.monotonic() - start
    return Window(start_s=start, seconds=seconds, num_steps=steps, num_samples=steps * len(batch[0]))
