"""What a run has found so far: filled stage by stage, shown to a listener, frozen into a `TuningResult` at any moment.

The only mutable record of a run. An interruption at any point leaves everything measured until then.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from loadtune.errors import LoadtuneError
from loadtune.model.resources import Job
from loadtune.probe.memory import MemoryProbe
from loadtune.records import (
    Bottleneck,
    Finalist,
    Precision,
    Progress,
    Reading,
    Recipe,
    Remedies,
    Trial,
    TrialConfig,
    TuningResult,
    Window,
    Winner,
)
from loadtune.records.confirmed import Failed
from loadtune.report.run_file import Resumable
from loadtune.seams import Clock, Listener

T = TypeVar("T")


class Changes(Protocol):
    """Combinations of changes of the code."""

    def jobs(self, job: Job) -> tuple[Job, ...]: ...
    def outcome(
        self, best: Finalist, changed: Finalist | None, finalists: Sequence[Finalist], failed: Sequence[Failed]
    ) -> Remedies: ...


@dataclass(slots=True)
class Findings(Resumable):
    """What a resumed run needs is stored; the rest goes with this process, or is in the result."""

    clock: Clock
    listener: Listener | None = None
    reading: Callable[[], Reading | None] = lambda: None
    num_before: int = 0
    """Trials of before the last resumption."""
    probes: dict[Precision, MemoryProbe] = field(default_factory=dict)
    """Those whose ceiling is predicted, so that verifying it goes on from there. Empty after a resumption."""
    disturbed_repeats: int = 0
    """How many of the latest repeats in a row were disturbed by other processes too."""
    lost_bytes: int = 0
    """Of the GPU's memory, to other processes since then."""
    trained: set[tuple[Recipe, int]] = field(default_factory=set)
    """Recipes and batch sizes that were timed since this run began, or was resumed: the bench need not compile them."""
    finalists: tuple[Finalist, ...] = ()
    confirmed_whole: bool = False
    best: Winner | None = None
    best_at_your_batch: Winner | None = None
    bottleneck: Bottleneck | None = None
    changes: "Changes | None" = None
    """Of the code, that are searched. None: none are."""
    notes: list[str] = field(default_factory=list)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    cut_short: str | None = None
    stage_name: str = "start"
    running: TrialConfig | None = None
    started_s: float = 0.0
    created: str = ""
    said: set[str] = field(default_factory=set)
    """What failed `aside`."""

    def __post_init__(self) -> None:
        self.started_s = self.clock.now()
        self.created = datetime.now(UTC).isoformat(timespec="seconds")

    @property
    def is_resumed(self) -> bool:
        return bool(self.earlier_versions)

    @property
    def left_s(self) -> float:
        """Of the time budget; below 0 it is overdrawn."""
        return self.started_s + self.config.time_budget_s - self.clock.now()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Name and time a part of the run, also when it is cut short."""
        self.stage_name, started = name, self.clock.now()
        self.tell()
        try:
            yield
        finally:
            self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + self.clock.now() - started
            self.running = None

    def note(self, sentence: str) -> None:
        """Keep a sentence the user should read before trusting the answer, and show it now."""
        if sentence in self.notes:
            return
        self.notes.append(sentence)
        self.tell(sentence, warning=True)

    def aside(self, failed: str, do: Callable[[], T]) -> T | None:
        """Do what the answer does not depend on. Whatever it raises is a note, once, that begins with ``failed``."""
        try:
            return do()
        except Exception as error:
            if failed not in self.said:
                self.said.add(failed)
                reason = str(error) if isinstance(error, LoadtuneError) else f"{type(error).__name__}: {error}"
                self.note(f"{failed}: {reason.rstrip('.')}.")
            return None

    def tell(self, message: str | None = None, *, warning: bool = False, rate: float | None = None) -> None:
        """Show the listener where the run stands."""
        listener = self.listener
        if listener is None:
            return
        leader = self._leader()
        best = leader.measurement if leader else None
        by_energy = self.config.objective == "samples-per-joule"
        progress = Progress(
            stage=self.stage_name,
            message=message,
            warning=warning,
            trial_number=len(self.trials) or None,
            num_trials=self.config.num_trials,
            config=self.running,
            current_samples_per_s=rate,
            best_samples_per_s=best.samples_per_s if best else None,
            best_samples_per_joule=best.samples_per_joule if best and by_energy else None,
            best_config=leader.config if leader else None,
            reading=self.reading(),
            has_gpu=self.device.kind == "cuda",
            left_s=max(0.0, self.left_s),
        )
        self.aside("Progress could not be shown", lambda: listener(progress))

    def tell_window(self, window: Window) -> None:
        self.tell(rate=window.num_samples / window.seconds)

    def result(self) -> TuningResult:
        """Everything found until now."""
        return TuningResult(
            loadtune_version=self.version,
            created=self.created,
            seconds=self.clock.now() - self.started_s,
            stage_seconds=dict(self.stage_seconds),
            cut_short=self.cut_short,
            config=self.config,
            host=self.host,
            device=self.device,
            facts=self.facts,
            yours=self.yours,
            assumed=self.assumed,
            recipes=self.recipes,
            ceilings=tuple(self.ceilings),
            compute_points=self.compute_points,
            batch_sizes=self.batch_sizes,
            trials=tuple(self.trials),
            finalists=self.finalists,
            confirmed_whole=self.confirmed_whole,
            best=self.best,
            best_at_your_batch=self.best_at_your_batch,
            bottleneck=self.bottleneck,
            remedies=self.remedies,
            notes=tuple(self.notes),
        )

    def _leader(self) -> Trial | None:
        measured = [t for t in self.trials if t.measurement]
        objective = self.config.objective
        return max(measured, key=lambda t: t.measurement.score(objective) if t.measurement else 0.0, default=None)
