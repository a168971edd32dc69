"""The journal of a run: everything it finds, as JSON lines, each on the disk before the run goes on.

In: what was just found. Out: lines of ``journal.jsonl``, and what was left there before an interruption. Beside
``study.db``, which keeps a figure a trial: here is the whole measurement, window by window, and what the probes found
before it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtune.errors import ResultError
from loadtune.records import (
    SCHEMA_VERSION,
    ComputePoint,
    Device,
    HostFacts,
    Measurement,
    MemoryCeiling,
    RecipeChoice,
    Remedies,
    RemedyMode,
    Trial,
    TrialConfig,
    TrialFailure,
    TuneConfig,
    WorkloadFacts,
)
from loadtune.report.store import RESULT_FILE, newest_with, not_written

JOURNAL_FILE = "journal.jsonl"


class Head(msgspec.Struct, frozen=True, tag="start"):
    """A run starts: first of all, and again with every resumption."""

    config: TuneConfig
    host: HostFacts
    device: Device
    schema_version: int = SCHEMA_VERSION
    loadtune_version: str | None = None
    """None: it was not kept then."""


class Probed(msgspec.Struct, frozen=True, tag="probed"):
    """What the stages before the study found so far; fields as in `TuningResult`. The last such line counts."""

    facts: WorkloadFacts | None = None
    yours: TrialConfig | None = None
    assumed: tuple[str, ...] = ()
    recipes: tuple[RecipeChoice, ...] = ()
    ceilings: tuple[MemoryCeiling, ...] = ()
    free_bytes: int | None = None
    """Of the GPU, when the ceilings were found."""
    compute_points: tuple[ComputePoint, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    num_workers: tuple[int, ...] = ()
    """That are searched, like `batch_sizes`. Empty: an older version did not keep them."""
    warm: TrialConfig | None = None
    """Another run's winner, as it was when the run began."""
    notes: tuple[str, ...] = ()


class Ahead(msgspec.Struct, frozen=True, tag="ahead"):
    """The user's own settings were timed before the memory was probed."""

    trial: Trial


class Tried(msgspec.Struct, frozen=True, tag="trial"):
    """A trial ended."""

    trial: Trial


class Searched(msgspec.Struct, frozen=True, tag="searched"):
    """The search ended by itself, within this many trials and seconds."""

    num_trials: int
    time_budget_s: float
    note: str | None = None
    """What the result says of it."""

    def covers(self, config: TuneConfig) -> bool:
        """Whether no more is asked for than it had."""
        return config.num_trials <= self.num_trials and config.time_budget_s <= self.time_budget_s


class Verified(msgspec.Struct, frozen=True, tag="verified"):
    """After the search, the predicted ceiling of one precision was replaced by a verified one."""

    ceiling: MemoryCeiling


class Reopened(msgspec.Struct, frozen=True, tag="reopened"):
    """Further trials were asked for."""


class Confirmed(msgspec.Struct, frozen=True, tag="confirmation"):
    """A run of the confirmation ended, in one of these two ways."""

    config: TrialConfig
    measurement: Measurement | None = None
    failure: TrialFailure | None = None


class Concluded(msgspec.Struct, frozen=True, tag="concluded"):
    """The confirmation ended by itself, within this time budget."""

    time_budget_s: float


class Timed(msgspec.Struct, frozen=True, tag="compute"):
    """The confirmation timed a size that the compute curve had left out."""

    point: ComputePoint


class Remedied(msgspec.Struct, frozen=True, tag="remedies"):
    """The remedies of this winner were tried."""

    winner: TrialConfig
    remedies: Remedies
    mode: RemedyMode
    is_complete: bool
    """Whether nothing was left out for want of time."""


Line = Remedied | Timed | Head | Probed | Ahead | Tried | Searched | Verified | Reopened | Confirmed | Concluded


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What was left before."""

    heads: tuple[Head, ...]
    """At least one: a run starts, and goes on."""
    probed: Probed
    ahead: Trial | None = None
    """Timed before the study asked for it."""
    trials: tuple[Trial, ...]
    timed: tuple[ComputePoint, ...]
    """Beside those of the curve."""
    verified: tuple[MemoryCeiling, ...] = ()
    """In place of those of `probed`."""
    searched: Searched | None = None
    """None: the search had not ended, or was reopened since."""
    confirmed: tuple[Confirmed, ...]
    """Since the last trial that was run: what was confirmed before it was another choice of finalists."""
    concluded: Concluded | None = None
    """Likewise. None: the confirmation had not ended."""
    remedied: Remedied | None = None
    """The last. None: none were tried."""

    @property
    def num_run(self) -> int:
        """Trials that were run, what was timed ahead of the first one among them."""
        return len(self.trials) or int(self.ahead is not None)

    @property
    def head(self) -> Head:
        """The last: its config is the one to go on with."""
        return self.heads[-1]


class Journal:
    """Appends to a run's journal. A line that a crash cut short is taken off first."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL_FILE
        if self._path.exists():
            whole = self._path.read_bytes().rpartition(b"\n")
            os.truncate(self._path, len(whole[0]) + len(whole[1]))

    def keep(self, line: Line) -> None:
        """Write the line, and return once it would survive a crash of the machine."""
        content = msgspec.json.encode(line) + b"\n"
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            with self._path.open("ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self._path, size)  # no half of a line before the next one
            raise not_written(self._path, error, len(content), resumable=True) from error


def read_journal(folder: Path) -> Kept:
    """What the sessions in this run's folder found. Raises ResultError where that cannot be read, or is not there."""
    path = folder / JOURNAL_FILE
    try:
        lines = list(_lines(path))
    except OSError as error:
        raise ResultError(
            f"{path} cannot be read ({error.strerror or error}), so there is nothing to resume. Give the folder of a "
            "run, or run without --resume."
        ) from error
    heads = [line for line in lines if isinstance(line, Head)]
    if not heads:
        raise ResultError(f"{path} has no complete line, so there is nothing to resume. Run without --resume.")
    run = (at for at, line in enumerate(lines) if isinstance(line, Tried))
    since = max(run, default=0)
    return Kept(
        heads=tuple(heads),
        probed=next((line for line in reversed(lines) if isinstance(line, Probed)), Probed()),
        ahead=next((line.trial for line in lines if isinstance(line, Ahead)), None),
        trials=tuple(line.trial for line in lines if isinstance(line, Tried)),
        timed=tuple(line.point for line in lines if isinstance(line, Timed)),
        verified=tuple(line.ceiling for line in lines if isinstance(line, Verified)),
        searched=_search_end(lines[since:]),
        confirmed=tuple(line for line in lines[since:] if isinstance(line, Confirmed)),
        concluded=next((line for line in reversed(lines[since:]) if isinstance(line, Concluded)), None),
        remedied=next((line for line in reversed(lines) if isinstance(line, Remedied)), None),
    )


def _search_end(lines: Sequence[Line]) -> Searched | None:
    last = next((line for line in reversed(lines) if isinstance(line, Searched | Reopened)), None)
    return last if isinstance(last, Searched) else None


def newest_run(out: Path) -> Path:
    """The newest run's folder that can be resumed: `out` itself, one up to two folders below, or that of a result."""
    journal = out.with_name(JOURNAL_FILE)
    if out.name == RESULT_FILE and journal.is_file():
        return journal.parent
    found = newest_with(out, JOURNAL_FILE)
    if found is None:
        why = f"there is no {JOURNAL_FILE} in it or up to two folders below" if out.exists() else "it does not exist"
        raise ResultError(f"{out} holds no run to resume: {why}. Give the folder of a run, or run without --resume.")
    return found.parent


def _lines(path: Path) -> Iterator[Line]:
    """Every whole line; the last is not whole where a crash came in between."""
    for number, content in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            version = msgspec.json.decode(content, type=_Version).schema_version
            if version > SCHEMA_VERSION:
                raise ResultError(
                    f"{path} was written by a newer loadtune: its schema_version is {version}, this one reads up to "
                    f"{SCHEMA_VERSION}. Update loadtune, or run without --resume."
                )
            yield msgspec.json.decode(content, type=Line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ResultError(
                f"Line {number} of {path} is damaged: {error}. A run can be resumed only from an unchanged journal. "
                "Run without --resume."
            ) from error


class _Version(msgspec.Struct):
    """The one field whose meaning no version may change; only a `Head` has it."""

    schema_version: int = 0
