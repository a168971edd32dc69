"""One training process from the outside: its temporary folder, its log, started, spoken to, ended with its whole
group, and what its end means for a trial. And what it and the controller say to each other. Needs no torch.

A conversation, pickled over one socket: `Begin`, then request after request. To each the training sends any number of
windows and of phases, each a text, then exactly one `Answer`. Only `STOP` may be sent while a request is under way.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NamedTuple

from loadtune.host.usable import SHM_ADVICE
from loadtune.records.config import LiveObjects, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.measurement import FailureKind, Window
from loadtune.stream.sample_table import Loading, SampleTable
from loadtune.stream.shm_cleanup import kill_group


class Place(NamedTuple):
    """Of a rank, among those of a script that train."""

    number: int
    """0: the first, which decides for all."""
    num: int
    address: str
    """Of the socket by which the first one tells the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """First of all: what to build and where it trains."""

    spec: WorkloadSpec
    device: Device
    objects: LiveObjects | None = None
    """What of the workload the spec only labels. None: it names all of it."""
    max_memory_bytes: int | None = None
    """What this process may hold of the GPU, its context included. None: whatever is free."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Phases with `TRY` in which a script's loop failed, and the kinds of these failures."""
    autocast_places: tuple[str, ...] = ()
    """What a script that is started again would have to find out once more: see `WorkloadFacts`."""
    place: Place | None = None
    """None: one process trains."""


class Request(NamedTuple):
    """A method of `Session`, and what it is called with."""

    name: str
    given: tuple[object, ...]


TRY = "try "
"""Phases in which a script's loop is given what it may not take begin so."""

STOP = "stop"
"""Enough windows."""
EXIT = "exit"
"""No more requests: go."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The request's outcome."""

    value: object
    """What the method returned, a `TrialFailure`, or a `LoadtuneError`: the user has to mend something. None: the
    script of the user came to its end by itself."""
    healthy: bool = True
    """False: memory or the device's context was lost, a fresh training has to take over."""


Message = str | Window | Answer


_PULSE_S, _LOOK_S = 1.0, 0.01  # least between signs of life, and between looks at the socket, of 20 µs each
# A step this long is worth a wait for the answer to a window, which may say stop. The wait is a share of the step.
_LONG_STEP_S, _ANSWER_SHARE = 1.0, 0.002


class Line:
    """Messages of one training. `phase` and `samples` are kept, because a failure has to say what was being done."""

    def __init__(self, connection: Connection, samples: SampleTable | None = None) -> None:
        """``samples``: the table that the controller reads. None: nobody does."""
        self._connection = connection
        self.samples = SampleTable() if samples is None else samples
        self._last_sent = time.monotonic()
        self._last_looked = 0.0
        self._patience_s = 0.0
        self.phase = "start"
        self.agreed: Callable[[Any], Any] = lambda value: value
        """What is decided of this value, where several processes train in step."""

    def enter(self, phase: str) -> None:
        self.phase = phase
        self._send(phase)

    def pulse(self) -> None:
        """Still alive; said once a second at most, and never by another thread, which would hide a hang."""
        if time.monotonic() - self._last_sent >= _PULSE_S:
            self._send(self.phase)

    def window(self, window: Window) -> None:
        """A window ended. Where steps are long, the next look waits a moment for what the controller says to it."""
        self._send(window)
        is_long = window.seconds >= _LONG_STEP_S * window.num_steps
        self._patience_s = _ANSWER_SHARE * window.seconds if is_long else 0.0

    def now(self) -> float:
        """The monotonic clock, by which it is decided how many steps there are."""
        return float(self.agreed(time.monotonic()))

    def stop_asked(self) -> bool:
        """Whether the controller has said enough; looks now and then."""
        now, heard = time.monotonic(), False
        if now - self._last_looked >= _LOOK_S:
            self._last_looked, patience_s, self._patience_s = now, self._patience_s, 0.0
            heard = self._connection.poll(patience_s) and self._connection.recv() == STOP
        return bool(self.agreed(heard))

    def _send(self, message: str | Window) -> None:
        self._connection.send(message)
        self._last_sent = time.monotonic()


_LONGEST_FOLDER = 107 - len("/loadtune-abcdefgh/torch-shm-dir-abcdef/manager.sock")
"""Bytes of the path of a folder below which PyTorch and multiprocessing can still open a Unix socket."""


def make_scratch() -> "tempfile.TemporaryDirectory[str]":
    """A folder for everything temporary, below the usual one, unless the path of that is too long for a socket."""
    usual = tempfile.gettempdir()
    folder = usual if len(os.fsencode(usual)) <= _LONGEST_FOLDER else "/tmp"
    return tempfile.TemporaryDirectory(prefix="loadtune-", dir=folder, ignore_cleanup_errors=True)


_GRACE_S = 1.0  # for a process that was asked to go: it calls os._exit
_STACKS_S = 0.3  # many times what writing all threads' stacks to the log takes

MAX_BYTES = 1 << 20
"""The log is cut when it is longer; between two looks it may grow beyond that."""
LEFT_OUT = b"[loadtune: lines were left out here; this log keeps its newest part]\n"
_TAIL_READ_BYTES = 131_072
LAST_WORDS_LINES = 1000
"""What an abort writes and the stacks of all threads below it, up to 100 frames each."""


class BoundedLog:
    """The part of a log that one process and its workers write, from where the file ended when this was made.

    They append to the file themselves, so what was written is there whoever is killed. The controller cuts the file
    from time to time. What they write in that moment may be lost.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._start = self.size()

    def size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def tail(self, num_lines: int = 40) -> str:
        try:
            with self._path.open("rb") as log:
                log.seek(max(self._start, self.size() - _TAIL_READ_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-num_lines:])

    def cut(self) -> None:
        """Keep the newest part where the file is too long."""
        size = self.size()
        if size <= MAX_BYTES:
            return
        with contextlib.suppress(OSError), self._path.open("r+b") as log:  # a full disk is no reason to end a run
            log.seek(size - MAX_BYTES // 2)
            text = log.read()
            _, newline, whole_lines = text.partition(b"\n")
            kept = LEFT_OUT + (whole_lines if newline else text)
            log.seek(0)
            log.write(kept)
            log.truncate()
            self._start = max(0, self._start - size + len(kept))


class TrainingProcess:
    """A running ``python -m loadtune.training``. `close` leaves no process behind."""

    def __init__(self, device: Device, log_path: Path, scratch: Path) -> None:
        """``scratch``: the folder for everything temporary, which the caller removes."""
        self.log, log = BoundedLog(log_path), log_path.open("ab")
        self._samples = SampleTable()
        self.connection, theirs = Pipe()
        alive, self._lifeline = Pipe(duplex=False)
        descriptors = (theirs.fileno(), alive.fileno(), self._samples.fileno())
        with log, theirs, alive:  # all others close by themselves where this fails
            self._process = subprocess.Popen(
                [sys.executable, "-m", "loadtune.training", *map(str, descriptors), str(scratch)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment_of(device, scratch),
                pass_fds=descriptors,
                start_new_session=True,  # a group of its own, ended as one; Ctrl-C at the terminal stays ours
            )
        self._samples.close_descriptor()

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
                return self.connection.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            time.sleep(min(timeout_s, 0.01))  # closed before the exit status is there: do not spin until it is
        return None

    def has_exited(self) -> bool:
        """Looked at without reaping, so that the group's number stays ours until `close`."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True  # somebody else reaped it

    def dump_stacks(self, stuck: Sequence[Loading] = ()) -> None:
        """Have a worker of these, and then itself, write where its threads are: the user's code is looked for."""
        for pid in (*[each.pid for each in stuck if each.worker is not None][:1], self.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) == self.pid:
                    os.kill(pid, signal.SIGUSR1)
                    time.sleep(_STACKS_S)

    def loading(self) -> tuple[Loading, ...]:
        """Which samples it and its workers are loading, or were when they ended."""
        return self._samples.read()

    def close(self, goodbye: object = None) -> int:
        """End the whole group, reap, close; returns the exit status. With ``goodbye`` it may go by itself first."""
        try:
            if goodbye is not None:
                self.send(goodbye)
                deadline = time.monotonic() + _GRACE_S
                while not self.has_exited() and time.monotonic() < deadline:
                    time.sleep(0.01)
        finally:  # a second Ctrl-C ends the patience, not the cleaning up
            kill_group(self.pid)  # workers too, whatever became of their parent
            self._process.wait()
            self.log.cut()
            self._close_all()
        return self._process.returncode

    def _close_all(self) -> None:
        self.connection.close()
        self._lifeline.close()


def environment_of(device: Device, scratch: Path) -> dict[str, str]:
    """Of a process that trains: temporary files go to ``scratch``, CUDA sees this device alone."""
    compiled = scratch / "compiled"
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(compiled), "TRITON_CACHE_DIR": str(compiled / "triton")}
    environment |= {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}  # a crash leaves its stack in the log
    if device.kind != "cuda" or device.uuid is not None:
        environment["CUDA_VISIBLE_DEVICES"] = device.uuid or ""
    home = Path(__file__).resolve().parents[2]
    if home.name not in ("site-packages", "dist-packages"):  # run from a checkout: the child has to find it as well
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{home}{os.pathsep}{known}" if known else str(home)
    return environment


# What C++ and OpenMP write as they die of refused memory. The log may also hold refusals that were answered.
_DYING_OF_MEMORY = re.compile(
    r"terminate called after throwing an instance of '(std::bad_alloc|std::bad_array_new_length)'"
    r"|terminate called .*\n\s*what\(\):.*(DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc)"
    r"|libgomp: (Thread creation failed|Out of memory)"
    r"|OMP: Error #34\b"
    r"|Fatal Python error: .*(MemoryError|out of memory)",
    re.IGNORECASE,
)


def cause_of_exit(
    returncode: int, *, oom_kills: int | None = None, log: str = "", of_ranks: bool = False
) -> tuple[FailureKind, str]:
    """(The kind of failure that a process ended by itself died of, how it ended: ``was ended by SIGABRT``).

    `oom_kills` is how many processes the kernel killed for memory meanwhile; None: nothing counts them, and then a
    SIGKILL is most likely its own. `log` is what the process wrote last. `of_ranks`: it started several that train.
    """
    ended = f"exited with code {returncode}"
    if returncode < 0:
        known = -returncode in set(signal.Signals)
        ended = f"was ended by {signal.Signals(-returncode).name if known else f'signal {-returncode}'}"
    if returncode == -signal.SIGKILL and oom_kills == 0:
        return "crash", "was killed by SIGKILL, not by the kernel for lack of memory"
    if returncode > 0 and oom_kills and of_ranks:
        return "host_oom", f"{ended}: the kernel killed a process for lack of host memory"
    if returncode == -signal.SIGKILL:
        how = "killed, most likely" if oom_kills is None else "killed by the kernel"
        return "host_oom", f"{ended}: {how} for lack of host memory"
    if returncode == -signal.SIGBUS:
        return "shm", f"{ended} ({SHM_ADVICE})"
    # C++ ends by an abort, OpenMP by an exit.
    if (returncode == -signal.SIGABRT or returncode > 0) and _DYING_OF_MEMORY.search(log):
        return "host_oom", f"{ended}: an allocation of host memory was refused"
    return "crash", ended
