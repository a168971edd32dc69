"""The session of a training process, whose steps are those of the user's loop. Both run in one thread, by turns, each a
greenlet: a turn costs a microsecond, and signals and what torch keeps by thread are those of the loop.
"""

import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Client, Connection
from typing import Any, NamedTuple

import torch
from greenlet import getcurrent, greenlet
from torch import nn

from loadtune.records.config import Precision, Recipe
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import MEMORY_KINDS
from loadtune.script.precision import Precisions
from loadtune.training.__main__ import leave
from loadtune.training.describe import describe, precisions_of
from loadtune.training.process import TRY, Begin, Line, Place
from loadtune.training.session import Session, serve
from loadtune.training.steps import Trainer
from loadtune.workload.batches import Batch, map_tensors, own_structure
from loadtune.workload.build import Workload
from loadtune.workload.loaders import LoaderParts, epoch_of

_PATIENCE_S = 30.0
"""With a rank that is to connect to the first one: its part of the job is being built."""
_TWICE, _HALF = f"{TRY}twice the batch size", f"{TRY}half the batch size"
_TYPES: dict[str, Precision] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class Handed(NamedTuple):
    """What the loop gets."""

    batch: Any
    recipe: Recipe
    """To be trained in."""
    is_probed: bool
    """Whether somebody wants to know what it is computed in."""


class Handover:
    """The loop's ``next(loader)`` returns what the session gives to `step`, which returns once the loop asks again."""

    def __init__(self, serve: Callable[["Handover"], object]) -> None:
        """``serve``: the session, which begins with the first `next_batch`."""
        self._session, self._loop = greenlet(partial(serve, self)), getcurrent()
        self.has_ended = False

    def step(self, batch: Any, recipe: Recipe, *, is_probed: bool = False) -> Counter[str]:
        """The session's side: elements of products by type. Raises what the loop raises, or ScriptEndedError."""
        products: Counter[str] = self._loop.switch(Handed(batch, recipe, is_probed))
        return products

    def next_batch(self, products: Counter[str]) -> Handed:
        """The loop's side. ``products``: of the step that ends."""
        self._loop = getcurrent()
        handed: Handed = self._session.switch(*[products] if self._session else [])
        return handed

    def end(self, error: BaseException) -> None:
        """The loop's side: it asks for no further batch. Does not return, if the session has begun."""
        self.has_ended = True
        if self._session:
            self._session.throw(error)


@dataclass(frozen=True, slots=True)
class Script:
    """What is known of the user's script once a loader of it trains."""

    loader: Any
    place: str
    """``train.py:33``, where it is iterated."""
    precisions: Precisions
    accumulate: int
    """Batches for a step of the optimizer."""


def serve_script(connection: Connection, script: Script, handover: Handover) -> None:
    """Answer until the controller says that it is enough."""
    serve(connection, make=lambda begin, line: _Session(script, handover, begin, line))
    leave(0)


class Lead:
    """Between the sessions of several ranks. What follows from the clock or is said by the controller, the first rank
    tells the others, so that all hand out as many batches."""

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


class _Loop(Trainer):
    """Hands batches to the user's loop, which moves them to its device itself."""

    def __init__(self, handover: Handover, *given: Any, **named: Any) -> None:
        self._handover = handover
        super().__init__(*given, **named)

    def _begin(self) -> None: ...

    def to_device(self, batch: Batch) -> Batch:
        """Page-locked: then the loop's own copy of a resident batch takes next to no time."""
        return map_tensors(batch, _pinned) if self.device.type == "cuda" else batch

    def receive(self, batch: Batch) -> Batch:
        return batch

    def step(self, batch: Batch) -> None:
        self._handover.step(own_structure(batch), self.recipe)

    def evaluate(self, batch: Batch) -> None:
        """The script's own validation is not seen."""


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    try:
        return tensor.pin_memory()
    except RuntimeError:  # it is on a device already, or sparse; or the host refuses
        return tensor


def _least_memory(begin: Begin, gpu: int) -> int | None:
    """What was asked for, or the script itself allows, which older torch does not tell. None: there is no limit."""
    told: Callable[[int], float] | None = getattr(torch.cuda.memory, "get_per_process_memory_fraction", None)
    if begin.device.kind != "cuda" or told is None or (share := told(gpu)) == 1.0:
        return begin.max_memory_bytes
    own = int(share * torch.cuda.get_device_properties(gpu).total_memory)
    return own if begin.max_memory_bytes is None else min(own, begin.max_memory_bytes)


class _Session(Session):
    def __init__(self, script: Script, handover: Handover, begin: Begin, line: Line) -> None:
        if begin.place is not None:
            line.agreed = Lead(begin.place).agreed
        self._script, self._handover, self._failed = script, handover, begin.failed
        self._accumulate = line.agreed(script.accumulate)
        script.precisions.switches |= set(begin.autocast_places)
        self._trains_by = partial(_Loop, self._handover)
        self._benchmarks, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
        super().__init__(replace(begin, max_memory_bytes=_least_memory(begin, self._gpu())), line)

    def _gpu(self) -> int:
        return self._script.precisions.gpu or 0

    def _built(self, begin: Begin) -> Workload:
        parts, spec = LoaderParts.of(self._script.loader), replace(begin.spec, accumulate=self._accumulate)
        return Workload(
            spec=spec,
            loader=parts,
            epoch=epoch_of(parts, spec.seed),
            model=nn.Module(),
            compute_loss=lambda model, batch: torch.zeros(()),
            num_classes=0,
            own=frozenset({"loader"}),
            loss_takes="batch",
        )

    def recovers(self) -> bool:
        """What the loop keeps of its last batch is no leak."""
        return not self._handover.has_ended

    def describe(self) -> WorkloadFacts:
        samples, precisions = self._samples, self._script.precisions
        size = self._workload.loader.settings(samples.num).batch_size
        seen = {"own": self._products("own", size)}
        own: Precision = precisions.own or _most(seen["own"])  # type: ignore[assignment]
        # What may end the script is tried once: out of memory at twice the size, half of it is.
        other, phase = (size // 2, _HALF) if self._failed.get(_TWICE) in MEMORY_KINDS else (2 * size, _TWICE)
        is_free = self._workload.loader.batch_size_is_free and other > 0 and phase not in self._failed
        is_free = self._line.agreed(is_free)
        if is_free:
            same = min(seen["own"].total(), self._products("own", size).total())  # one may be beside a validation
            tried = [self._products("own", other, phase).total() for _ in range(2 * self._accumulate + 1)]
            # The first may be of the batch before: Accelerate fetches one ahead. Else the loop cuts its batches.
            is_free = self._line.agreed(same == 0 or min(tried[1:]) != same)
        few = min(size, 4) if is_free and self._chosen.kind == "cpu" else size  # bf16 may be a dozen times slower there
        # fp16 needs a scaler, which a loop in another precision has not.
        failed = {*self._failed, *([TRY + "fp16"] if own != "fp16" else [])}
        possible = self._line.agreed([name for name in precisions_of(self._chosen) if TRY + name not in failed])
        seen |= {name: self._products(name, few, TRY + name) for name in possible}
        able = tuple(name for name in possible if _most(seen[name]) in (name, "own"))
        self._line.enter("prepare")
        found = describe(self._workload, samples, (2, 0), self._chosen, self.memory)
        return replace(
            found,
            num_parameters=None,
            precisions=able if own in able else ("own",),
            own_precision=own if own in able else "own",
            loader_place=self._script.place,
            budgets_bytes={"0": self.memory.budget_bytes()},
            fixed_batch_size=found.fixed_batch_size if is_free else size,
            takes_channels_last=self._line.agreed(found.takes_channels_last and precisions.may_lay_out()),
            autocast_places=tuple(sorted(precisions.switches)),
            cudnn_benchmark=self._benchmarks and self._chosen.kind == "cuda",
        )

    def _products(self, precision: Precision, size: int, phase: str = "first step") -> Counter[str]:
        """Elements of the products of a step with a batch of this size in this precision, by their type."""
        trainer = self._trainer(Recipe(precision=precision), size)
        self._line.enter(phase)
        batch = self._samples.resident(size, trainer)
        seen = self._handover.step(own_structure(batch), trainer.recipe, is_probed=True)
        trainer.synchronize()
        return seen


def _most(seen: Counter[str]) -> Precision:
    """The precision that most products were in. ``own``: there was none, or it is another one."""
    return _TYPES.get(seen.most_common(1)[0][0], "own") if seen else "own"
