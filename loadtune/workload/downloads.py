"""A torchvision dataset that may have to be downloaded first: read what is there, else fetch it, else leave no trace.

Apart from `datasets`, which knows what a class wants: this knows what a network does.
"""

import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Silence after which a server counts as not there. Without one a packet that is dropped on its way costs minutes for
# every mirror; a server that answers at all says something within seconds.
_SILENCE_S = 15.0


def read_or_download(build: Callable[..., Any], root: Path) -> Any:
    """What ``build(download=False)`` makes of the files below `root`, or ``build(download=True)`` where it raises."""
    with _no_empty_folders(root):  # some make theirs before they look whether anything is in it
        try:
            return build(download=False)
        except Exception:  # not there, or not whole: each class says so in its own way
            with _short_patience():
                return build(download=True)


@contextlib.contextmanager
def _short_patience() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@contextlib.contextmanager
def _no_empty_folders(root: Path) -> Iterator[None]:
    """Where both fail, folders made meanwhile go again, unless a file is in them."""
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    before = set() if made else set(root.iterdir())
    try:
        yield
    except BaseException:
        for entry in set(root.iterdir()) - before if root.is_dir() else ():
            if entry.is_dir() and not any(path.is_file() for path in entry.rglob("*")):
                shutil.rmtree(entry, ignore_errors=True)
        for folder in made:
            with contextlib.suppress(OSError):  # something was put there after all
                folder.rmdir()
        raise
