"""How the parent and its processes speak: JSON lines, an exit status, and nobody works on for a parent that is gone."""

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

FITS, OUT_OF_MEMORY, ERROR, LEFT_ALONE = 0, 3, 4, 5
"""Exit status: it went well (a batch fits) · the device's memory was lacking · anything else · the parent has gone."""

Order = dict[str, Any]
Say = Callable[..., None]


def private_stdout() -> Say:
    """A way to say JSON lines on stdout; what libraries print there goes to stderr from now on."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(**message: object) -> None:
        print(json.dumps(message), file=lines, flush=True)

    return say


def await_order() -> Order:
    """The one line on stdin; leaves the process where none comes, and later as soon as stdin closes."""
    line = sys.stdin.readline()
    if not line:
        os._exit(LEFT_ALONE)

    def watch() -> None:
        while os.read(0, 4096):  # sys.stdin.read() holds a lock that forked workers wait for
            pass
        os._exit(LEFT_ALONE)

    threading.Thread(target=watch, daemon=True).start()
    order: Order = json.loads(line)
    return order


def first_line(error: BaseException) -> str:
    """``RuntimeError: what it said first``."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
