"""What controller and training say to each other, pickled over one socket. Needs no torch.

A conversation: `Begin`, then request after request. To each the training sends any number of windows and of phases,
each a text, then exactly one `Answer`. Only `STOP` may be sent while a request is under way.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from loadtune.records.config import LiveObjects, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.measurement import Window
from loadtune.stream.sample_table import SampleTable


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
        return bool(self.agreed(self._stop_heard()))

    def _stop_heard(self) -> bool:
        now = time.monotonic()
        if now - self._last_looked < _LOOK_S:
            return False
        self._last_looked, patience_s, self._patience_s = now, self._patience_s, 0.0
        return self._connection.poll(patience_s) and self._connection.recv() == STOP

    def _send(self, message: str | Window) -> None:
        self._connection.send(message)
        self._last_sent = time.monotonic()
