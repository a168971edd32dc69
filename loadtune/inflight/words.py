"""What people read of accounts: on stderr while a script runs, and at its end. Needs no torch."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module

from loadtune.host.usable import num_ranks, rank
from loadtune.inflight.account import Account, accounts
from loadtune.records.loading import changes_text, steps_text
from loadtune.records.statistics import gain_text as told
from loadtune.units import counted, number_text, percent_text, ratio_text, seconds_text

_STARTING = 0.02
"""Share of the time that starts of epochs take, from which on it is told."""
_LIMITED = 0.05
"""Share of the time that the loop waits, from which on it is told what loading spends its time in."""
_said: set[tuple[int, str]] = set()


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
        if each.state == "watching" and each.samples_per_s is None and each.gain is None:
            few[_few_text(each)] = each.advice
            continue
        lines += _outcome(replace(each, num_ranks=max(each.num_ranks, 1 + len(ranks))))
        if ranks:
            numbers = sorted({rank.num_workers for rank in ranks})
            times = ", ".join(percent_text(rank.numbers().get("blocked_fraction")) for rank in ranks[:8])
            span = f"{numbers[0]} to {numbers[-1]} workers" if numbers[1:] else counted(numbers[0], "worker")
            which = f"rank {ranks[0].rank}" if len(ranks) == 1 else f"{len(ranks)} other ranks"
            lines.append(f"  {which}: {span}; waits for data: {times}{', …' if ranks[8:] else ''} of the time")
        lines += [f"  advice: {advice}" for advice in each.advice if advice not in (each.reason or "")]
        lines += _about_changes(each)
    lines += [f"too few batches to measure: {'; '.join(few)}"] if few else []
    return lines + list(dict.fromkeys(f"  advice: {advice}" for each in few.values() for advice in each))


def _few_text(account: Account) -> str:
    from loadtune.decide.steps import num_needed, num_skipped  # here and below: the launcher seldom needs it

    had, batch_s = account.epoch_batches or account.num_batches, account.total_s / max(1, account.num_batches)
    needed = max(had, num_skipped(account.num_workers) + num_needed(account.num_workers, batch_s)) + 1
    has = f"has {counted(had, 'batch')} in an epoch" if account.epoch_batches else f"gave {counted(had, 'batch')}"
    return f"{account.name} {has}, and at least {needed} are needed"


def gain_text(account: Account) -> str:
    """``165 → 1,380 samples/s, 8.36× (95% interval 8.09–8.71)``, or ``an epoch takes 15 s instead of 33 s, 2.28× (…)``;
    where the interval of the gain holds 1 ``gain not proven: 1.41× (95% interval 0.93–2.02)``. Empty: nothing was
    compared."""
    gain = account.told_gain()
    if gain is None:
        return ""
    times = told(gain, "95% interval ", "measured once before and once after")
    is_kept = account.kept_workers == account.num_workers
    if not account.is_proven:
        return f"gain not proven: {times}" + ("" if gain.low is None else f"; leave num_workers={account.own_workers}")
    if is_kept and min(len(account.first_epochs_s), len(account.epochs_s)) > 1:
        now_s, first_s = (sum(each) / len(each) for each in (account.epochs_s, account.first_epochs_s))
        return f"an epoch takes {seconds_text(now_s)} instead of {seconds_text(first_s)}, {times}"
    now = account.samples_per_s if is_kept else None
    of = f" of {account.num_ranks} ranks" if account.num_ranks > 1 else " of this rank" if num_ranks() > 1 else ""
    rates = (number_text(rate * account.num_ranks) for rate in (now / gain.value, now)) if now else ()
    return f"{' → '.join(rates)} samples/s{of}, {times}" if now else times


def change_text(account: Account) -> str:
    """``1 → 10 workers`` and the gain."""
    gain, kept = gain_text(account), account.own_workers if account.kept_workers is None else account.kept_workers
    return f"{account.own_workers} → {counted(kept, 'worker')}{gain and f': {gain}'}"


_REASONS = {
    "the step": None,
    "workers": None,
    "cores": "the CPU cores are busy",
    "short epoch": "more workers would not win back their start within an epoch",
    "handing batches over": "more workers are predicted to gain nothing",
    "stream": "another number changes the order of an IterableDataset's samples, or how often each is read",
    "dry run": "--dry-run changes nothing",
    "/dev/shm": "/dev/shm allows no more workers: docker run --shm-size gives more",
    "descriptors": "the limit of open files allows no more workers: ulimit -n gives more",
    "the sampler": "no batches are requested further ahead, as the sampler may depend on your loop; a larger "
    "prefetch_factor allows more workers",
}


def reason_text(code: str | None) -> str | None:
    """Why a loop is left as it is, for people. ``code``: `Action.reason` or `Action.limit`. None: its limit says it."""
    return None if code is None else _REASONS.get(code, f"no more workers are allowed by {code}")


def _outcome(account: Account) -> list[str]:
    """What was decided, and how long the loop waits."""
    own, now, is_open = account.own_workers, account.num_workers, account.state == "judging"
    kept = own if account.kept_workers is None else account.kept_workers
    ended = f"; the script ended before {now} were compared with {kept}" if is_open else ""
    share = (numbers := account.numbers()).get("blocked_fraction", 0.0)
    early = {"starting": "the script ended before more delivered", "watching": "the script ended before a decision"}
    still = "no larger number was found to be faster" if share > 0.5 and account.bottleneck == "workers" else ""
    why = account.reason or (kept == own and early.get(account.state)) or still
    predicted = min(account.predicted or 1.0, 1 / max(0.01, 1 - share))
    why += f", predicted gain {ratio_text(predicted)}" if predicted > 1.01 else ""
    why = why and f": {why}"
    if kept != own:
        lines = [f"{account.name}: {change_text(account)}"]
        lines += [f"  to keep it: DataLoader(..., num_workers={kept}){ended}"] if account.is_proven else []
    elif is_open and now != own:
        lines = [f"{account.name}: tried {counted(now, 'worker')} instead of {own}{ended}"]
    else:
        lines = [f"{account.name}: stays at {counted(own, 'worker')}{why}"]
    is_shown = "blocked_fraction" in numbers and (now == kept or kept == own)
    lines += [f"  {_waits(account)}{'' if kept == own else why}"] if is_shown else []
    is_limited = max(share, account.first_blocked_fraction or 0.0) > _LIMITED
    return [*lines, *_about_loading(account)] if is_limited else lines


def _about_changes(account: Account) -> Iterator[str]:
    gain = account.changes_gain or 0.0
    if account.changes and gain >= import_module("loadtune.decide.advice").TELLS:
        yield f"  advice: {changes_text(account.changes, gain)}"
        yield from (f"  code ({each.title}):\n\n{each.code}\n" for each in account.changes)


def _waits(account: Account) -> str:
    """How long the loop waits for data, as shares of the time."""
    shares = [account.blocked_s / account.total_s]
    if account.num_workers != account.own_workers and account.first_blocked_fraction is not None:
        shares.insert(0, account.first_blocked_fraction)
    begins = account.begins_s / account.total_s
    starts = f" ({percent_text(begins)} at the starts of epochs)" if begins > _STARTING else ""
    return f"waits for data: {' → '.join(map(percent_text, shares))} of the time{starts}"


def _about_loading(account: Account) -> Iterator[str]:
    """What takes the time of loading: steps, and a worker that is slower than the others."""
    if account.steps:
        yield f"  {_steps_text(account)}"
    if account.slow_worker is not None and account.slow_times is not None:
        which = f"worker {account.slow_worker} (counted from 0)"
        yield f"  {which} takes {account.slow_times:.2g} times as long for a batch as the others, which wait for it"


def _steps_text(account: Account) -> str:
    """What takes the time of loading, and what follows from it. The account has steps."""
    first = account.steps[0]
    line = re.match(r"(collate_fn: )?\S+\.py:\d+(?= )", first.name)
    which, follows = line[0] if line else first.text, ""
    if (first.waits or 0.0) > 0.5:
        follows = f"; {which} mostly waits: more workers help if what it waits for serves several at once"
    elif account.bottleneck == "cores":
        follows = f"; more workers would not help, so make {which} cheaper"
    return f"loading spends {steps_text(account.steps)}{follows}"


@contextmanager
def ending() -> Iterator[None]:
    """The end of a training, which ends as without loadtune: what raises in here is said in a sentence."""
    try:
        yield
    except Exception as error:
        print_line(f"what was found cannot be shown ({type(error).__name__}: {error}).")
