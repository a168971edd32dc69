"""A training process forked from this one, which has imported torch: a fresh interpreter takes seconds for that."""

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import threading

import torch
import torch._dynamo  # as the first step of an optimizer does: half of the time


class Forked:
    """What a `TrainingProcess` needs of ``subprocess.Popen``."""

    returncode = None

    def __init__(self, command, *, stdout, env, pass_fds, **_):
        # A child's main thread is the one that forked: a new one, so that pytest's frames are not in its stacks.
        thread = threading.Thread(target=self._fork, args=(command, stdout.fileno(), env, pass_fds))
        thread.start()
        thread.join()

    def _fork(self, *given):
        self.pid = os.fork()
        if self.pid == 0:
            try:
                begin(*given)
            finally:
                os._exit(1)

    def wait(self):
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def begin(command, log, env, descriptors):
    """In the child: be as if just started, but for what is imported."""
    gc.freeze()  # else its first collection copies all that this process has
    os.setsid()
    for number, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(file, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in (0, 1, 2, *descriptors):
            with contextlib.suppress(OSError):
                os.close(number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    sys.argv, tempfile.tempdir = command[2:], None
    threading.current_thread().__class__ = threading._MainThread  # torch handles signals in no other
    multiprocessing.current_process()._config.pop("tempdir", None)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's
    faulthandler.enable()
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    from loadtune.training.__main__ import main

    main()
