"""The temporary folder of a training process, which goes with it. Needs no torch.

Workers are ended by SIGKILL and the training process by ``os._exit``, so nobody runs what would remove their temporary
files: multiprocessing's sockets, what torch.compile made, whatever a dataset opened. They all lie in one folder, which
the controller removes when it is done, and the training process where the controller was killed.
"""

import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "loadtune-"
_LONGEST_SOCKET = 107
"""Bytes of the path of a Unix socket, on Linux."""
_BELOW = len(f"/{_PREFIX}abcdefgh/torch-shm-dir-abcdef/manager.sock")
"""Of the longest one that PyTorch or multiprocessing opens in a temporary folder below this one's parent."""


class Scratch:
    """The controller's hold on it: the folder is there from its first use until it is removed."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def folder(self) -> Path:
        """Where a worker can open a socket: below the temporary folder, unless its path is too long."""
        if self._folder is None:
            usual = tempfile.gettempdir()
            short = (folder for folder in (usual, "/tmp", "/var/tmp") if _takes_sockets(folder))
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=next(short, usual)))
        return self._folder

    def remove(self) -> None:
        """Remove it with all that is in it; where there is none, nothing happens."""
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_scratch(folder)


def remove_scratch(folder: Path) -> None:
    """The folder and all that is in it. It may be gone already."""
    shutil.rmtree(folder, ignore_errors=True)


def _takes_sockets(folder: str) -> bool:
    fits = len(os.fsencode(folder)) + _BELOW <= _LONGEST_SOCKET
    return fits and os.access(folder, os.W_OK | os.X_OK)
