"""``python -m loadtune.training SOCKET LIFELINE SAMPLES FOLDER``: inherited descriptors, and where temporary files
go. Started by `TrainingClient` alone.

It must not outlive its controller, whose end a pipe tells to a thread. Whatever ends it and its workers, nobody removes
their own temporary files. They lie in one folder, which the controller removes, or this process where that was killed.
"""

import atexit
import contextlib
import faulthandler
import os
import select
import shutil
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from loadtune.stream.shm_cleanup import kill_group

_CLOSING_S = 0.2
"""A process that dies closes its descriptors one after the other: the pipe may be the last."""

_ending = threading.Lock()
_watched: list[tuple[int, Path]] = []
"""The lifeline and the temporary folder. Empty: none yet."""


def main() -> None:
    """Watch the controller before anything slow is imported, then serve it."""
    socket, lifeline, samples = (int(argument) for argument in sys.argv[1:4])
    watch_lifeline(lifeline, Path(sys.argv[4]))
    del sys.argv[1:]  # ours: a module of the user's that parses its command line as it is imported finds it empty
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the controller asks for stacks before it ends a hang
    atexit.register(leave, 1)  # an exception ends the interpreter, and that the lifeline's thread, wherever it is
    os.set_inheritable(samples, False)  # workers have it by fork or by name, programs that the dataset starts do not
    from loadtune.stream.sample_table import SampleTable
    from loadtune.training.session import serve  # imports torch

    serve(Connection(socket), SampleTable(samples))
    leave(0)


def watch_lifeline(descriptor: int, scratch: Path) -> None:
    """End this whole process group as soon as the pipe's other end is closed, by whatever death."""

    def watch() -> None:
        while os.read(descriptor, 1):
            pass  # nothing is ever written; only the end counts
        with _ending:
            _remove_what_is_left()
            kill_group(os.getpgrp(), spare=os.getpid())  # those that the loop started meanwhile
            os.kill(os.getpid(), signal.SIGKILL)

    _watched[:] = [(descriptor, scratch)]
    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def leave(status: int) -> NoReturn:
    """End this process with whatever is left of its group, without Python's teardown, which takes seconds with CUDA.

    The lifeline and the loop both notice a controller that dies. Whoever comes second waits until the first is done.
    """
    while True:
        with contextlib.suppress(BaseException):  # the DataLoader's handler raises for each worker killed, anywhere
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with _ending:
                sys.stdout.flush()
                sys.stderr.flush()
                _remove_what_is_left()
                os._exit(status)


def _remove_what_is_left() -> None:
    """End the others of the group, and remove the temporary folder, unless the controller lives: it still reads the log
    there, and removes it itself."""
    kill_group(os.getpgrp(), spare=os.getpid())
    for descriptor, scratch in _watched:
        is_closed, _, _ = select.select([descriptor], [], [], _CLOSING_S)
        if is_closed:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
