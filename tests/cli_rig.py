"""`python -m loadtune` as a real process, so started that whatever it leaves behind is found."""

import ctypes
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psutil

from loadtune.cli.app import app

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent

libc, PR_SET_CHILD_SUBREAPER = ctypes.CDLL(None), 36
# How long a process that was ended may take to be gone: far above any scheduler's delay.
GONE_S = 10.0
# Far above what a start takes on a busy machine: importing torch was seen to take 20 s there.
PATIENCE_S = 120.0

NOBODY = "http://127.0.0.1:9"
"""A proxy where nobody listens: what would be downloaded cannot be had, at once and on every machine."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left: its exit code, what it printed, and who of its descendants still runs."""

    code: int
    stdout: str
    stderr: str
    left_behind: list[psutil.Process]


class Command:
    """A running ``loadtune``. Its folder, home and, in the end, temporary folder lie below ``home``: nothing strays.
    ``fresh``: a new interpreter, else forked from this one.

    As a context it is killed at the end, with all that it started.
    """

    def __init__(self, home, *words, fresh=False):
        from forked import Forked  # imports torch

        self.home = home
        # Of its own and short: a worker's socket lies in it, and the name of one has 107 characters at most.
        self._temporary = Path(tempfile.mkdtemp(prefix="loadtune-"))
        self._others = set(psutil.Process().children(recursive=True))
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # descendants whose parents are gone are this process's
        with (_folder(home) / "stdout").open("w") as stdout, (home / "stderr").open("w") as stderr:
            self._process = (subprocess.Popen if fresh else Forked)(
                [sys.executable, "-m", "loadtune", *words],
                cwd=_folder(home / "cwd"),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    def _environment(self):
        return os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(_folder(self.home / "home")),
            "TMPDIR": str(self._temporary),
            "COLUMNS": "200",  # a message is read as one line
            **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOBODY),
            "no_proxy": "",
        }

    def stdout(self):
        return (self.home / "stdout").read_text()

    def stderr(self):
        return (self.home / "stderr").read_text()

    def descendants(self):
        """Processes of this command that still run, other than itself; also those that left its group or session."""
        others = set(psutil.Process().children(recursive=True)) - self._others
        return [each for each in others if each.pid != self._process.pid and is_alive(each.pid)]

    def signal(self, number):
        self._process.send_signal(number)

    def until(self, condition):
        """Wait for it; says what was printed where it does not come."""
        met = until(lambda: condition() or self._process.poll() is not None, PATIENCE_S)
        assert met, f"not in {PATIENCE_S} s\n{self.stderr()}"
        assert condition(), f"it ended before, with code {self._process.poll()}\n{self.stderr()}"

    def end(self):
        """Wait for its end, and for the end of whatever it started."""
        assert until(lambda: self._process.poll() is not None, PATIENCE_S), self.stderr()
        until(lambda: not self.descendants(), GONE_S)
        self._show_temporary()
        return Ended(self._process.returncode, self.stdout(), self.stderr(), self.descendants())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.descendants():
            process.kill()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)
        self._show_temporary()

    def _show_temporary(self):
        """What is left in it lies below `home` afterwards, with all that might have strayed."""
        if self._temporary.exists():
            shutil.move(self._temporary, self.home / f"tmp-{self._temporary.name}")


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def segments(pids):
    """Shared memory of workers, by name."""
    return [path.name for pid in pids for path in Path("/dev/shm").glob(f"torch_{pid}_*")]


def until(condition, timeout_s=GONE_S, pause_s=0.1):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True


def _folder(path):
    path.mkdir(parents=True, exist_ok=True)
    return path


@dataclass(frozen=True, slots=True)
class Invoked:
    """What a command in this process printed, and its exit code."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self):
        return self.stdout + self.stderr


def invoke(*words):
    """The command in this process, on a terminal of 80 columns. Raises what is no error of ours."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS="80"), redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            code = app(words)
        except SystemExit as end:
            code = end.code
    return Invoked(code, stdout.getvalue(), stderr.getvalue())


def files_below(folder):
    """Everything below it that is not a folder, as relative names."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())
