"""Fresh processes on a pool of devices: one at a time on each, the next one's imports done while the last one works.

In: orders. Out: an `Outcome` for each, whatever became of its process. All that was started is ended by `end_all`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory_orders import ERROR, FITS, OUT_OF_MEMORY, Order

from loadtune.records.facts import Device

HERE = Path(__file__).resolve().parent
PLAIN, PROBING = "memory_child.py", "memory_probing.py"

OnEvent = Callable[[dict[str, Any]], None]

_ALIVE: set["Child"] = set()
_TAIL_BYTES = 2000
# The driver takes a process's memory back within a second of its end; a context of 0.5 GiB is what must not be missed.
SETTLE_S, SETTLED_BYTES = 10.0, 64 << 20
_POLL_S = 0.05


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
        return {FITS: "fits", OUT_OF_MEMORY: "oom"}.get(ERROR if self.returncode is None else self.returncode, "error")


@dataclass(eq=False)
class Child:
    """A process that waits for its one order."""

    command: tuple[str, ...]
    device: Device
    log_path: Path
    on_event: OnEvent | None = None
    _messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / self.command[0]), *self.command[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(self.device),
                start_new_session=True,
            )
        _ALIVE.add(self)
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
            self.process.stdin.write(json.dumps(order) + "\n")
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
            log.seek(max(0, self.log_path.stat().st_size - _TAIL_BYTES))
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
        _ALIVE.discard(self)


def end_all() -> None:
    for child in list(_ALIVE):
        child.end()


class Slot:
    """One device of the pool."""

    def __init__(self, number: int, device: Device, folder: Path, used_bytes: Callable[[], int | None]) -> None:
        self.number, self.device, self._folder, self.used_bytes = number, device, folder, used_bytes
        self._num_started = 0
        self._spare: Child | None = None
        self.base_bytes = used_bytes()
        """In use when nothing of ours runs."""

    def start(self, *command: str, on_event: OnEvent | None = None) -> Child:
        self._num_started += 1
        return Child(command, self.device, self._folder / f"{self.number}-{self._num_started:03}.log", on_event)

    def take_plain(self, cell: str, on_event: OnEvent | None = None) -> Child:
        """The process that is ready, or soon will be; the next one begins to get ready, for the same cell."""
        child = self._spare or self.start(PLAIN, cell)
        self._spare = self.start(PLAIN, cell)
        child.on_event = on_event
        return child

    def run_plain(self, order: Order, limit_s: float) -> Outcome:
        """One order, when the device is as it was; the limit is from the order on."""
        self.settle()
        child = self.take_plain(order["cell"])
        child.give(order | {"device": self.device.kind})
        return child.outcome(limit_s)

    def settle(self) -> float:
        """Wait until the device's memory is back where it was; returns the seconds that took."""
        started = time.monotonic()
        while (used := self.used_bytes()) is not None and self.base_bytes is not None:
            if used <= self.base_bytes + SETTLED_BYTES or time.monotonic() - started > SETTLE_S:
                break
            time.sleep(_POLL_S)
        return time.monotonic() - started


def _environment(device: Device) -> dict[str, str]:
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    return environment | {"CUDA_VISIBLE_DEVICES": device.uuid or ""}
