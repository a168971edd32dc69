"""A script's ranks: each has a session of its own, and all answer the same requests. What follows from the clock or is
said by the controller, the first rank tells the others, so that all hand out as many batches. Needs no torch.
"""

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Client, Connection
from typing import Any, NamedTuple

from loadtune.decide.ranks import Word, differences
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import TrainingRun, TrialFailure, Window
from loadtune.records.memory import FitReport
from loadtune.training.protocol import Answer, Message, Place

_PATIENCE_S = 30.0
"""With a rank that is to connect to the first one: its part of the job is being built."""


class Hello(NamedTuple):
    """What a rank says first."""

    rank: int
    num_ranks: int
    """Of the job; some may load nothing, and then never say a word."""
    num_here: int
    """Of these on its machine."""


class Lead:
    """Between the sessions of several ranks."""

    def __init__(self, place: Place) -> None:
        """Return once all are there. Raises OSError where one does not come."""
        self._followers, self._first = list[Any](), None
        if place.number == 0:
            with socket.socket(socket.AF_UNIX) as server:
                server.settimeout(_PATIENCE_S)
                server.bind(place.address)
                server.listen(place.num)
                self._followers = [Connection(server.accept()[0].detach()) for _ in range(1, place.num)]
        else:
            self._first = _connected(place.address)

    def agreed(self, value: Any) -> Any:
        """The first rank's value, which every rank asks for as often."""
        if self._first is not None:
            return self._first.recv()
        for each in self._followers:
            each.send(value)
        return value


def _connected(address: str) -> Any:
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return Client(address, "AF_UNIX")
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)


# From the controller's side


@dataclass(slots=True)
class Rank:
    """One that trains."""

    connection: Connection
    said: Hello
    heard: deque[Message] = field(default_factory=deque)
    """What is still to be put together with what the others say."""
    trained_s: float = 0.0
    """In windows of this request."""
    waited_s: float = 0.0
    """Seconds of these in which it waited for data."""
    has_ended: bool = False

    @property
    def failure(self) -> Answer | None:
        """What it answered where that is no result."""
        last = self.heard[-1] if self.heard else None
        failed = isinstance(last, Answer) and (last.value is None or isinstance(last.value, TrialFailure | Exception))
        return last if failed else None  # type: ignore[return-value]


def next_message(ranks: Sequence[Rank]) -> Message | None:
    """Of all of them together; None: not all have said theirs."""
    for rank in ranks:
        if rank.heard and (len(ranks) == 1 or isinstance(rank.heard[0], str)):
            return rank.heard.popleft()
    return _merged(ranks, [each.heard.popleft() for each in ranks]) if all(each.heard for each in ranks) else None


def cause(ranks: Sequence[Rank]) -> Answer | None:
    """Of several of which one failed: what that says, and not what follows for the others, whose collectives break.
    None: a rank just ended, and so will what started it."""
    found = [(rank.said.rank, each) for rank in ranks if (each := rank.failure) is not None]
    number, answer = min(found, key=lambda each: _follows(each[1].value), default=(0, None))
    if answer is None or (_follows(answer.value) == _MAY_FOLLOW and any(rank.has_ended for rank in ranks)):
        return None
    value = answer.value
    if isinstance(value, TrialFailure):
        value = replace(value, message=f"Rank {number}: {value.message}")
    return Answer(value, healthy=False)


_MAY_FOLLOW = 2


def _follows(value: object) -> int:
    """How likely it is that it follows from another rank's failure."""
    if not isinstance(value, TrialFailure):
        return 1
    return 0 if value.is_of_memory else _MAY_FOLLOW if value.kind == "crash" else 1


def _merged(ranks: Sequence[Rank], said: Sequence[Any]) -> Message:
    """What the ranks said to one request, or their windows of the same steps: the slowest or fullest counts."""
    first = said[0]
    if isinstance(first, Window):
        for rank, window in zip(ranks, said, strict=True):
            rank.trained_s, rank.waited_s = rank.trained_s + window.seconds, rank.waited_s + window.wait_s
        # What was taken from a queue that ran down is no throughput: the rank counts that lives off it most.
        slowest: Window = min(said, key=lambda each: (each.queue_end or 0.0) - (each.queue_start or 0.0))
        return replace(slowest, wait_s=max(each.wait_s for each in said))
    values: list[Any] = [each.value for each in said]
    merge: dict[type, Callable[[Sequence[Any]], object]]
    merge = {FitReport: _fullest, TrainingRun: partial(_slowest, ranks), WorkloadFacts: partial(_facts, ranks)}
    together = merge.get(type(values[0]))
    return Answer(together(values) if together else values[0], all(each.healthy for each in said))


def _fullest(reports: Sequence[FitReport]) -> FitReport:
    """By the share of its budget that a rank took."""
    return max(reports, key=lambda each: (not each.fits, (each.peak_bytes or 0) / (each.budget_bytes or 1)))


def _slowest(ranks: Sequence[Rank], runs: Sequence[TrainingRun]) -> TrainingRun:
    words = [
        Word(
            rank=rank.said.rank,
            cores="",
            num_cores=1.0,
            load_s=run.batch_s or None,
            waiting=rank.waited_s / max(1e-9, rank.trained_s),
            is_settled=True,
        )
        for rank, run in zip(ranks, runs, strict=True)
    ]
    for rank in ranks:
        rank.trained_s = rank.waited_s = 0.0
    peaks = [each.peak_allocated_bytes for each in runs if each.peak_allocated_bytes is not None]
    slowest = max(runs, key=lambda each: each.batch_s)
    differing = tuple(differences(words).values())
    return replace(slowest, peak_allocated_bytes=max(peaks, default=None), differing=differing)


def _facts(ranks: Sequence[Rank], facts: Sequence[WorkloadFacts]) -> WorkloadFacts:
    """What can be trained on all of these ranks."""

    def least(name: str) -> Any:
        return min((value for each in facts if (value := getattr(each, name)) is not None), default=None)

    slowest = max(facts, key=lambda each: each.sample_s)
    bounds = {name: least(name) for name in ("dataset_length", "max_workers", "fixed_batch_size")}
    return replace(
        facts[0],
        **bounds,
        num_ranks=len(facts),
        budgets_bytes={str(rank.said.rank): each.budgets_bytes["0"] for rank, each in zip(ranks, facts, strict=True)},
        memory_capacity_bytes=least("memory_capacity_bytes"),
        sample_s=slowest.sample_s,
        sample_cpu_s=slowest.sample_cpu_s,
    )
