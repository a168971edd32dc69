"""The training must not outlive its controller. A pipe tells; a training loop reads no pipes, a thread does.

Workers are ended by SIGKILL and the training process by ``os._exit``, so nobody runs what would remove their temporary
files: multiprocessing's sockets, what torch.compile made, whatever a dataset opened. They all lie in one folder, which
the controller removes when it is done, and the training process where the controller was killed. Needs no torch.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import NoReturn

from loadtune.stream.shm_cleanup import kill_group

_PREFIX = "loadtune-"
_LONGEST_SOCKET = 107
"""Bytes of the path of a Unix socket, on Linux."""
_BELOW = len(f"/{_PREFIX}abcdefgh/torch-shm-dir-abcdef/manager.sock")
"""Of the longest one that PyTorch or multiprocessing opens in a temporary folder below this one's parent."""


def make_scratch() -> "tempfile.TemporaryDirectory[str]":
    """A folder for everything temporary, where a worker can open a socket.

    It lies below the temporary folder, unless the path of that is too long.
    """
    usual = tempfile.gettempdir()
    short = (
        folder
        for folder in (usual, "/tmp", "/var/tmp")
        if len(os.fsencode(folder)) + _BELOW <= _LONGEST_SOCKET and os.access(folder, os.W_OK | os.X_OK)
    )
    return tempfile.TemporaryDirectory(prefix=_PREFIX, dir=next(short, usual), ignore_cleanup_errors=True)


_CLOSING_S = 0.2
"""A process that dies closes its descriptors one after the other: the pipe may be the last."""

_ending = threading.Lock()
_watched: list[tuple[int, Path]] = []
"""The lifeline and the temporary folder."""


def watch_lifeline(descriptor: int, scratch: Path) -> None:
    """End this whole process group as soon as the pipe's other end is closed, by whatever death.

    The controller removes `scratch`; where it is gone, that is done here.
    """
    _watched[:] = [(descriptor, scratch)]
    threading.Thread(target=_watch, args=(descriptor,), name="lifeline", daemon=True).start()


def leave(status: int) -> NoReturn:
    """End this process with whatever is left of its group, without Python's teardown, which takes seconds with CUDA.

    A controller that dies is noticed twice, by the lifeline and by the loop that speaks to it or whose workers were
    just killed. Whoever comes second waits: it would end the process before the other has taken away what they left.
    """
    while True:
        with contextlib.suppress(BaseException):  # the DataLoader's handler raises for each worker killed, anywhere
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with _ending:
                sys.stdout.flush()
                sys.stderr.flush()
                kill_group(os.getpgrp(), spare=os.getpid())
                _remove_scratch_of_the_dead()
                os._exit(status)


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass  # nothing is ever written; only the end counts
    with _ending:
        kill_group(os.getpgrp(), spare=os.getpid())
        _remove_scratch_of_the_dead()
        os.killpg(0, signal.SIGKILL)


def _remove_scratch_of_the_dead() -> None:
    """Remove the temporary folder, unless the controller lives: it still reads the log there, and removes it itself."""
    for descriptor, scratch in _watched:
        is_closed, _, _ = select.select([descriptor], [], [], _CLOSING_S)
        if is_closed:
            shutil.rmtree(scratch, ignore_errors=True)
