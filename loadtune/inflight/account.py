"""What was found and done about each loader: for stderr, for loggers, as JSON, and for the next run. Needs no torch."""

import hashlib
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from loadtune.host.cpu import read_cpu_name, read_num_usable_cores
from loadtune.inflight.environment import num_local_ranks, num_ranks, rank
from loadtune.units import counted, number_text, percent_text, seconds_text

RESULT_FILE = "inflight.json"
CACHE_VARIABLE = "LOADTUNE_CACHE"
SCHEMA_VERSION = 1
_STARTING = 0.02
"""Share of the time that starts of epochs take, from which on it is told."""
_HALF_WRITTEN_S = 60.0
"""Age of a file from which on nobody writes it any more."""


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
    state: str = "watching"
    """``watching``, ``starting``, ``judging``, ``resting``, ``left alone`` or ``replaying``."""
    reason: str | None = None
    """Why it is left alone, or stays at its workers. None: nothing to say."""
    bottleneck: str | None = None
    """What limits the loop: ``the step``, ``workers``, ``cores``, ``RAM``, ``/dev/shm``, … None: not measured."""
    first_samples_per_s: float | None = None
    """With the user's settings. None: not measured."""
    samples_per_s: float | None = None
    """With those of now. None: not measured."""
    num_batches: int = 0
    blocked_s: float = 0.0
    """Seconds in ``next(loader)`` so far."""
    total_s: float = 0.0
    """Seconds of the loop so far."""
    batch_size: int = 1
    """Samples of a batch."""
    num_ranks: int = 1
    """That were seen to load, this one included. Rates are of one rank; those that are printed are of all."""
    begins_s: float = 0.0
    """Of `blocked_s`: until the first batches of epochs came."""
    earlier_blocked_s: float = 0.0
    earlier_total_s: float = 0.0
    earlier_begins_s: float = 0.0
    """Of these, what passed before the present number of workers delivered."""
    first_blocked_fraction: float | None = None
    """Share of the time in ``next(loader)`` with the user's workers. None: they are the present ones."""
    first_begin_s: float | None = None
    """Until the first batch of the first epoch came. None: not with the user's workers."""
    first_epoch_s: float | None = None
    """Seconds of a whole epoch with the user's workers. None: none was."""
    epoch_batches: int = 0
    num_epochs: int = 0
    epochs_s: float = 0.0
    """Whole epochs with the present number of workers: batches of the last one, how many, and seconds of all."""
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
    try_saves: float = 0.0
    """Share of the time blocked that the workers would save that are advised. 0: not known, or none are."""

    def advise(self, *texts: str) -> None:
        self.advice += [each for each in texts if each not in self.advice]

    def numbers(self) -> dict[str, float]:
        """For a logger; what was not measured is left out. ``samples_per_s``, ``num_workers``; ``blocked_fraction``:
        share of the loop's time in ``next(loader)`` since the present number of workers delivers;
        ``limited_by_loading``: 0 or 1."""
        total_s = self.total_s - self.earlier_total_s
        found = {"num_workers": float(self.num_workers)}
        if self.samples_per_s is not None:
            found["samples_per_s"] = self.samples_per_s
        if total_s:
            found["blocked_fraction"] = (self.blocked_s - self.earlier_blocked_s) / total_s
        if self.bottleneck is not None:
            found["limited_by_loading"] = float(self.bottleneck != "the step")
        return found

    def epochs(self) -> tuple[float, float] | None:
        """Seconds of a whole epoch with the user's workers, computed where none was whole, and with those of now."""
        begin_s, rate, before_s = self.first_begin_s, self.first_samples_per_s, self.first_epoch_s
        if before_s is None and rate and begin_s is not None:
            before_s = begin_s + self.epoch_batches * self.batch_size / rate
        return (before_s, self.epochs_s / self.num_epochs) if self.num_epochs and before_s else None

    def gain_text(self) -> str:
        """``14.6 s an epoch instead of about 33 s (2.3×)``; before a whole epoch ``165 → 1,380 samples/s (8.4×)``."""
        first, now, whole = self.first_samples_per_s, self.samples_per_s, self.epochs()
        if whole is not None:
            instead = f"{'' if self.first_epoch_s else 'about '}{seconds_text(whole[0])} ({whole[0] / whole[1]:.2g}×)"
            return f"{seconds_text(whole[1])} an epoch instead of {instead}"
        inside = " inside an epoch" if self.begins_s > 0.05 * self.total_s else ""
        of = "this rank" if self.num_ranks < 2 else f"{self.num_ranks} ranks"
        of_all = f" of {of}" if max(self.num_ranks, num_ranks()) > 1 else ""
        rates = " → ".join(number_text(rate * self.num_ranks) for rate in (first, now) if rate)
        return f"{rates} samples/s{of_all} ({now / first:.2g}×{inside})" if first and now else ""

    def change_text(self) -> str:
        """``1 → 10 workers: `` and the gain."""
        gain = self.gain_text()
        return f"{self.own_workers} → {counted(self.num_workers, 'worker')}{gain and f': {gain}'}"


_by_process: dict[int, list[Account]] = {}
_said: set[tuple[int, str]] = set()


def accounts() -> list[Account]:
    """Of all loaders of this process; a forked one has none of its parent's."""
    return _by_process.setdefault(os.getpid(), [])


def stats() -> dict[str, float]:
    """Numbers of this process's loaders, flat, for a logger: ``loadtune/ImageFolder at train.py:31/samples_per_s``.

    See `Account.numbers`. Empty: no loader was iterated yet.
    """
    return {f"loadtune/{each.name}/{key}": value for each in accounts() for key, value in each.numbers().items()}


def say(account: Account | None, text: str) -> None:
    """One line on stderr, once, of rank 0 alone. Loaders are named where there are several."""
    line = f"{'' if account is None else account.name}: {text}"
    key = os.getpid(), line
    if (rank() if account is None else account.rank) == 0 and key not in _said:
        _said.add(key)
        print_line(text if account is None or len(accounts()) < 2 else line)


def leave_alone(account: Account, reason: str) -> None:
    """A loader that torch iterates. It is said once, also where it is made anew."""
    reason += "; set num_workers yourself"
    if not any((each.name, each.reason) == (account.name, reason) for each in accounts()):
        account.state, account.reason = "left alone", reason
        accounts().append(account)
        say(account, f"left alone: {reason}")


def print_line(line: str) -> None:
    if sys.stderr is not None:
        print(f"loadtune: {line}", file=sys.stderr, flush=True)


def summary(found: Sequence[Account]) -> list[str]:
    """Lines for the end of a script, without the name of this package. Rank 0 speaks for all."""
    lines, few = list[str](), dict[str, list[str]]()
    for each in found:
        ranks = [other for other in found if other.name == each.name and other.rank != each.rank]
        if any(other.rank < each.rank for other in ranks):
            continue
        if each.state == "watching" and each.samples_per_s is None:
            few[_few_text(each)] = each.advice
            continue
        lines += _outcome(replace(each, num_ranks=max(each.num_ranks, 1 + len(ranks))))
        if ranks:
            numbers = sorted({rank.num_workers for rank in ranks})
            times = ", ".join(percent_text(rank.numbers().get("blocked_fraction")) for rank in ranks[:8])
            span = f"{numbers[0]} to {numbers[-1]} workers" if numbers[1:] else counted(numbers[0], "worker")
            which = f"rank {ranks[0].rank}" if len(ranks) == 1 else f"{len(ranks)} other ranks"
            lines.append(f"  {which}: {span}; waits {times}{', …' if ranks[8:] else ''}")
        lines += [f"  advice: {advice}" for advice in each.advice if advice not in (each.reason or "")]
    lines += [f"too few batches to tell: {', '.join(few)}"] if few else []
    return lines + list(dict.fromkeys(f"  advice: {advice}" for each in few.values() for advice in each))


def _few_text(account: Account) -> str:
    from loadtune.inflight.measure import num_needed

    had, batch_s = account.epoch_batches or account.num_batches, account.total_s / max(1, account.num_batches)
    needed = max(had, max(3, 2 * account.num_workers) + num_needed(account.num_workers, batch_s)) + 1
    return f"{account.name} ({had}{' an epoch' if account.epoch_batches else ''}; {needed} are needed)"


def _outcome(account: Account) -> list[str]:
    """One number of workers, and how long the loop waits with it."""
    own, now, is_open = account.own_workers, account.num_workers, account.state == "judging"
    kept = [own, *(at["num_workers"] for at in account.switches if at["num_workers"] != now)][-1] if is_open else now
    ended = f"; the script ended before {now} were compared with {kept}" if is_open else ""
    if kept not in (own, now):  # what was measured since is of another number
        found = f"{account.name}: {own} → {counted(kept, 'worker')}"
        return [found, f"  to keep it: DataLoader(..., num_workers={kept}){ended}"]
    share = (numbers := account.numbers()).get("blocked_fraction", 0.0)
    unknown = "the script ended before more delivered" if account.state in ("starting", "watching") else ""
    still = "no more workers were found to pay off" if share > 0.5 and account.bottleneck == "workers" else ""
    why = account.reason or (now == own and unknown) or still
    why += f", predicted {1 / (1 - account.try_saves * share):.3g} times as fast" if account.try_saves else ""
    stays, why = f"{account.name}: stays at {counted(own, 'worker')}", why and f": {why}"
    to = f"  to {'try' if is_open else 'keep'} it: DataLoader(..., num_workers={now}){ended}"
    lines = [stays + why] if now == own else [f"{account.name}: {account.change_text()}", to]
    return [*lines, f"  {_waits(account)}{'' if now == own else why}"] if "blocked_fraction" in numbers else lines


def _waits(account: Account) -> str:
    """How long the loop waits for data: seconds of an epoch where there are some, else shares of the time."""
    total_s, whole = account.total_s - account.earlier_total_s, account.epochs()
    shares = [(account.blocked_s - account.earlier_blocked_s) / total_s]
    if account.num_workers != account.own_workers and account.first_blocked_fraction is not None:
        shares.insert(0, account.first_blocked_fraction)
    begins = (account.begins_s - account.earlier_begins_s) / total_s
    if whole is None or not shares[1:]:
        starts = f", {percent_text(begins)} while epochs start" if begins > _STARTING else ""
        return f"waits for data: {' → '.join(map(percent_text, shares))} of the time{starts}"
    starts = f", {seconds_text(begins * whole[1])} of it at the start" if begins > _STARTING else ""
    spent = (seconds_text(share * epoch_s) for share, epoch_s in zip(shares, whole, strict=True))
    return f"waits for data: {' → '.join(spent)} in an epoch{starts}"


def write(found: Sequence[Account], folder: Path, name: str = RESULT_FILE) -> None:
    """The file is whole or as it was. Raises OSError."""
    machine = f"{read_cpu_name() or 'CPU'}, {counted(read_num_usable_cores(), 'core')}"
    where = {"machine": machine, "ranks": max([num_local_ranks(), *(each.rank + 1 for each in found)])}
    record = {"schema_version": SCHEMA_VERSION, **where, "loaders": [asdict(each) for each in found]}
    for old in folder.glob(f".{name}.????????"):  # of a writer that was killed
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _HALF_WRITTEN_S:
                old.unlink()
    part = folder / f".{name}.{secrets.token_hex(4)}"
    part.write_text(json.dumps(record, indent=1))
    part.replace(folder / name)


def write_own(folder: str | None) -> None:
    """This process's, for the launcher, which may be gone. None: there is no launcher."""
    if folder is not None:
        with suppress(OSError):
            name = f"rank-{rank()}" if num_ranks() > 1 else str(os.getpid())  # a rank started again takes its place
            write(accounts(), Path(folder), f"{name}.json")


@contextmanager
def ending() -> Iterator[None]:
    """The end of a training, which ends as without loadtune: what raises in here is said in a sentence."""
    try:
        yield
    except Exception as error:
        print_line(f"what was found cannot be shown ({type(error).__name__}: {error}).")


def read(path: Path) -> list[Account]:
    """Raises ValueError where the file is no such result, OSError where it cannot be read."""
    try:
        record = json.loads(path.read_text())
        if record["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"its schema_version is {record['schema_version']}, and {SCHEMA_VERSION} can be read")
        return [Account(**each) for each in record["loaders"]]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no result of loadtune exec: {error}") from None


# For the next run of the same script: a file for each loader, in the folder that $LOADTUNE_CACHE names


def learnt_file(account: Account, launchers: str | None, *facts: object) -> Path | None:
    """Where the account of this loader is kept. ``facts``: what else makes it the same. None: no folder is named.

    ``launchers``: folder of the launcher, for ranks that are started again.
    """
    folder = os.environ.get(CACHE_VARIABLE)
    if folder is None and launchers is not None and num_ranks() > 1:
        folder = f"{launchers}/found"
    script = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0])
    same = (script, account.name, account.own_workers, read_num_usable_cores(), num_local_ranks(), *facts)
    return Path(folder) / f"{hashlib.sha256(repr(same).encode()).hexdigest()[:16]}.json" if folder else None


def read_learnt(path: Path, account: Account) -> Account | None:
    """What an earlier run found about it. None: nothing that can be used."""
    with suppress(OSError, ValueError, TypeError):
        (found,) = read(path)
        measured = (found.load_s, found.cpu_s, found.first_samples_per_s, found.num_workers)
        are_numbers = all(isinstance(each, int | float) and each > 0 for each in measured)
        sizes = (found.num_workers, found.batch_bytes, found.batch_tensors)
        same = (found.name, found.own_workers) == (account.name, account.own_workers)
        return found if same and are_numbers and all(isinstance(each, int) for each in sizes) else None
    return None


def write_learnt(path: Path, account: Account) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write([account], path.parent, path.name)


LEARNT_COLUMNS = ("loader", "machine", "ranks on it", "workers", "gain")


def learnt_rows(folder: Path) -> list[tuple[str, ...]]:
    """One for each loader that is kept in a folder, as `LEARNT_COLUMNS` say; what cannot be read is left out."""
    rows = []
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError, TypeError, KeyError, ZeroDivisionError, RecursionError):
            record = json.loads(path.read_text())
            for found in read(path):
                where = (found.name, str(record["machine"]), str(record["ranks"]))
                rows.append((*where, f"{found.own_workers} → {found.num_workers}", found.gain_text()))
    return sorted(rows)
