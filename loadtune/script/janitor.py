"""Removes a folder once the controller is gone: ``python -I -S janitor.py FOLDER``, whose standard input the controller
holds open. A script cannot remove it, as it is a mount there. Imports nothing of loadtune.
"""

import os
import shutil
import sys
import time

_PATIENCE_S = 30.0
"""For the script's processes, which end as the controller does."""


def remove(folder: str) -> bool:
    """Whether it is gone. In an overlay's folders are some that nobody may read."""
    for inside, names, _ in os.walk(folder):  # from the top down
        for path in (os.path.join(inside, name) for name in names):
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.exists(folder)


def main() -> None:
    until = time.monotonic() + _PATIENCE_S
    if not sys.stdin.buffer.read():  # else the controller removes it itself
        while not remove(sys.argv[1]) and time.monotonic() < until:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
