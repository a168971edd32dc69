"""Python processes forked from this one, which has imported torch: a fresh interpreter takes seconds for that."""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import runpy
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from types import SimpleNamespace

import torch

import loadtune.training.process

# As an optimizer's first step, jobs and runs do.
for name in ("torch._dynamo", "torchvision", "loadtune.api.tune", "loadtune.api.largest_batch"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)


class Forked:
    """What is needed of ``subprocess.Popen``, for ``python -m MODULE ...`` and ``python SCRIPT ...``. The training
    processes that it starts are forked, too."""

    returncode = None

    def __init__(self, command, **given):
        # A child's main thread is the one that forked: a new one, so that pytest's frames are not in its stacks.
        thread = threading.Thread(target=self._fork, args=(command[1:],), kwargs=given)
        thread.start()
        thread.join()

    def _fork(self, words, **given):
        becoming, became = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(became)
            os.read(becoming, 1)  # as Popen does: its group is not there before
            os.close(becoming)
        else:
            status = 1
            try:
                become(words, **given)
                status = 0
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                multiprocessing.util._exit_function()
                atexit._run_exitfuncs()
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(status)

    def wait(self, options=0):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def poll(self):
        return self.wait(os.WNOHANG)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


PROCESSES = SimpleNamespace(Popen=Forked, DEVNULL=None)
"""In place of ``subprocess``."""


def become(words, *, stdout, stderr, env, cwd=".", pass_fds=(), start_new_session=False, stdin=None):
    """In the child: be as if just started, but for what is imported, and run that."""
    gc.freeze()  # else its first collection copies all that this process has
    if start_new_session:
        os.setsid()
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), stdout.fileno(), stderr.fileno())):
        os.dup2(file, number)
    for number in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, *pass_fds}:
        with contextlib.suppress(OSError):
            os.close(number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    module = words.pop(0) if words[0] == "-m" else None
    folder = os.getcwd() if module else os.path.dirname(os.path.abspath(words[0]))
    sys.path[:0] = [folder, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv, tempfile.tempdir = words, None
    threading.current_thread().__class__ = threading._MainThread  # torch handles signals in no other
    multiprocessing.current_process()._config.pop("tempdir", None)
    multiprocessing.resource_tracker._resource_tracker._fd = None  # this process has none yet
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's
    atexit._clear()
    warnings.simplefilter("default")
    faulthandler.disable()  # it is on, so `enable` alone would leave SIGABRT as a library may have put it back
    faulthandler.enable()
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    loadtune.training.process.subprocess = PROCESSES
    if module:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")
