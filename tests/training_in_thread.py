"""A training without a process: the real server on a thread of the test's own, over a real pipe, pickles and all.

A process takes seconds to import torch. Whatever is about answers, not about processes, is asked of this one.
"""

import multiprocessing
import os
import threading
from types import SimpleNamespace

from loadtune.training.session import serve


class BenchInThread:
    """What `TrainingClient` needs of a `TrainingProcess`. Nobody may kill it, and it has no log."""

    pid = os.getpid()
    log = SimpleNamespace(size=lambda: 0, cut=lambda: None, tail=lambda num_lines=0: "")

    def __init__(self, device, log_path, scratch):
        self.connection, theirs = multiprocessing.Pipe()
        self._thread = threading.Thread(target=serve, args=(theirs,), daemon=True)
        self._thread.start()

    def send(self, message):
        self.connection.send(message)

    def receive(self, timeout_s):
        return self.connection.recv() if self.connection.poll(timeout_s) else None

    def has_exited(self):
        return not self._thread.is_alive()

    def close(self, goodbye=None):
        self.connection.close()
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server does not notice that its controller is gone"
        return 0

    def loading(self):
        return ()
