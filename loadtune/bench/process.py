"""One bench process from the outside: started, spoken to, ended with its whole group. Needs no torch."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from loadtune.bench.bounded_log import BoundedLog
from loadtune.bench.protocol import Message
from loadtune.records import Device
from loadtune.stream.sample_table import Loading, SampleTable
from loadtune.stream.shm_cleanup import kill_group

LAST_WORDS_LINES = 1000
"""What an abort writes and the stacks of all threads below it, up to 100 frames each."""
# How long a process that was asked to go may take: it calls os._exit, so this is the scheduler's delay and then some.
_GRACE_S = 1.0
# What writing all threads' stacks to the log takes, many times over.
_STACKS_S = 0.3


class BenchProcess:
    """A running ``python -m loadtune.bench``. `close` leaves no process behind and may be called twice."""

    def __init__(self, device: Device, log_path: Path, scratch: Path, cores: Sequence[int] = ()) -> None:
        """``scratch``: the folder for everything temporary, which the caller removes. ``cores``: those to run on; empty
        stands for all."""
        self.log, log = _appended(log_path, scratch / log_path.name)
        self._samples = SampleTable()
        ours, theirs = socket.socketpair()
        alive_read, self._lifeline = os.pipe()
        descriptors = (theirs.fileno(), alive_read, self._samples.fileno())
        try:
            with log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "loadtune.bench", *map(str, descriptors), str(scratch), *map(str, cores)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(device, scratch),
                    pass_fds=descriptors,
                    start_new_session=True,  # a group of its own, ended as one; Ctrl-C at the terminal stays ours
                )
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(alive_read)
            self._samples.close_descriptor()
        self.connection: Connection = Connection(ours.detach())
        self._closed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Send, where it is still there to hear it; that it is not shows in `receive`."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def receive(self, timeout_s: float) -> Message | None:
        """The next message; None: none came in time, or none will come any more."""
        try:
            if self.connection.poll(timeout_s):
                message: Message = self.connection.recv()
                return message
        except (EOFError, OSError):
            time.sleep(min(timeout_s, 0.01))  # closed before the exit status is there: do not spin until it is
        return None

    def has_exited(self) -> bool:
        """Looked at without reaping, so that the group's number stays ours until `close`."""
        if self._process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True  # somebody else reaped it

    def dump_stacks(self, workers: Iterable[int] = ()) -> None:
        """Have these of its workers, and then itself, write where each of their threads is, for the log of a hang."""
        for pid in (*workers, self.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) == self.pid:
                    os.kill(pid, signal.SIGUSR1)
                    time.sleep(_STACKS_S)

    def loading(self) -> tuple[Loading, ...]:
        """Which samples it and its workers are loading, or were when they ended."""
        return self._samples.read()

    def close(self, goodbye: object = None) -> int:
        """End the whole group, reap, close; returns the exit status. With ``goodbye`` it may go by itself first."""
        if not self._closed:
            self._closed = True
            try:
                if goodbye is not None:
                    self.send(goodbye)
                    deadline = time.monotonic() + _GRACE_S
                    while not self.has_exited() and time.monotonic() < deadline:
                        time.sleep(0.01)
            finally:  # a second Ctrl-C ends the patience, not the cleaning up
                self._kill()
        return self._process.returncode

    def _kill(self) -> None:
        kill_group(self.pid)  # workers too, whatever became of their parent
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # one that was born meanwhile, or where there is no /proc
        self._process.wait()
        self.log.cut()
        self.connection.close()
        os.close(self._lifeline)


def _appended(path: Path, instead: Path) -> tuple[BoundedLog, IO[bytes]]:
    """A log that is open for writing: `instead`, where the first cannot be written."""
    try:
        return BoundedLog(path), path.open("ab")
    except OSError:
        return BoundedLog(instead), instead.open("ab")


def _environment(device: Device, scratch: Path) -> dict[str, str]:
    environment = dict(os.environ)
    environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    compiled = scratch / "compiled"
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(compiled), "TRITON_CACHE_DIR": str(compiled / "triton")}
    environment |= {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}  # a crash leaves its stack in the log
    if device.kind != "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    elif device.uuid is not None:
        environment["CUDA_VISIBLE_DEVICES"] = device.uuid
    home = Path(__file__).resolve().parents[2]
    if home.name not in ("site-packages", "dist-packages"):  # run from a checkout: the child has to find it as well
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{home}{os.pathsep}{known}" if known else str(home)
    return environment
