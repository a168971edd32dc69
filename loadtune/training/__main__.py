"""``python -m loadtune.training SOCKET LIFELINE SAMPLES FOLDER [CORE ...]``: inherited descriptors, where temporary
files go, and the cores to run on.

Started by `TrainingClient` alone.
"""

import atexit
import faulthandler
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from loadtune.training.lifeline import leave, watch_lifeline


def main() -> None:
    """Watch the controller before anything slow is imported, then serve it."""
    socket, lifeline, samples = (int(argument) for argument in sys.argv[1:4])
    if cores := [int(argument) for argument in sys.argv[5:]]:
        os.sched_setaffinity(0, cores)  # threads and workers inherit it
    watch_lifeline(lifeline, Path(sys.argv[4]))
    del sys.argv[1:]  # ours: a module of the user's that parses its command line as it is imported finds it empty
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the controller asks for stacks before it ends a hang
    atexit.register(leave, 1)  # an exception ends the interpreter, and that the lifeline's thread, wherever it is
    os.set_inheritable(samples, False)  # workers have it by fork or by name, programs that the dataset starts do not
    from loadtune.stream.sample_table import SampleTable
    from loadtune.training.session import serve  # imports torch

    serve(Connection(socket), SampleTable(samples))
    leave(0)


if __name__ == "__main__":
    main()
