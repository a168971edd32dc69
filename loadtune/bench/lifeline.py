"""The bench must not outlive its controller. A pipe tells; a training loop reads no pipes, a thread does."""

import os
import signal
import threading

from loadtune.bench.leftovers import kill_group


def watch_lifeline(descriptor: int) -> None:
    """End this whole process group as soon as the pipe's other end is closed, by whatever death."""
    threading.Thread(target=_watch, args=(descriptor,), name="lifeline", daemon=True).start()


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass  # nothing is ever written; only the end counts
    kill_group(os.getpgrp(), spare=os.getpid())
    os.killpg(0, signal.SIGKILL)
