"""What a run has found so far: on disk for ``--resume``, and frozen into a `TuningResult` at any moment.

An interruption at any point leaves everything measured until then: ``run.json`` is written whole after each
measurement. Beside ``study.db``, which keeps a figure a trial, it has the whole measurement, window by window.
"""

from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from loadtune.changes.stack import Step
from loadtune.records.answer import Failed, failures_of
from loadtune.records.config import TrialConfig, TuneConfig
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.records.measurement import ComputePoint, Measurement, RecipeChoice
from loadtune.records.memory import MemoryCeiling
from loadtune.records.result import SCHEMA_VERSION, Attempt, Bottleneck, Finalist, Remedies, Trial, TuningResult, Winner
from loadtune.report.store import RUN_FILE, read_record, write_whole


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

    @property
    def tried(self) -> list[tuple[TrialConfig, Measurement]]:
        """The segments that the search measured."""
        return [(trial.config, trial.measurement) for trial in self.trials if trial.measurement is not None]

    @property
    def failed(self) -> list[Failed]:
        """What failed in the search and in the final."""
        return failures_of((*self.trials, *self.confirmed))

    @property
    def timed(self) -> list[tuple[TrialConfig, Measurement]]:
        """All segments that were measured, of the search and of the final."""
        return self.tried + [(each.config, each.measurement) for each in self.confirmed if each.measurement is not None]


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
    earlier: TuningResult | None = None
    """Of before the run was resumed. Its answer stands until another is confirmed."""


def write_run(run: Resumable, folder: Path) -> None:
    """Return once ``run.json`` holds all of it. Raises ResultError; the file is then as it was."""
    content = {"schema_version": SCHEMA_VERSION} | {each.name: getattr(run, each.name) for each in fields(Resumable)}
    write_whole(folder / RUN_FILE, msgspec.json.encode(content) + b"\n", resumable=True)


def read_run(folder: Path, *, to_import: bool = False) -> Resumable:
    """What the run in this folder found so far. Raises ResultError as `read_record` does."""
    return read_record(folder / RUN_FILE, Resumable, "run", or_else="run without --resume", to_import=to_import)
