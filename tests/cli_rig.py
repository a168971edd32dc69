"""`python -m loadtune` as a real process, so marked that whatever it leaves behind is found."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent

MARK = "LOADTUNE_TEST_RUN"
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
    left_behind: list[int]


class Command:
    """A running ``loadtune``. Its folder, home and, in the end, temporary folder lie below ``home``: nothing strays.

    As a context it is killed at the end, with all that it started.
    """

    def __init__(self, home, *words):
        self.home = home
        self._mark = uuid.uuid4().hex
        # Of its own and short: a worker's socket lies in it, and the name of one has 107 characters at most.
        self._temporary = Path(tempfile.mkdtemp(prefix="loadtune-"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtune", *words],
            cwd=_folder(home / "cwd"),
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(home / "stderr").open("w"),
            text=True,
        )

    def _environment(self):
        return os.environ | {
            MARK: self._mark,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(_folder(self.home / "home")),
            "TMPDIR": str(self._temporary),
            "COLUMNS": "200",  # a message is read as one line
            **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOBODY),
            "no_proxy": "",
        }

    def stderr(self):
        return (self.home / "stderr").read_text()

    def said(self, start):
        """What follows `start` on the first line of stdout that begins so; waits for it."""
        for line in self._process.stdout:
            if line.startswith(start):
                return line.removeprefix(start).strip()
        raise AssertionError(f"it ended without a word of {start!r}\n{self.stderr()}")

    def descendants(self):
        """Processes of this command that still run, other than itself; also those that left its group or session."""
        return [pid for pid in marked(self._mark) if pid != self._process.pid]

    def signal(self, number):
        self._process.send_signal(number)

    def until(self, condition):
        """Wait for it; says what was printed where it does not come."""
        met = until(lambda: condition() or self._process.poll() is not None, PATIENCE_S)
        assert met, f"not in {PATIENCE_S} s\n{self.stderr()}"
        assert condition(), f"it ended before, with code {self._process.poll()}\n{self.stderr()}"

    def end(self):
        """Wait for its end, and for the end of whatever it started."""
        stdout, _ = self._process.communicate(timeout=PATIENCE_S)
        until(lambda: not self.descendants(), GONE_S)
        self._show_temporary()
        return Ended(self._process.returncode, stdout, self.stderr(), self.descendants())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.kill()

    def kill(self):
        for pid in marked(self._mark):
            psutil.Process(pid).kill()
        self._show_temporary()

    def _show_temporary(self):
        """What is left in it lies below `home` afterwards, with all that might have strayed."""
        if self._temporary.exists():
            shutil.move(self._temporary, self.home / f"tmp-{self._mark}")


def marked(mark):
    """Running processes that inherited this mark; a zombie does not run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def until(condition, timeout_s=GONE_S):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _folder(path):
    path.mkdir(parents=True, exist_ok=True)
    return path


def files_below(folder):
    """Everything below it that is not a folder, as relative names."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())
