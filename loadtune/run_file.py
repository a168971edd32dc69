"""The run so far in one file, from which ``--resume`` goes on.

In: what a run found. Out: ``run.json``, written whole after each measurement, or what is left in it after an
interruption. Beside ``study.db``, which keeps a figure a trial: here is the whole measurement, window by window.
"""

from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path

import msgspec

from loadtune.errors import ResultError
from loadtune.records.config import TrialConfig, TuneConfig
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.records.measurement import ComputePoint, Measurement, RecipeChoice, TrialFailure
from loadtune.records.memory import MemoryCeiling
from loadtune.records.result import SCHEMA_VERSION, Remedies, Trial
from loadtune.report.store import RESULT_FILE, newest_with, read_record, write_whole

RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The search ended by itself, within this many trials and seconds."""

    num_trials: int
    time_budget_s: float
    notes: tuple[str, ...] = ()

    def covers(self, config: TuneConfig) -> bool:
        """Whether no more is asked for than it had."""
        return config.num_trials <= self.num_trials and config.time_budget_s <= self.time_budget_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """A run of the confirmation. Exactly one of measurement and failure is set."""

    config: TrialConfig
    measurement: Measurement | None = None
    failure: TrialFailure | None = None


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
    earlier_versions: tuple[str, ...] = ()
    """Of loadtune, one for each part of the run before this one. Empty: it was not resumed."""
    earlier_hostnames: tuple[str, ...] = ()
    facts: WorkloadFacts | None = None
    yours: TrialConfig | None = None
    assumed: tuple[str, ...] = ()
    warm: TrialConfig | None = None
    """Another run's winner, to be tried first."""
    recipes: tuple[RecipeChoice, ...] = ()
    ceilings: list[MemoryCeiling] = field(default_factory=list)
    free_bytes: int | None = None
    """Of the GPU, when the ceilings were found."""
    compute_points: tuple[ComputePoint, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    num_workers: tuple[int, ...] = ()
    """That are searched."""
    early_notes: tuple[str, ...] = ()
    """Of before the first trial. The stages after it write theirs anew."""
    trials: list[Trial] = field(default_factory=list)
    searched: Searched | None = None
    """None: the search has not ended, or goes on, as more is asked for."""
    confirmed: list[Confirmed] = field(default_factory=list)
    """In the order of the runs, since the last trial: before it, the finalists may have been others."""
    concluded_s: float | None = None
    """The time budget within which the confirmation ended by itself. None: it has not, or goes on."""
    remedies: Remedies | None = None
    """As the confirmation judged them."""


def write_run(run: Resumable, folder: Path) -> None:
    """Return once ``run.json`` holds all of it. Raises ResultError; the file is then as it was."""
    content = {"schema_version": SCHEMA_VERSION} | {each.name: getattr(run, each.name) for each in fields(Resumable)}
    write_whole(folder / RUN_FILE, msgspec.json.encode(content) + b"\n", resumable=True)


def read_run(folder: Path) -> Resumable:
    """What the run in this folder found so far. Raises ResultError where that cannot be read, or is not there."""
    return read_record(folder / RUN_FILE, Resumable, "run", or_else="run without --resume")


def newest_run(out: Path) -> Path:
    """The newest run's folder that can be resumed: `out` itself, one up to two folders below, or that of a result."""
    beside = out.with_name(RUN_FILE)
    if out.name == RESULT_FILE and beside.is_file():
        return beside.parent
    found = newest_with(out, RUN_FILE)
    if found is None:
        why = f"there is no {RUN_FILE} in it or up to two folders below" if out.exists() else "it does not exist"
        raise ResultError(f"{out} holds no run to resume: {why}. Give the folder of a run, or run without --resume.")
    return found.parent
