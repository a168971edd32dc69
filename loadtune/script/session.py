"""The session of a training process, whose steps are those of the user's loop."""

from collections import Counter
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from loadtune.records.config import PRECISIONS, Precision, Recipe
from loadtune.records.facts import WorkloadFacts
from loadtune.script.bench import Bench
from loadtune.script.handover import Handover
from loadtune.training.__main__ import leave
from loadtune.training.describe import describe, precisions_of
from loadtune.training.protocol import OTHER_SIZE, Begin, Line
from loadtune.training.session import Session, serve
from loadtune.training.trainer import OwnStep
from loadtune.workload.batches import Batch, own_structure
from loadtune.workload.build import Workload
from loadtune.workload.loaders import LoaderParts, epoch_of

_TYPES: dict[str, Precision] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class Script:
    """What is known of the user's script once a loader of it trains."""

    loader: Any
    place: str
    """``train.py:33``, where it is iterated."""
    bench: Bench
    accumulate: int
    """Batches for a step of the optimizer."""


def serve_script(connection: Connection, script: Script) -> None:
    """Answer until the controller says that it is enough."""
    serve(connection, make=lambda begin, line: _Session(script, begin, line))
    leave(0)


class _Session(Session):
    def __init__(self, script: Script, begin: Begin, line: Line) -> None:
        assert script.bench.handover is not None
        self._script, self._handover, self._only_own_size = script, script.bench.handover, begin.only_own_size
        super().__init__(begin, line)

    def _built(self, begin: Begin) -> Workload:
        parts, spec = LoaderParts.of(self._script.loader), replace(begin.spec, accumulate=self._script.accumulate)
        return Workload(
            spec=spec,
            loader=parts,
            epoch=epoch_of(parts, spec.seed),
            model=nn.Module(),
            compute_loss=lambda model, batch: torch.zeros(()),
            num_classes=0,
            own=frozenset({"loader", "step"}),
            loss_takes="batch",
            make_step=lambda device: id,  # never made: see `_Loop`
        )

    def _trainer(self, recipe: Recipe, batch_size: int, **others: Any) -> "_Loop":
        made = super()._trainer(recipe, batch_size, **others)
        assert isinstance(made, _Loop)
        made.handover = self._handover
        return made

    @property
    def _kind(self) -> type[OwnStep]:
        return _Loop

    def recovers(self) -> bool:
        """What the loop keeps of its last batch is no leak."""
        return not self._handover.has_ended

    def describe(self) -> WorkloadFacts:
        samples, precisions, size = self._samples, self._script.bench.precisions, self._own_size
        self._line.enter("first step")
        seen = {name: self._products(name) for name in ("own", *PRECISIONS)}
        own: Precision = precisions.own or _most(seen["own"])  # type: ignore[assignment]
        # fp16 needs a scaler, which a loop in another precision has not.
        possible = [name for name in precisions_of(self._chosen) if name != "fp16" or own == "fp16"]
        able = tuple(name for name in possible if _most(seen[name]) in (name, "own"))
        is_free = self._workload.loader.batch_size_is_free and not self._only_own_size
        if is_free:
            trainer = self._trainer(Recipe(precision="own"), 2 * size)
            self._line.enter(OTHER_SIZE)
            for _ in range(2 * trainer.accumulate):
                trainer.step(samples.resident(2 * size, trainer))
                trainer.synchronize()
        found = describe(self._workload, samples, (2, 0), self._chosen, self.memory)
        return replace(
            found,
            precisions=able if own in able else ("own",),
            own_precision=own if own in able else "own",
            loader_place=self._script.place,
            fixed_batch_size=found.fixed_batch_size if is_free else size,
        )

    def _products(self, precision: Precision) -> Counter[str]:
        """Types that a step in this precision computes its products in."""
        trainer = self._trainer(Recipe(precision=precision), self._own_size)
        batch = self._samples.resident(self._own_size, trainer)
        seen = self._handover.step(own_structure(batch), precision, is_probed=True)
        trainer.synchronize()
        return seen

    @property
    def _own_size(self) -> int:
        return self._workload.loader.settings(self._samples.num).batch_size


def _most(seen: Counter[str]) -> Precision:
    """The precision that most products were in. ``own``: there was none, or it is another one."""
    return _TYPES.get(seen.most_common(1)[0][0], "own") if seen else "own"


class _Loop(OwnStep):
    """Hands batches to the user's loop, which moves them to its device itself."""

    handover: Handover

    def _begin(self) -> None: ...

    def to_device(self, batch: Batch) -> Batch:
        return batch

    def step(self, batch: Batch) -> None:
        self.handover.step(own_structure(batch), self.recipe.precision)

    def evaluate(self, batch: Batch) -> None:
        """The script's own validation is not seen."""
