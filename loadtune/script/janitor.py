"""Once the controller is gone ends what still runs of a script, and removes its folder: ``python -I -S janitor.py
FOLDER``, whose standard input the controller holds open. A script cannot remove it, as it is a mount there. Imports
nothing of loadtune.
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PATIENCE_S, _TIDYING_S = 30.0, 1.0
"""For the script's processes in all; and for those to tidy up that notice themselves that the controller is gone."""


def processes_of(folder: str) -> set[int]:
    """Whose environment names this folder, whoever is their parent now."""
    found = set[int]()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is gone, or of another user
            if os.fsencode(folder) in (process / "environ").read_bytes():
                found.add(int(process.name))
    return found


def remove(folder: str) -> bool:
    """Whether it is gone. In an overlay's folders are some that nobody may read."""
    for inside, names, _ in os.walk(folder):  # from the top down
        for path in (os.path.join(inside, name) for name in names):
            if not os.path.islink(path):
                with suppress(FileNotFoundError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.exists(folder)


def main() -> None:
    if sys.stdin.buffer.read():  # the controller does it itself
        return
    until = time.monotonic() + _PATIENCE_S
    time.sleep(_TIDYING_S)
    while time.monotonic() < until:
        for process in (left := processes_of(sys.argv[1])):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if not left and remove(sys.argv[1]):
            break
        time.sleep(0.1)


if __name__ == "__main__":
    main()
