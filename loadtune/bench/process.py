"""One bench process from the outside: started, spoken to, ended with its whole group. Needs no torch.

A module of its own because it is the only place that knows about pipes, groups and signals.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from loadtune.bench.leftovers import kill_group
from loadtune.bench.protocol import Message
from loadtune.records import Device

_LOG_LINES = 40
_LOG_BYTES = 32_768
LAST_WORDS_LINES = 1000
"""What an abort writes and the stacks of all threads below it, up to 100 frames each."""
# How long a process that was asked to go may take: it calls os._exit, so this is the scheduler's delay and then some.
_GRACE_S = 1.0
# What writing all threads' stacks to the log takes, many times over.
_STACKS_S = 0.3


class BenchProcess:
    """A running ``python -m loadtune.bench``. `close` leaves no process behind and may be called twice."""

    def __init__(self, device: Device, log_path: Path, scratch: Path) -> None:
        """``scratch``: the folder for everything temporary, which the caller removes."""
        self._log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        ours, theirs = socket.socketpair()
        alive_read, self._lifeline = os.pipe()
        try:
            with log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "loadtune.bench", str(theirs.fileno()), str(alive_read), str(scratch)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=_environment(device, scratch),
                    pass_fds=(theirs.fileno(), alive_read),
                    start_new_session=True,  # a group of its own, ended as one; Ctrl-C at the terminal stays ours
                )
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(alive_read)
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

    def dump_stacks(self) -> None:
        """Have it write where each of its threads is, for the log of a hang."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(_STACKS_S)

    def close(self, goodbye: object = None) -> int:
        """End the whole group, reap, close; returns the exit status. With ``goodbye`` it may go by itself first."""
        if not self._closed:
            self._closed = True
            try:
                if goodbye is not None:
                    self.send(goodbye)
                    self._await_exit(_GRACE_S)
            finally:  # a second Ctrl-C ends the patience, not the cleaning up
                self._kill()
        return self._process.returncode

    def _kill(self) -> None:
        kill_group(self.pid)  # workers too, whatever became of their parent
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # one that was born meanwhile, or where there is no /proc
        self._process.wait()
        self.connection.close()
        os.close(self._lifeline)

    def log_size(self) -> int:
        """Bytes written so far: grows while a download reports its progress."""
        try:
            return self._log_path.stat().st_size
        except OSError:
            return 0

    def log_tail(self, num_lines: int = _LOG_LINES) -> str:
        """The last lines this very process wrote."""
        try:
            with self._log_path.open("rb") as log:
                log.seek(max(self._log_start, self.log_size() - _LOG_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-num_lines:])

    def _await_exit(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.has_exited() and time.monotonic() < deadline:
            time.sleep(0.01)


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
