"""A run: what it works with, what it has found so far, and how much time is left; on disk for ``--resume``.

Filled stage by stage, shown to a listener, frozen into a `TuningResult` at any moment. The only mutable record: an
interruption at any point leaves everything measured until then. ``run.json`` is written whole after each measurement.
Beside ``study.db``, which keeps a figure a trial, it has the whole measurement, window by window.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from loadtune.changes.stack import Stack, Step
from loadtune.errors import LoadtuneError
from loadtune.limits.memory import MemoryProbe
from loadtune.records.answer import LAST_SHARE, Failed
from loadtune.records.config import Precision, Recipe, TrialConfig, TuneConfig
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.records.measurement import ComputePoint, Measurement, RecipeChoice
from loadtune.records.memory import MemoryCeiling
from loadtune.records.result import (
    SCHEMA_VERSION,
    Attempt,
    Bottleneck,
    Finalist,
    Remedies,
    Trial,
    TuningResult,
    Winner,
)
from loadtune.records.telemetry import Progress
from loadtune.report.store import files_below, read_record, write_whole
from loadtune.seams import Clock, Listener, Sensor, Training

T = TypeVar("T")

RUN_FILE = "run.json"

FINAL_SHARE = 0.23
"""Of the time budget, for the rounds of the final: no other stage takes it away, and they take more only while
throughput is known to worse than `confirmation.ROUGH`. Three rounds of three contestants take about 50 s on an H200;
the default is 55 s. The compute-only rates after them make it a quarter."""

SEARCH_SHARE, CODE_SHARE, LARGE = 0.2, 0.1, 0.15
"""Of the time budget, for a search, and as much again for each dimension of ``--tune``; for the one with changes of the
code. An improvement that is expected to be larger than this, on the logarithm, is worth all the time that the final can
spare."""

PLAN = {"study": (SEARCH_SHARE, CODE_SHARE + FINAL_SHARE), "changes": (CODE_SHARE, FINAL_SHARE)}
PLAN |= {"verify": (0.0, FINAL_SHARE), "confirm": (FINAL_SHARE, 0.0)}
"""Of the time budget, what each stage from the search on is planned to take, and all stages after it."""


@dataclass(slots=True)
class Resumable:
    """All of a run that is stored while it goes on. Fields as in `TuningResult`.

    Those without a default are of its last part: since it began, or since it was resumed.
    """

    config: TuneConfig
    host: HostFacts
    device: Device
    version: str
    """Of loadtune."""
    _: KW_ONLY
    facts: WorkloadFacts | None = None
    yours: TrialConfig | None = None
    assumed: tuple[str, ...] = ()
    recipes: tuple[RecipeChoice, ...] = ()
    ceilings: list[MemoryCeiling] = field(default_factory=list)
    compute_points: tuple[ComputePoint, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    """That are searched, as are `num_workers`."""
    num_workers: tuple[int, ...] = ()
    early_notes: tuple[str, ...] = ()
    """Of before the first trial. The stages after it write theirs anew."""
    trials: list[Trial] = field(default_factory=list)
    search_notes: tuple[str, ...] | None = None
    """Of its end. None: it has not ended."""
    steps: tuple[Step, ...] = ()
    """Changes of the code that are searched."""
    confirmed: list[Attempt] = field(default_factory=list)
    """Runs of the final, in their order."""
    ended: bool = False
    """It went to its end, and its result is written."""


@dataclass(slots=True)
class Run(Resumable):
    """What a resumed run needs is stored (`Resumable`); the rest goes with this process, or is in the result."""

    clock: Clock
    training: Training
    sensor: Sensor
    folder: Path
    host_now: Callable[[], HostFacts]
    """Reads the machine anew: its memory changes while a run goes on."""
    listener: Listener | None = None
    earlier: TuningResult | None = None
    """Of before the run was resumed. Its answer stands until another is confirmed."""
    probes: dict[Precision, MemoryProbe] = field(default_factory=dict)
    """Those whose ceiling is predicted, so that verifying it goes on from there. Empty after a resumption."""
    disturbed_repeats: int = 0
    """How many of the latest repeats in a row were disturbed by other processes too."""
    trained: set[tuple[Recipe, int]] = field(default_factory=set)
    """Recipes and batch sizes that were timed since this run began, or was resumed: the training need not compile
    them."""
    finalists: tuple[Finalist, ...] = ()
    confirmed_whole: bool = False
    best: Winner | None = None
    best_at_your_batch: Winner | None = None
    bottleneck: Bottleneck | None = None
    remedies: Remedies | None = None
    changes: Stack | None = None
    """Of the code, that are searched. None: none are."""
    notes: list[str] = field(default_factory=list)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    cut_short: str | None = None
    interrupted_by: str | None = None
    stage_name: str = "start"
    stage_began_s: float = 0.0
    running: TrialConfig | None = None
    started_s: float = 0.0
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def __post_init__(self) -> None:
        self.started_s = self.clock.now()

    @property
    def tried(self) -> list[tuple[TrialConfig, Measurement]]:
        """The segments that the search measured."""
        return [(trial.config, trial.measurement) for trial in self.trials if trial.measurement is not None]

    @property
    def failed(self) -> list[Failed]:
        """What failed in the search and in the final."""
        both: list[Attempt] = [*self.trials, *self.confirmed]
        return [(each.config, each.failure) for each in both if each.failure is not None]

    @property
    def timed(self) -> list[tuple[TrialConfig, Measurement]]:
        """All segments that were measured, of the search and of the final."""
        both: list[Attempt] = [*self.trials, *self.confirmed]
        return [(each.config, each.measurement) for each in both if each.measurement is not None]

    # Time

    @property
    def left_s(self) -> float:
        """Of the time budget; below 0 it is overdrawn."""
        return self.started_s + self.config.time_budget_s - self.clock.now()

    def until(self, share: float) -> float:
        """The moment at which this share of the time now left is spent."""
        return self.clock.now() + share * max(0.0, self.left_s)

    @property
    def spare_s(self) -> float:
        """Seconds left beside the final and what comes after it."""
        return self.left_s - (FINAL_SHARE + LAST_SHARE) * self.config.time_budget_s

    def search_until_s(self, begun_s: float, expected: float, *, of_code: bool) -> float:
        """A trial of this expected improvement does not begin where it would end later, in a search that began then.
        Where a workload is slow to probe, the final gives way to half of what was left."""
        left_s = self.started_s + self.config.time_budget_s - begun_s
        spare_s = max(0.5 * left_s, left_s - (FINAL_SHARE + LAST_SHARE) * self.config.time_budget_s)
        share = CODE_SHARE if of_code else SEARCH_SHARE * (1 + len(self.config.tune))
        share = share if expected < LARGE else 1.0
        return begun_s + min(spare_s, share * self.config.time_budget_s)

    @property
    def confirm_until_s(self) -> float:
        """No run of the final is repeated that would end later."""
        return min(self.answer_until_s, self.clock.now() + FINAL_SHARE * self.config.time_budget_s)

    @property
    def answer_until_s(self) -> float:
        """The same of the second round."""
        return self.until(1 - LAST_SHARE)

    @property
    def expected_s(self) -> float | None:
        """What is planned for the rest of this stage and for those after it. None: the search has not begun."""
        if self.stage_name not in PLAN:
            return None
        stage_s, later_s = (share * self.config.time_budget_s for share in PLAN[self.stage_name])
        return min(max(0.0, self.stage_began_s + stage_s - self.clock.now()) + later_s, max(0.0, self.left_s))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Name and time a part of the run, also when it is cut short."""
        self.stage_name = name
        self.stage_began_s = started = self.clock.now()
        self.tell()
        try:
            yield
        finally:
            self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + self.clock.now() - started
            self.running = None

    # What is said and kept

    def save(self) -> None:
        """Store what was found until now."""
        if not self.trials:
            self.early_notes = tuple(self.notes)
        write_run(self, self.folder)

    def note(self, *sentences: str | None) -> None:
        """Keep what the user should read before trusting the answer, and show it now. None: there is nothing to say."""
        for sentence in sentences:
            if sentence is not None and sentence not in self.notes:
                self.notes.append(sentence)
                self.tell(sentence, warning=True)

    def aside(self, failed: str, do: Callable[[], T]) -> T | None:
        """Do what the answer does not depend on. Whatever it raises is a note, once, that begins with ``failed``."""
        try:
            return do()
        except Exception as error:
            if not any(note.startswith(failed) for note in self.notes):
                reason = str(error) if isinstance(error, LoadtuneError) else f"{type(error).__name__}: {error}"
                self.note(f"{failed}: {reason.rstrip('.')}.")
            return None

    def tell(self, message: str | None = None, *, warning: bool = False, rate: float | None = None) -> None:
        """Show the listener where the run stands."""
        listener = self.listener
        if listener is None:
            return
        seen = [(each.config, each) for each in self.finalists] or self.tried  # those of the search are too good
        best_config, best = max(seen, key=lambda each: each[1].score, default=(None, None))
        progress = Progress(
            stage=self.stage_name,
            message=message,
            warning=warning,
            number=len(self.confirmed if self.stage_name == "confirm" else self.trials) + 1,
            num_trials=self.config.num_trials,
            config=self.running,
            current_samples_per_s=rate,
            best_samples_per_s=best.samples_per_s if best else None,
            best_config=best_config,
            left_s=max(0.0, self.left_s),
            expected_s=self.expected_s,
        )
        self.aside("Progress could not be shown", lambda: listener(progress))

    def result(self) -> TuningResult:
        """Everything found until now."""
        own: dict[str, Any] = {each.name: getattr(self, each.name, None) for each in fields(TuningResult)}
        own = {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}
        own |= {"schema_version": SCHEMA_VERSION, "loadtune_version": self.version}
        own |= {"seconds": self.clock.now() - self.started_s, "stage_seconds": dict(self.stage_seconds)}
        return TuningResult(**own)


def write_run(run: Resumable, folder: Path) -> None:
    """Return once ``run.json`` holds all of it. Raises ResultError; the file is then as it was."""
    content = {"schema_version": SCHEMA_VERSION} | {each.name: getattr(run, each.name) for each in fields(Resumable)}
    write_whole(folder / RUN_FILE, msgspec.json.encode(content) + b"\n", resumable=True)


def read_run(folder: Path, *, to_import: bool = False) -> Resumable:
    """What the run in this folder found so far. Raises ResultError as `read_record` does."""
    return read_record(folder / RUN_FILE, Resumable, "run", or_else="run without --resume", to_import=to_import)


def newest_run(out: Path) -> Path:
    """The newest run's folder that can be resumed: `out` itself, or one up to two folders below."""
    todo = "Give the folder of a run, or run without --resume."
    return files_below(out, RUN_FILE, "run to resume", todo)[-1].parent
