"""Time a DataLoader by itself: its batches are dropped, nothing trains. A module of its own, apart from training."""

import time

from loadtune.bench.endless_loader import EndlessLoader
from loadtune.bench.line import Line
from loadtune.bench.queue_stats import QueueWatch
from loadtune.bench.windows import WindowRule
from loadtune.records import LoaderPoint, Window

# As many windows as the time is cut into, and how many there are however long they take.
_NUM_WINDOWS = 4
_MIN_WINDOWS = 2


def time_loader_alone(loader: EndlessLoader, seconds: float, line: Line) -> LoaderPoint:
    """Windows that abut, for about ``seconds`` after a fresh loader's first round; two at the least. It is closed."""
    try:
        line.enter("first batch")
        started = time.monotonic()
        loader.next_batch()
        first_batch_s = time.monotonic() - started
        line.enter("loader alone")
        _skip_first_round(loader, time.monotonic() + seconds, line)
        windows = _windows(loader, WindowRule(seconds / _NUM_WINDOWS, loader.num_workers), seconds, line)
    finally:
        loader.close()
    return LoaderPoint(config=loader.config, windows=windows, first_batch_s=first_batch_s)


def _skip_first_round(loader: EndlessLoader, until_s: float, line: Line) -> None:
    """Workers start together, so their first batches come in a burst that says nothing of the rate."""
    for _ in range(loader.num_workers - 1):
        if time.monotonic() > until_s:
            return
        loader.next_batch()
        line.pulse()


def _windows(loader: EndlessLoader, rule: WindowRule, seconds: float, line: Line) -> tuple[Window, ...]:
    windows: list[Window] = []
    queue = QueueWatch(loader)
    begun = queue.at_s
    # Half a window short of the end is close enough to it: a further one would overshoot by more.
    enough = seconds * (1 - 0.5 / _NUM_WINDOWS)
    while len(windows) < _MIN_WINDOWS or queue.at_s - begun < enough:
        windows.append(_window(loader, rule, queue, line))
    return tuple(windows)


def _window(loader: EndlessLoader, rule: WindowRule, queue: QueueWatch, line: Line) -> Window:
    steps = samples = 0
    while not rule.ends(time.monotonic() - queue.at_s, steps):
        queue.step()
        samples += len(loader.next_batch()[0])
        queue.took()
        steps += 1
        line.pulse()
    stocks = queue.cut(steps)
    return Window(num_steps=steps, num_samples=samples, wait_s=stocks.seconds, **stocks._asdict())
