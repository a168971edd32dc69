"""How loaders are tuned in flight, and what was found and done about each: as files for the launcher, for people, and
for the next run of the same script. Needs no torch.
"""

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from loadtune.host.usable import num_local_ranks, num_ranks, rank, read_num_usable_cores
from loadtune.records.loading import Examined, LoadingStep

if TYPE_CHECKING:
    from loadtune.decide.inflight import Reading
    from loadtune.model.workers import Work
    from loadtune.records.statistics import Interval

TEST_VARIABLE = "LOADTUNE_RAISE"
"""Set in tests: an error of the tuner ends the script instead of the tuner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How loaders are tuned in flight."""

    folder: str | None = None
    """Where each process writes its account. None: nothing is written; the process prints it when it ends."""
    launcher: Sequence[str | int] = ()
    """Machine and process id of `loadtune exec`, which removes the folder. Empty: there is none."""
    max_workers: int | None = None
    """Most workers of one loader. None: cores, memory and descriptors decide."""
    freeze: Sequence[str] = ()
    """Loaders that are left alone: class names of datasets, or ``FILE:LINE``."""
    exact: bool = False
    """Leave loaders alone whose samples are random, since other workers draw other random numbers."""
    dry_run: bool = False
    """Measure and advise; switch nothing."""
    until_tuned: bool = False
    """End the script, exit code 0, once the loaders that train have settled."""
    advice: bool = False
    """Try changes of the code in a process beside the loop."""


RESULT_FILE = "inflight.json"
CACHE_VARIABLE = "LOADTUNE_CACHE"
"""Names the folder with a file for each loader, for the next run of the same script."""
_HALF_WRITTEN_S = 60.0
"""Age of a file from which on nobody writes it any more."""

KEPT_EPOCHS = 100
"""Whole epochs whose seconds are kept: enough for any interval, and a small file."""


@dataclass(slots=True, kw_only=True)
class Account:
    """One loader: the iterators over one dataset that begin at one place of the code. What `loader.tuning` is."""

    name: str
    """Class of the dataset and place in the code, as ``ImageFolder at train.py:31``."""
    rank: int = 0
    """Of its process in the job."""
    own_workers: int
    """``num_workers`` as the user wrote it."""
    num_workers: int
    """As it is now."""
    kept_workers: int | None = None
    """Those that were decided on. None: the user's."""
    state: str = "watching"
    """``watching``, ``starting``, ``judging``, ``comparing``, ``resting`` or ``left alone``."""
    reason: str | None = None
    """Why it is left alone, or stays at its workers. None: nothing to say."""
    bottleneck: str | None = None
    """What limits the loop: ``the step``, ``workers``, ``cores``, ``RAM``, ``/dev/shm``, … None: not measured."""
    samples_per_s: float | None = None
    """With the present number of workers. None: not measured."""
    num_batches: int = 0
    blocked_s: float = 0.0
    """Seconds in ``next(loader)`` since the present number of workers delivers."""
    total_s: float = 0.0
    """Seconds of the loop since then."""
    batch_size: int = 1
    """Samples of a batch."""
    num_ranks: int = 1
    """That were seen to load, this one included. Rates are of one rank; those that are printed are of all."""
    begins_s: float = 0.0
    """Of `blocked_s`: until the first batches of epochs came."""
    first_blocked_fraction: float | None = None
    """Share of the time in ``next(loader)`` with the user's workers. None: they are the present ones."""
    first_epochs_s: list[float] = field(default_factory=list)
    """Seconds of whole epochs with the user's workers, the newest `KEPT_EPOCHS`."""
    epochs_s: list[float] = field(default_factory=list)
    """The same with the present number of workers."""
    epoch_batches: int = 0
    """Batches of the last whole epoch. 0: there was none."""
    hook_s: float = 0.0
    """Seconds that the tuner took so far, those for starting workers included."""
    load_s: float | None = None
    cpu_s: float | None = None
    """Seconds in which one worker loads a batch, and its CPU seconds for that. None: not measured."""
    batch_bytes: int = 0
    batch_tensors: int = 0
    """Of the largest of the first batches."""
    draws_random: bool = False
    """Whether loading draws random numbers."""
    switches: list[dict[str, int]] = field(default_factory=list)
    """``epoch`` (from 0), ``batch`` (number in the epoch of the first batch that the new workers loaded; 0: the epoch
    began with them), ``num_workers``."""
    advice: list[str] = field(default_factory=list)
    """What else would help."""
    predicted: float | None = None
    """Times as fast with the workers that are advised. None: none are."""
    gain: float | None = None
    """Seconds a batch with the user's workers ÷ those with the kept ones. None: they were not compared."""
    gain_low: float | None = None
    gain_high: float | None = None
    """Limits of the interval of `gain`, which holds it in 95 of 100. None: measured once before and after the change,
    which does not tell a gain from a change of the machine's load."""
    steps: list[LoadingStep] = field(default_factory=list)
    """What takes the time of loading, the largest steps first. Empty: too little was seen, or nobody looked."""
    slow_worker: int | None = None
    """The one, from 0, that takes clearly longer for a batch than the others. None: there is none."""
    slow_times: float | None = None
    """How many times as long as the median worker."""
    changes: list[Examined] = field(default_factory=list)
    """Of the user's code: tried beside the loop, each on top of those before it."""
    changes_gain: float | None = None
    """Times as fast as the loop is predicted to be with all of them. None: there are none."""
    changes_reason: str | None = None
    """Why none were tried, or not all. None: nothing to say."""

    def advise(self, *texts: str) -> None:
        self.advice += [each for each in texts if each not in self.advice]

    def numbers(self) -> dict[str, float]:
        """For a logger; what was not measured is left out. ``samples_per_s``, ``num_workers``; ``blocked_fraction``:
        share of the loop's time in ``next(loader)`` since the present number of workers delivers;
        ``limited_by_loading``: 0 or 1; ``share_of_loading/RandomResizedCrop``: of each of the three largest steps."""
        found = {"num_workers": float(self.num_workers)}
        if self.samples_per_s is not None:
            found["samples_per_s"] = self.samples_per_s
        if self.total_s:
            found["blocked_fraction"] = self.blocked_s / self.total_s
        if self.bottleneck is not None:
            found["limited_by_loading"] = float(self.bottleneck != "the step")
        for step in self.steps[:3]:  # a logger may refuse a name with other characters
            found["share_of_loading/" + re.sub(r"[^\w.:-]+", " ", step.name).strip()] = step.share
        return found

    def set_rate(self, reading: "Reading", work: "Work | None") -> None:
        """It is not above what the workers can load, by their own clocks."""
        num = reading.num_workers
        able_s = (work.load_s + work.queued_s) / num if work is not None and num else 0.0
        self.samples_per_s = self.batch_size / max(reading.sustained_s, able_s)

    def told_gain(self) -> "Interval | None":
        """Seconds with the user's workers ÷ those with the ones that were kept: of whole epochs where each had two or
        more, else of batches. None: the user's were kept, or nothing was compared."""
        if self.kept_workers in (None, self.own_workers):
            return None
        from loadtune.records.statistics import Interval, ratio

        if self.kept_workers == self.num_workers and min(len(self.first_epochs_s), len(self.epochs_s)) > 1:
            return ratio(self.epochs_s, self.first_epochs_s, num_looks=1)
        return None if self.gain is None else Interval(value=self.gain, low=self.gain_low, high=self.gain_high)

    @property
    def is_proven(self) -> bool:
        """Whether the interval of the gain lies above 1."""
        gain = self.told_gain()
        return gain is not None and (gain.low or 0.0) > 1


_by_process: dict[int, list[Account]] = {}


def accounts() -> list[Account]:
    """Of all loaders of this process; a forked one has none of its parent's."""
    return _by_process.setdefault(os.getpid(), [])


def stats() -> dict[str, float]:
    """Numbers of this process's loaders, flat, for a logger: ``loadtune/ImageFolder at train.py:31/samples_per_s``.

    See `Account.numbers`. Empty: no loader was iterated yet.
    """
    return {f"loadtune/{each.name}/{key}": value for each in accounts() for key, value in each.numbers().items()}


def write_accounts(found: Sequence[Account], folder: Path, name: str = RESULT_FILE) -> None:
    """The file is whole or as it was. Raises OSError."""
    record = {"loaders": [asdict(each) for each in found]}
    for old in folder.glob(f".{name}.????????"):  # of a writer that was killed
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _HALF_WRITTEN_S:
                old.unlink()
    part = folder / f".{name}.{os.urandom(4).hex()}"
    part.write_text(json.dumps(record, indent=1))
    part.replace(folder / name)


def write_own(folder: str | None) -> None:
    """This process's, for the launcher, which may be gone. None: there is no launcher."""
    if folder is not None and accounts():  # else it is a launcher, or the server that forks a rank's workers
        with suppress(OSError):
            name = f"rank-{rank()}" if num_ranks() > 1 else str(os.getpid())  # a rank started again takes its place
            write_accounts(accounts(), Path(folder), f"{name}.json")


def read_accounts(path: Path) -> list[Account]:
    """Raises ValueError where the file is no such result of this version, OSError where it cannot be read."""
    content = path.read_bytes()
    import msgspec  # late: the script's own interpreter may lack it, and most have no such file

    try:
        found = msgspec.json.decode(content, type=dict[str, list[Account]])["loaders"]
        if msgspec.json.decode(msgspec.json.encode({"loaders": found})) != msgspec.json.decode(content):
            raise msgspec.ValidationError("its fields are others")  # msgspec leaves out those that it does not know
    except (msgspec.MsgspecError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is no result of loadtune exec, or of another version: {error}") from None
    return found


def learnt_file(account: Account, launchers: str | None, *facts: object) -> Path | None:
    """Where the account of this loader is kept. ``facts``: what else makes it the same. None: no folder is named.

    ``launchers``: folder of the launcher, for ranks that are started again.
    """
    import hashlib

    folder = os.environ.get(CACHE_VARIABLE)
    if folder is None and launchers is not None and num_ranks() > 1:
        folder = f"{launchers}/found"
    script = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0])
    same = (script, account.name, account.own_workers, read_num_usable_cores(), num_local_ranks(), *facts)
    return Path(folder) / f"{hashlib.sha256(repr(same).encode()).hexdigest()[:16]}.json" if folder else None


def read_learnt(path: Path) -> Account | None:
    """What an earlier run found about a loader. None: nothing that can be used."""
    with suppress(OSError, ValueError, ImportError):
        (found,) = read_accounts(path)
        return found if min(found.load_s or 0.0, found.cpu_s or 0.0, found.num_workers) > 0 else None
    return None


def write_learnt(path: Path, account: Account) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_accounts([account], path.parent, path.name)
