"""What controller and bench say to each other: frozen records, pickled over one socket. Needs no torch.

A conversation: `Begin`, then request after request. To each the bench sends any number of `Phase` and `Streamed`, then
exactly one `Answer` or `Refused`. Only `Stop` may be sent while a request is under way.
"""

from dataclasses import dataclass

from loadtune import errors
from loadtune.records import (
    BatchTry,
    ComputePoint,
    Device,
    Examined,
    FitReport,
    LiveObjects,
    Recipe,
    StepAccount,
    StepVariant,
    TrainingRun,
    TrialConfig,
    TrialFailure,
    Window,
    WorkloadFacts,
    WorkloadSpec,
)

COMPILING = "compile"
"""The phase in which torch.compile is at work: minutes without another sign of life are nothing unusual there."""


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
"""A `BatchTry` is answered by a FitReport, failed or not; a `StepVariant` by a StepAccount."""
Value = WorkloadFacts | ComputePoint | FitReport | StepAccount | TrainingRun | tuple[Examined, ...] | TrialFailure


@dataclass(frozen=True, slots=True)
class Phase:
    """What the bench is doing; also its sign of life."""

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
    """False: memory or the device's context was lost, a fresh bench has to take over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The user has to mend something: an error of `loadtune.errors`, taken apart so that it pickles."""

    error: str
    message: str
    user_traceback: str | None

    @classmethod
    def of(cls, error: errors.LoadtuneError) -> "Refused":
        trace = getattr(error, "user_traceback", None)
        return cls(error=type(error).__name__, message=str(error), user_traceback=trace)

    def to_error(self) -> errors.LoadtuneError:
        """The same error again, to be raised on this side."""
        kind = getattr(errors, self.error, errors.BenchError)
        if issubclass(kind, errors.WorkloadError):
            return kind(self.message, self.user_traceback)
        return kind(self.message)


Message = Phase | Streamed | Answer | Refused


def failed_value(request: Request, failure: TrialFailure, seconds: float, budget_bytes: int | None = None) -> Value:
    """How this request's answer looks when it failed."""
    if isinstance(request, BatchTry):
        return FitReport(
            precision=request.recipe.precision,
            batch_size=request.batch_size,
            failure=failure,
            budget_bytes=budget_bytes,
            seconds=seconds,
        )
    return failure
