"""Fresh processes on one device, for the benchmarks of memory and of other tools. Imports no torch, and nothing of
loadtune until a `Slot` is made.

The parent starts a script as a `Child` and gives it one order, a line of JSON on stdin. The script answers by `serve`,
in lines of JSON on stdout, and ends. A child whose parent is gone ends by itself; `end_all` ends all that were started.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadtune.records.facts import Device, HostFacts

Order = dict[str, Any]
Say = Callable[..., None]
Work = Callable[[Order, Say], dict[str, object]]

FITS, OUT_OF_MEMORY, ERROR, LEFT_ALONE = 0, 3, 4, 5
"""Exit status: it went well (a batch fits) · the device's memory was lacking · anything else · the parent has gone."""

HERE = Path(__file__).resolve().parent
TAIL_BYTES, POLL_S = 2000, 0.05
SETTLE_S, SETTLED_BYTES = 10.0, 64 << 20
"""The driver takes a process's memory back within a second of its end. A context has 0.5 GiB."""

OOM = re.compile(
    r"DefaultCPUAllocator|CUDA out of memory|CUDA (driver )?error: out of memory|CUDNN_STATUS_NOT_SUPPORTED"
    r"|CUDNN_STATUS_ALLOC_FAILED|unable to find an engine|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)
"""What lack of memory looks like, beside the allocator's own exception: libraries and kernels have their own words."""

_alive: set["Child"] = set()


def is_oom(error: BaseException) -> bool:
    """Whether it was memory that was lacking."""
    known = isinstance(error, RuntimeError) and OOM.search(str(error)) is not None
    return known or type(error).__name__ == "OutOfMemoryError"


def first_line(error: BaseException) -> str:
    """``RuntimeError: what it said first``."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def serve(works: dict[str, Work]) -> None:
    """Do the one order that comes on stdin, answer, and leave. What libraries print goes to stderr."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(**message: object) -> None:
        print(json.dumps(message), file=lines, flush=True)

    order, status = _await_order(), FITS
    try:
        say(answer=works[order["work"]](order, say))
    except Exception as error:
        traceback.print_exc()
        say(error=first_line(error))
        status = OUT_OF_MEMORY if is_oom(error) else ERROR
    sys.stderr.flush()
    os._exit(status)  # at once: tearing CUDA down in Python's order takes longer and frees nothing more


def _await_order() -> Order:
    """Leaves the process where none comes, and later as soon as stdin closes."""
    line = sys.stdin.readline()
    if not line:
        os._exit(LEFT_ALONE)

    def watch() -> None:
        while os.read(0, 4096):  # sys.stdin.read() holds a lock that forked workers wait for
            pass
        os._exit(LEFT_ALONE)

    threading.Thread(target=watch, daemon=True).start()
    return json.loads(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one order."""

    returncode: int | None
    """None: ended for taking too long."""
    answer: dict[str, Any] | None
    error: str | None
    seconds: float
    """From the order to the end of the process."""

    @property
    def verdict(self) -> str:
        """``fits``, ``oom`` or ``error``."""
        return {FITS: "fits", OUT_OF_MEMORY: "oom"}.get(ERROR if self.returncode is None else self.returncode, "error")


@dataclass(eq=False)
class Child:
    """A process that waits for its one order."""

    script: str
    device: "Device"
    log_path: Path
    on_event: Callable[[dict[str, Any]], None] | None = None
    _messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / self.script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ
                | {
                    "PYTHONPATH": python_path(),
                    "PYTHONUNBUFFERED": "1",
                    "CUDA_VISIBLE_DEVICES": self.device.uuid or "",
                },
                start_new_session=True,
            )
        _alive.add(self)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if "event" not in message:
                self._messages.append(message)
            elif self.on_event is not None:
                self.on_event(message)

    def give(self, order: Order) -> None:
        assert self.process.stdin is not None
        self._ordered = time.monotonic()
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(order | {"device": self.device.kind}) + "\n")
            self.process.stdin.flush()

    def outcome(self, limit_s: float) -> Outcome:
        """Wait for its end, or end it."""
        try:
            returncode: int | None = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            returncode = None
        self.end()
        seconds = time.monotonic() - self._ordered
        said = self._messages[-1] if self._messages else {}
        error = None if "answer" in said else said.get("error") or self._silence(returncode, limit_s)
        return Outcome(returncode=returncode, answer=said.get("answer"), error=error, seconds=seconds)

    def _silence(self, returncode: int | None, limit_s: float) -> str:
        how = f"took more than {limit_s:.0f} s" if returncode is None else f"ended with {returncode} and said nothing"
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        return f"{how}; its log ends: {lines[-1] if lines else 'empty'}"

    def end(self) -> None:
        """It and its group, also twice."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(1.0)
        with contextlib.suppress(OSError):
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
        _alive.discard(self)


def end_all() -> None:
    for child in list(_alive):
        child.end()


def python_path() -> str:
    """By which a child finds this checkout and the factories beside this file."""
    return os.pathsep.join(filter(None, [str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH")]))


class Slot:
    """The device on which children run, one at a time."""

    def __init__(self, name: str | None, host: "HostFacts", logs: Path) -> None:
        """Asks NVML once, which makes no context. Raises DeviceError where there is no such device."""
        from loadtune.host.machine import choose_device

        self.device, self.logs = choose_device(host, name), logs
        self._num_started = 0
        self.base_bytes = self.used_bytes()
        """In use when nothing of ours runs."""

    def used_bytes(self) -> int | None:
        """Of the GPU's memory, by everybody. None: there is no GPU, or its driver does not say."""
        from loadtune.host.gpu import NvmlDevice

        memory = NvmlDevice(self.device.uuid).value("nvmlDeviceGetMemoryInfo") if self.device.uuid else None
        return None if memory is None else int(memory.total - memory.free)

    def start(self, script: str, on_event: Callable[[dict[str, Any]], None] | None = None) -> Child:
        self._num_started += 1
        return Child(script, self.device, self.logs / f"{self._num_started:03}.log", on_event)

    def run(self, script: str, order: Order, limit_s: float) -> Outcome:
        """One order, when the device is as it was; the limit is from the order on."""
        self.settle()
        child = self.start(script)
        child.give(order)
        return child.outcome(limit_s)

    def settle(self) -> None:
        """Wait until the device's memory is back where it was."""
        until = time.monotonic() + SETTLE_S
        while (used := self.used_bytes()) is not None and self.base_bytes is not None and time.monotonic() < until:
            if used <= self.base_bytes + SETTLED_BYTES:
                break
            time.sleep(POLL_S)


Job = tuple[str, float, Callable[[], None]]
"""Its name, seconds that it probably takes, and what it does."""


def run_jobs(jobs: Iterable[Job], failed: dict[str, str], until: float | None, save: Callable[[], None]) -> None:
    """One after the other. One that fails, or would probably end after `until`, is noted and stops nothing else."""
    started = time.monotonic()
    for name, estimate_s, run in jobs:
        begun = time.monotonic()
        if until is not None and begun + estimate_s > until:
            failed[name] = "not begun for lack of time"
            continue
        try:
            run()
        except Exception as error:
            traceback.print_exc()
            failed[name] = first_line(error)
        save()
        now = time.monotonic()
        print(f"{now - started:6.0f} s  {name}: {now - begun:.1f} s", flush=True)


def names(text: str) -> tuple[str, ...]:
    """Of an option that takes several, separated by commas."""
    return tuple(filter(None, (name.strip() for name in text.split(","))))


KEPT = ("--keep", "--note", "--from")


def add_kept(parser: argparse.ArgumentParser) -> None:
    """Options of a benchmark that may run in several calls."""
    parser.add_argument("--within-s", type=float, help="begin no job that would probably end later than this")
    parser.add_argument("--from", dest="earlier", type=Path, action="append", default=[], help="kept by another call")
    parser.add_argument("--keep", type=Path, help="folder for the results in JSON, and for logs")
    parser.add_argument("--note", type=Path, help="file to keep the note in")


def with_kept(given: argparse.Namespace) -> argparse.Namespace:
    given.until = None if given.within_s is None else time.monotonic() + given.within_s
    given.keep = given.keep or Path(tempfile.mkdtemp(prefix="benchmark-"))
    given.keep.mkdir(parents=True, exist_ok=True)
    return given


def command() -> str:
    """As the note gives it: where its files lay is nobody's concern."""
    words = sys.argv[1:]
    kept = [word for word, before in zip(words, ["", *words], strict=False) if before not in KEPT]
    named = [word for word in kept if word.partition("=")[0] not in KEPT]
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *named])


@contextlib.contextmanager
def keeping(
    given: argparse.Namespace, name: str, results: object, note: Callable[[], str]
) -> Iterator[Callable[[], None]]:
    """What writes down all that is known; it is called at the end, too, also at that of a time limit."""
    import msgspec

    def save() -> None:
        (given.keep / name).write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
        if given.note is not None:
            given.note.write_text(note())

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield save
    finally:
        save()
        end_all()


def describe_host(host: "HostFacts", device: "Device") -> dict[str, str]:
    from loadtune import __version__

    facts = {
        "Device": device.name,
        "host": f"{host.cpu_name}, {host.num_usable_cores} cores, {host.os}",
        "driver": host.driver or "–",
        "Python": platform.python_version(),
        "CUDA": host.cuda or "–",
        "loadtune": __version__,
    }
    for package in ("torch", "torchvision", "lightning", "accelerate"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "–"
    return facts


def markdown_table(title: str, head: str, rows: Iterable[str]) -> str:
    rule = "|" + "---|" * (head.count("|") + 1)
    return "\n".join([f"## {title}", "", f"| {head} |", rule, *rows])


def markdown_row(values: Iterable[object]) -> str:
    return "| " + " | ".join("–" if value is None else str(value).replace("|", "/") for value in values) + " |"
