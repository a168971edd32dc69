"""A run, as its stages have it: what it has found so far, on disk after each measurement, and frozen into a `Result` at
any moment; its time budget; its journal: progress to a listener, notes for the user, the time of each stage. And how it
times one configuration on the training, and what other processes did meanwhile.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import msgspec

from loadtune.changes.stack import Step
from loadtune.decide.final import LOOKS
from loadtune.decide.search import Segment
from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.records.config import TrialConfig, TuneConfig
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.records.measurement import (
    DISTURBED,
    LAST_SHARE,
    ComputePoint,
    Measurement,
    Progress,
    RecipeChoice,
    TrialFailure,
    Window,
    is_barred,
    non_finite_loss,
    taken_by_others,
)
from loadtune.records.memory import MemoryCeiling
from loadtune.records.result import (
    SCHEMA_VERSION,
    Attempt,
    Bottleneck,
    Failed,
    Finalist,
    Remedies,
    Result,
    Trial,
    Winner,
    failures_of,
    measured_of,
)
from loadtune.seams import Clock, Listener, Sensor, Training
from loadtune.store import RUN_FILE, read_record, write_whole
from loadtune.units import counted, percent_text, seconds_text

T = TypeVar("T")


@dataclass(slots=True)
class Resumable:
    """All of a run that is stored while it goes on. Fields as in `Result`.

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

    @property
    def share(self) -> HostFacts:
        """What a rank has of the machine."""
        return self.host.shared_by(self.facts.num_ranks if self.facts else 1)

    @property
    def failed(self) -> list[Failed]:
        """What failed in the search and in the final."""
        return failures_of((*self.trials, *self.confirmed))

    @property
    def timed(self) -> list[tuple[TrialConfig, Measurement]]:
        """All segments that were measured, of the search and of the final."""
        return measured_of((*self.trials, *self.confirmed))


@dataclass(slots=True)
class State(Resumable):
    """With what a result has beside it, and a resumed run finds anew."""

    finalists: tuple[Finalist, ...] = ()
    confirmed_whole: bool = False
    best: Winner | None = None
    best_at_your_batch: Winner | None = None
    bottleneck: Bottleneck | None = None
    remedies: Remedies | None = None
    cut_short: str | None = None
    interrupted_by: str | None = None
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    earlier: Result | None = None
    """Of before the run was resumed. Its answer stands until another is confirmed."""


def write_run(run: Resumable, folder: Path) -> None:
    """Return once ``run.json`` holds all of it. Raises ResultError; the file is then as it was."""
    content = {"schema_version": SCHEMA_VERSION} | {each.name: getattr(run, each.name) for each in fields(Resumable)}
    write_whole(folder / RUN_FILE, msgspec.json.encode(content) + b"\n", resumable=True)


def read_run(folder: Path, *, to_import: bool = False) -> Resumable:
    """What the run in this folder found so far. Raises ResultError as `read_record` does."""
    return read_record(folder / RUN_FILE, Resumable, "run", or_else="run without --resume", to_import=to_import)


@dataclass(frozen=True, slots=True)
class Budget:
    """``total_s`` seconds from the moment ``began_s`` on. A limit: no stage has a share of it."""

    clock: Clock
    total_s: float
    began_s: float

    @property
    def left_s(self) -> float:
        """Below 0 it is overdrawn."""
        return self.began_s + self.total_s - self.clock()

    @property
    def measuring_s(self) -> float:
        """Seconds left in which anything may be measured. The last ones are for what comes after the final."""
        return self.left_s - LAST_SHARE * self.total_s

    def until(self, share: float) -> float:
        """The moment at which this share of the time now left is spent."""
        return self.clock() + share * max(0.0, self.left_s)


USUAL_RUNS = 3 * LOOKS[0]
"""Of a final: three rounds of three contestants. By it the time that a run will take is told."""


@dataclass(slots=True)
class Journal:
    """Of the run whose state it is."""

    state: State
    budget: Budget
    folder: Path
    listener: Listener | None = None
    notes: list[str] = field(default_factory=list)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    stage_name: str = "start"
    stage_began_s: float = 0.0
    running: TrialConfig | None = None
    line: Callable[[State, object], str] = lambda state, found: str(found)
    """What was found, in a line."""
    cautions: Callable[[State, object], Iterable[str]] = lambda state, found: [str(found)]
    """What to know of it before trusting the answer, in whole sentences."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Name and time a part of the run, also when it is cut short."""
        self.stage_name, self.stage_began_s = name, self.budget.clock()
        self.tell()
        try:
            yield
        finally:
            took_s = self.budget.clock() - self.stage_began_s
            self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + took_s
            self.running = None

    def save(self) -> None:
        """Store what was found until now."""
        if not self.state.trials:
            self.state.early_notes = tuple(self.notes)
        write_run(self.state, self.folder)

    def note(self, *found: object) -> None:
        """Keep what the user should read before trusting the answer, and show it now. None: there is nothing to say."""
        for sentence in (text for each in found if each is not None for text in self.cautions(self.state, each)):
            if sentence not in self.notes:
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

    def tell(self, found: object = None, *, warning: bool = False, rate: float | None = None) -> None:
        """Show the listener where the run stands, and what was found."""
        listener, state = self.listener, self.state
        if listener is None:
            return
        # What the search measured is too good, so that it counts only while there is nothing else.
        seen = [(each.config, each) for each in state.finalists] or measured_of(state.trials)
        best_config, best = max(seen, key=lambda each: each[1].score, default=(None, None))
        progress = Progress(
            stage=self.stage_name,
            message=None if found is None else self.line(state, found),
            warning=warning,
            number=len(state.confirmed if self.stage_name == "confirm" else state.trials) + 1,
            num_trials=state.config.num_trials,
            config=self.running,
            current_samples_per_s=rate,
            best_samples_per_s=best.samples_per_s if best else None,
            best_config=best_config,
            left_s=max(0.0, self.budget.left_s),
            expected_s=self.expected_s,
        )
        self.aside("Progress could not be shown", lambda: listener(progress))

    @property
    def expected_s(self) -> float | None:
        """That the run takes from now on, if all trials are made and last as those so far. None: before the search."""
        state, left_s = self.state, max(0.0, self.budget.left_s)
        if self.stage_name in ("start", "calibrate"):
            return None
        num_trials = state.config.num_trials - len(state.trials) if self.stage_name == "study" else 0
        num_runs = max(0, num_trials) + max(1, USUAL_RUNS - len(state.confirmed))
        took_s = [measured.seconds for _, measured in state.timed]
        return min(left_s, num_runs * fmean(took_s)) if took_s else left_s

    def result(self) -> Result:
        """Everything found until now."""
        names = {each.name for each in fields(Result)} & {each.name for each in fields(State)}
        own: dict[str, Any] = {name: getattr(self.state, name) for name in names}
        own |= {"ceilings": tuple(self.state.ceilings), "trials": tuple(self.state.trials), "notes": tuple(self.notes)}
        own |= {"loadtune_version": self.state.version, "stage_seconds": dict(self.stage_seconds)}
        return Result(seconds=self.budget.clock() - self.budget.began_s, **own)


# Timing one configuration


SEGMENT_S, SEGMENT_SHARE, SEGMENT_LEAST_S = 2.4, 0.01, 0.5
"""Of the measured part of a segment, at most, where every worker delivers in less: seconds, share of the time budget,
and seconds at the least. More segments tell more than longer ones."""

WINDOW_S = 0.4
"""Long enough that the synchronisation at its ends costs a fraction of a per cent, short enough for several a trial."""

MAX_DISTURBED_REPEATS, REPEAT_OF_LEFT = 2, 0.1
"""Disturbed repeats in a row after which no segment is repeated: this machine is not quiet. And the share of the time
left that a repeat may take."""


class Run:
    """What a stage works with. The time budget is counted from now on."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        training: Training,
        sensor: Sensor,
        folder: Path,
        host_now: Callable[[], HostFacts],
        listener: Listener | None = None,
    ) -> None:
        """``host_now`` reads the machine anew: its memory changes while a run goes on."""
        self.state, self.training, self._host_now = state, training, host_now
        self.budget = Budget(clock, state.config.time_budget_s, clock())
        self.journal = Journal(state, self.budget, folder, listener)
        self._sensor = sensor
        self._disturbed_repeats = 0
        """How many of the latest repeats in a row were disturbed by other processes too."""

    def host_now(self) -> HostFacts:
        """What a rank has of the machine now."""
        return self._host_now().shared_by(self.state.facts.num_ranks if self.state.facts else 1)

    @property
    def segment_s(self) -> float:
        """Of the measured part of a segment, at most, where every worker delivers in less."""
        return max(SEGMENT_LEAST_S, min(SEGMENT_S, SEGMENT_SHARE * self.budget.total_s))

    def timed(self, config: TrialConfig, limit_s: float = math.inf) -> Measurement | TrialFailure:
        """``limit_s``: seconds after which a segment that has not seen enough is given up.

        A segment that other processes disturbed is run once more, and the quieter of the two counts. Where that run
        fails the first one does, unless the loss was not finite."""
        first = self._timed_once(config, limit_s)
        before, name = taken_by_others(first, self.state.host)
        if before < DISTURBED or not isinstance(first, Measurement):
            return first
        if self._disturbed_repeats >= MAX_DISTURBED_REPEATS or first.seconds > REPEAT_OF_LEFT * self.budget.left_s:
            return first
        used = f"Other processes used {percent_text(before)} of the {name} during this measurement."
        self.journal.tell(f"{used} It is repeated.")
        again = self._timed_once(config, limit_s)
        if isinstance(again, TrialFailure) and is_barred([again]):
            return again
        after = taken_by_others(again, self.state.host)[0] if isinstance(again, Measurement) else before
        self._disturbed_repeats = 0 if after < DISTURBED else self._disturbed_repeats + 1
        return again if isinstance(again, Measurement) and after < before else first

    def _timed_once(self, config: TrialConfig, limit_s: float) -> Measurement | TrialFailure:
        self.journal.running = config
        self.journal.tell()
        try:
            return self.run_trial(config, Segment(config.loader, self.segment_s, limit_s))
        except LoadtuneError as error:  # a change of the code that makes the job unfit for training fails alone
            if isinstance(error, OutOfTimeError) or not config.remedies:
                raise
            return TrialFailure(kind="user_error", phase="training", message=str(error))

    def run_trial(self, config: TrialConfig, segment: Segment) -> Measurement | TrialFailure:
        """Time `config` until `segment` has seen enough, or the loss is no longer finite."""
        clock, facts = self.budget.clock, self.state.facts
        started, windows = clock(), list[Window]()

        def watch(window: Window) -> bool:
            windows.append(window)
            self.journal.tell(rate=window.num_samples / window.seconds)
            return window.loss_is_finite is not False and segment.add(window)

        ran = self.training.time_training(config, WINDOW_S, watch)
        if isinstance(ran, TrialFailure):
            return ran
        if windows[-1].loss_is_finite is False:
            return non_finite_loss(config.precision, windows, phase="training")
        if segment.gave_up:
            steps = counted(sum(window.num_steps for window in windows), "step")
            message = f"it trained {steps} in {seconds_text(clock() - started)}"
            return TrialFailure(kind="too_slow", phase="training", message=message)
        start_s, end_s = segment.kept[0].start_s, segment.kept[-1].end_s
        seen = self.journal.aside("Telemetry is missing", lambda: self._sensor.between(start_s, end_s))
        starts_workers = config.loader.num_workers > 0 and not config.loader.persistent_workers  # with every epoch
        return Measurement(
            windows=tuple(segment.kept),
            first_batch_s=ran.first_batch_s,
            seconds=clock() - started,
            peak_allocated_bytes=ran.peak_allocated_bytes,
            telemetry=None if seen is None else seen.of_one(facts.num_ranks if facts else 1),
            noisy=not segment.settled,
            restart_s=max(ran.ready_s, ran.first_batch_s - ran.batch_s) if starts_workers else 0.0,
            refill_s=ran.batch_s,
            steps=ran.steps,
            differing=ran.differing,
            epoch_samples=facts.dataset_length if facts else None,
        )
