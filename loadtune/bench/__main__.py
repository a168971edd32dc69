"""``python -m loadtune.bench SOCKET LIFELINE``: two inherited descriptors. Started by `BenchClient`, not by people."""

import faulthandler
import signal
import sys
import traceback
from multiprocessing.connection import Connection

from loadtune.bench.lifeline import leave, watch_lifeline


def main() -> None:
    """Watch the controller before anything slow is imported, then serve it."""
    socket, lifeline = (int(argument) for argument in sys.argv[1:3])
    watch_lifeline(lifeline)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the controller asks for stacks before it ends a hang
    status = 1
    try:
        from loadtune.bench.server import serve  # imports torch

        serve(Connection(socket))
        status = 0
    except BaseException:
        traceback.print_exc()  # into the log
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        leave(status)


if __name__ == "__main__":
    main()
