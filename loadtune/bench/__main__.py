"""``python -m loadtune.bench SOCKET LIFELINE FOLDER``: two inherited descriptors, and where temporary files go.

Started by `BenchClient`, not by people.
"""

import atexit
import faulthandler
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from loadtune.bench.lifeline import leave, watch_lifeline


def main() -> None:
    """Watch the controller before anything slow is imported, then serve it."""
    socket, lifeline = (int(argument) for argument in sys.argv[1:3])
    watch_lifeline(lifeline, Path(sys.argv[3]))
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the controller asks for stacks before it ends a hang
    atexit.register(leave, 1)  # an exception ends the interpreter, and that the lifeline's thread, wherever it is
    from loadtune.bench.server import serve  # imports torch

    serve(Connection(socket))
    leave(0)


if __name__ == "__main__":
    main()
