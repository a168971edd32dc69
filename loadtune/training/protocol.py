"""What controller and training say to each other: frozen records, pickled over one socket. Needs no torch.

A conversation: `Begin`, then request after request. To each the training sends any number of `Phase` and `Streamed`,
then exactly one `Answer` or `Refused`. Only `Stop` may be sent while a request is under way.
"""

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from loadtune.errors import LoadtuneError
from loadtune.records.config import LiveObjects, Recipe, TrialConfig, WorkloadSpec
from loadtune.records.facts import Device, WorkloadFacts
from loadtune.records.footprint import StepAccount, StepVariant
from loadtune.records.measurement import ComputePoint, TrainingRun, TrialFailure, Window
from loadtune.records.memory import BatchTry, FitReport
from loadtune.records.result import Examined
from loadtune.stream.sample_table import SampleTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """First of all: what to build and where it trains."""

    spec: WorkloadSpec
    device: Device
    objects: LiveObjects | None = None
    """What of the workload the spec only labels. None: it names all of it."""
    max_memory_bytes: int | None = None
    """What this process may hold of the GPU, its context included; on a CPU, of the RAM. None: whatever is free."""


@dataclass(frozen=True, slots=True)
class Describe:
    """Answered by WorkloadFacts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCompute:
    """Answered by a ComputePoint."""

    recipe: Recipe
    batch_size: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTraining:
    """Streams windows until `Stop`, then answered by a TrainingRun."""

    config: TrialConfig
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Examine:
    """Answered by a tuple of Examined, one for each remedy."""

    config: TrialConfig
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Enough windows."""


@dataclass(frozen=True, slots=True)
class Exit:
    """No more requests: go."""


Request = Describe | TimeCompute | BatchTry | StepVariant | TimeTraining | Examine
"""A `BatchTry` is answered by a FitReport, a `StepVariant` by a StepAccount; each that failed by a TrialFailure."""
Value = WorkloadFacts | ComputePoint | FitReport | StepAccount | TrainingRun | tuple[Examined, ...] | TrialFailure


@dataclass(frozen=True, slots=True)
class Phase:
    """What the training is doing; also its sign of life."""

    name: str


@dataclass(frozen=True, slots=True)
class Streamed:
    """A window that just ended."""

    window: Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The request's outcome."""

    value: Value
    healthy: bool
    """False: memory or the device's context was lost, a fresh training has to take over."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The user has to mend something."""

    error: LoadtuneError


Message = Phase | Streamed | Answer | Refused


# Signs of life no denser than this: a message costs 20 µs, and steps of 1 ms would send a thousand a second.
_PULSE_S = 1.0
# Seconds between looks at the socket. A look costs 20 µs, so a hundred of them a second take 0.2% of the time.
_LOOK_S = 0.01
# A step this long is worth a wait for the answer to a window, which may say stop. The wait is a share of the step.
_LONG_STEP_S = 1.0
_ANSWER_SHARE = 0.002


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

    def enter(self, phase: str) -> None:
        """Something else begins."""
        self.phase = phase
        self._send(Phase(phase))

    def pulse(self) -> None:
        """Still alive; said once a second at most, and never by another thread, which would hide a hang."""
        if time.monotonic() - self._last_sent >= _PULSE_S:
            self._send(Phase(self.phase))

    def window(self, window: Window) -> None:
        """A window ended. Where steps are long, the next look waits a moment for what the controller says to it."""
        self._send(Streamed(window))
        is_long = window.seconds >= _LONG_STEP_S * window.num_steps
        self._patience_s = _ANSWER_SHARE * window.seconds if is_long else 0.0

    def stop_asked(self) -> bool:
        """Whether the controller has said enough; looks now and then."""
        now = time.monotonic()
        if now - self._last_looked < _LOOK_S:
            return False
        self._last_looked, patience_s, self._patience_s = now, self._patience_s, 0.0
        return self._connection.poll(patience_s) and isinstance(self._connection.recv(), Stop)

    def _send(self, message: Phase | Streamed) -> None:
        self._connection.send(message)
        self._last_sent = time.monotonic()
