"""What a run says and keeps: progress to a listener, notes for the user, the time of each stage, its folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from loadtune.errors import LoadtuneError
from loadtune.records.config import TrialConfig
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Progress
from loadtune.run.budget import Budget
from loadtune.run.state import State, write_run
from loadtune.seams import Listener

T = TypeVar("T")


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
        listener, state = self.listener, self.state
        if listener is None:
            return
        seen = [(each.config, each) for each in state.finalists] or state.tried  # those of the search are too good
        best_config, best = max(seen, key=lambda each: each[1].score, default=(None, None))
        progress = Progress(
            stage=self.stage_name,
            message=message,
            warning=warning,
            number=len(state.confirmed if self.stage_name == "confirm" else state.trials) + 1,
            num_trials=state.config.num_trials,
            config=self.running,
            current_samples_per_s=rate,
            best_samples_per_s=best.samples_per_s if best else None,
            best_config=best_config,
            left_s=max(0.0, self.budget.left_s),
            expected_s=self.budget.planned_s(self.stage_name, self.stage_began_s),
        )
        self.aside("Progress could not be shown", lambda: listener(progress))

    def result(self) -> TuningResult:
        """Everything found until now."""
        names = {each.name for each in fields(TuningResult)} & {each.name for each in fields(State)}
        own: dict[str, Any] = {name: getattr(self.state, name) for name in names}
        own |= {"ceilings": tuple(self.state.ceilings), "trials": tuple(self.state.trials), "notes": tuple(self.notes)}
        own |= {"loadtune_version": self.state.version, "stage_seconds": dict(self.stage_seconds)}
        return TuningResult(seconds=self.budget.clock() - self.budget.began_s, **own)
