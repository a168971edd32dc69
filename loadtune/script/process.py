"""The process of the user's script from the outside, and what its ranks say, put together. Needs no torch.

Each rank has a session of its own, and all answer the same requests.
"""

import math
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from loadtune.errors import UsageError
from loadtune.inflight.hook import hooked
from loadtune.inflight.readings import Word, differences
from loadtune.records.facts import Device, WorkloadFacts
from loadtune.records.measurement import TrainingRun, TrialFailure, Window
from loadtune.records.memory import FitReport
from loadtune.script import launch, protect
from loadtune.script.bench import RUN_VARIABLE, Hello
from loadtune.script.protect import Protection
from loadtune.stream.shm_cleanup import kill_group
from loadtune.training.process import STOP, Answer, Begin, BoundedLog, Message, Place, TrainingProcess, environment_of

_OFF = {"LOADTUNE_TUNING": "1", "WANDB_MODE": "disabled", "MLFLOW_TRACKING_URI": ""}
"""What the script is told: it is tuned, and nothing of it is logged elsewhere."""
_PATIENCE_S = 10.0
"""With the other ranks, once one trains: each does after its second step, and they step together."""
_FAILING_S = 2.0
"""For the other ranks to fail, once one did."""


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


class ScriptProcess(TrainingProcess):
    """A running script. Its ranks connect once a loader of theirs is iterated, and speak once one trains."""

    def __init__(
        self,
        command: Sequence[str],
        protection: Protection,
        device: Device,
        log_path: Path,
        scratch: Path,
        *,
        others: Sequence[str] = (),
    ) -> None:
        """``protection``: what keeps the script from changing what existed. ``others``: UUIDs of GPUs that it sees
        after the device."""
        self.log, log = BoundedLog(log_path), log_path.open("ab")
        self._waiting, self._connections, self._ranks = list[object](), list[Connection](), list[Rank]()
        self._complete_s = self._failed_s = math.inf
        self._phase = "start"
        self._late: int | None = None
        """A rank that came after the others had begun."""
        self._server = socket.socket(socket.AF_UNIX)
        self._address = scratch / f"script-{os.urandom(4).hex()}"
        self._server.bind(str(self._address))
        self._server.listen()
        environment = environment_of(device, scratch)
        if others:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join((device.uuid or "", *others))
        given: dict[str, object] = {"folder": str(scratch), "socket": str(self._address)}
        given["step"] = os.environ.get("SLURM_STEPID")
        if protection.way == "audit":
            caches = [each for each in protect.caches_of(os.environ) if not launch.below(os.getcwd(), each)]
            given["audit"] = {"began_s": protection.began_s, "free": [str(scratch), *caches]}
        environment = hooked(environment | _OFF, RUN_VARIABLE, given)
        self._tidying = subprocess.Popen(
            [sys.executable, "-I", "-S", launch.__file__, str(scratch)], stdin=subprocess.PIPE, start_new_session=True
        )
        protect.forget(scratch)
        argv = protect.command(protection, command, Path.cwd(), scratch, keep=[scratch])
        try:
            with log:
                self._process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
                )
        except OSError as error:
            self._close_all()
            raise UsageError(f"{command[0]} cannot be run ({error.strerror}). Give a command after --.") from None

    def send(self, message: object) -> None:
        """To every rank; that it is enough to the first one, which tells the others."""
        if self._is_complete() and not self._waiting:
            self._send(message)
        else:
            self._waiting.append(message)

    def _send(self, message: object) -> None:
        for number, rank in enumerate(self._ranks[: 1 if message == STOP else None]):
            if isinstance(message, Begin) and len(self._ranks) > 1:
                message = replace(message, place=Place(number, len(self._ranks), f"{self._address}-lead"))
            with suppress(OSError):  # that it is gone shows in `receive`
                rank.connection.send(message)

    def receive(self, timeout_s: float) -> Message | None:
        until_s = time.monotonic() + timeout_s
        ready: list[Any] = [self._server]
        while ready or time.monotonic() < until_s:
            wait_s = 0.0 if ready else max(0.0, until_s - time.monotonic())
            speaking: list[Any] = [self._server, *self._connections]
            ready = select.select(speaking, (), (), wait_s)[0]
            for each in ready:
                if each is self._server:
                    self._connections.append(Connection(self._server.accept()[0].detach()))
                    continue
                try:
                    self._hear(each, each.recv())
                except (EOFError, OSError):
                    self._connections.remove(each)
                    for rank in (rank for rank in self._ranks if rank.connection is each):
                        rank.has_ended = True
            if self._is_complete() and self._waiting:
                self._ranks.sort(key=lambda rank: rank.said.rank)
                while self._waiting:
                    self._send(self._waiting.pop(0))
            message = next_message(self._ranks) if self._is_complete() and not self._failed() else None
            if message is None and not ready:
                message = self._failure()
            if message is not None:
                return message
        return None

    def _failed(self) -> list[Rank]:
        """Ranks that ended, or answered with a failure, and have no more to say before."""
        failed = (rank for rank in self._ranks if rank.has_ended or rank.failure is not None)
        return [rank for rank in failed if len(self._ranks) > 1 or not rank.heard]

    def _failure(self) -> Message | None:
        """Of all ranks where one failed: what the others say meanwhile tells whose failure it was. None: none did, or
        the command itself is about to end."""
        if self._late is not None:
            return self._crash(f"Rank {self._late} began to train after the others.")
        if not self._is_complete() or not (failed := self._failed()):
            return None
        self._failed_s = min(self._failed_s, time.monotonic())
        passed_s, has_exited = time.monotonic() - self._failed_s, self.has_exited()
        is_known = len(failed) == len(self._ranks) or has_exited or passed_s > _FAILING_S
        found = cause(self._ranks) if is_known else None
        if found is None and passed_s > _PATIENCE_S and not has_exited:
            return self._crash(f"Rank {failed[0].said.rank} ended.")
        return found

    def _crash(self, message: str) -> Answer:
        return Answer(TrialFailure(kind="crash", phase=self._phase, message=message), healthy=False)

    def _hear(self, connection: Connection, message: Any) -> None:
        if not isinstance(message, Hello):
            self._phase = message if isinstance(message, str) else self._phase
            next(rank for rank in self._ranks if rank.connection is connection).heard.append(message)
            return
        if message.num_here < message.num_ranks:
            raise UsageError(
                f"{message.num_here} of {message.num_ranks} ranks are on this machine, and `loadtune run` takes one "
                "machine. Start as many ranks as it has GPUs."
            )
        if not self._waiting:
            self._late = message.rank
            return
        self._ranks.append(Rank(connection, message))
        patience_s = _PATIENCE_S if len(self._ranks) < message.num_ranks else 0.0
        self._complete_s = min(self._complete_s, time.monotonic() + patience_s)

    def _is_complete(self) -> bool:
        """Whether all ranks that load have spoken: they step together, so those that do not, load nothing."""
        return time.monotonic() >= self._complete_s

    def loading(self) -> tuple[()]:
        return ()

    def _close_all(self) -> None:
        for process in launch.processes_of(str(self._address.parent)):  # ranks may be in groups of their own
            with suppress(ProcessLookupError):
                kill_group(os.getpgid(process))
        self._tidying.communicate(b"the folder is wanted")
        self._server.close()
        for each in self._connections:
            each.close()


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
