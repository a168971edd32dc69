"""Remedies that change settings alone: what they change, where they apply, and the line to paste."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from remedy_rig import CPU, LOADER, Table, job_with, lines_of, situation
from torch import nn
from torch.utils.data import DataLoader
from workload_rig import workload_of

from loadtune.records import LateBatches, Recipe
from loadtune.remedies import REMEDIES, in_order


@pytest.mark.parametrize("name", ["unordered", "compiled", "fused_optimizer"])
def test_the_job_itself_stays(name: str) -> None:
    job = workload_of(Table())
    assert job_with(job, name) is job


def test_batches_out_of_order_where_several_workers_make_them() -> None:
    offer = REMEDIES["unordered"].offer
    found = offer(situation())
    assert found == replace(situation().config, loader=replace(LOADER, in_order=False))
    assert offer(situation(loader=replace(LOADER, num_workers=1))) is None
    assert offer(situation(loader=replace(LOADER, in_order=False))) is None
    names: dict[str, Any] = {"dataset": Table(), "DataLoader": DataLoader}
    exec(lines_of("unordered", workload_of(Table())), names)
    assert names["loader"].in_order is False


def test_out_of_order_gains_at_most_what_is_waited_for_late_batches() -> None:
    remedy = REMEDIES["unordered"]
    assert remedy.gain(situation()) is None
    late = LateBatches(by="samples", ratio=4.0, wait_fraction=0.4)
    gain = remedy.gain(situation(late=late, wait_fraction=0.5))
    assert gain is not None
    assert gain.low == 1.0
    assert gain.high == pytest.approx(1 / 0.8)
    assert 1.0 < gain.value < gain.high


def test_compiled_on_a_gpu_where_it_is_not_yet() -> None:
    offer = REMEDIES["compiled"].offer
    found = offer(situation())
    assert found is not None
    assert found.recipe == Recipe(precision="fp16", compile=True)
    assert offer(situation(device=CPU)) is None
    assert offer(situation(recipe=Recipe(compile=True))) is None
    assert offer(situation(recipe=Recipe(precision="own"))) is None
    names: dict[str, Any] = {"torch": torch, "model": nn.Linear(2, 2)}
    exec(lines_of("compiled", workload_of(Table())), names)
    assert type(names["model"]).__name__ == "OptimizedModule"


def test_remedies_are_named_by_their_module_and_applied_in_one_order() -> None:
    assert list(REMEDIES) == [remedy.name for remedy in REMEDIES.values()]
    assert in_order(("uint8_transfer", "tensor_decoding")) == ("tensor_decoding", "uint8_transfer")
    assert in_order(tuple(reversed(REMEDIES))) == tuple(REMEDIES)
