"""The model starts every run from the same weights, laid out as the user's own code would lay them out."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from workload_rig import workload_of

from loadtune.records.config import Recipe, WorkloadSpec
from loadtune.training.steps import ResidentModel, Trainer
from loadtune.workload.build import Workload

CPU = torch.device("cpu")


def gray() -> nn.Module:
    """Convolutions whose weights are contiguous in both layouts, and one whose are not."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(8 * 4 * 4, 3)
    )


@pytest.fixture
def workload() -> Workload:
    torch.manual_seed(0)
    dataset: Any = [(torch.zeros(1, 8, 8), 0)]
    return workload_of(dataset, gray())


def strides(model: nn.Module) -> list[tuple[int, ...]]:
    return [parameter.stride() for parameter in model.parameters()]


def samples(count: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(count, 1, 8, 8), torch.arange(count) % 3


def test_layouts_are_those_of_model_to_whatever_was_there_before(workload: Workload) -> None:
    plain, converted = strides(gray()), strides(gray().to(memory_format=torch.channels_last))
    assert plain != converted
    model = ResidentModel(workload, CPU)
    for _ in range(2):
        model.reset("channels_last")
        assert strides(model.module) == converted
        model.reset("contiguous")
        assert strides(model.module) == plain


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_batches_are_laid_out_as_inputs_to_does_it(workload: Workload, memory_format: Any) -> None:
    trainer = Trainer(ResidentModel(workload, CPU), Recipe(memory_format=memory_format), workload)
    layout = torch.channels_last if memory_format == "channels_last" else torch.preserve_format
    expected = samples()[0].to(memory_format=layout).stride()
    assert trainer.to_device(samples())[0].stride() == expected
    inputs, targets = trainer.to_device(trainer.places.repeated(trainer.to_device(samples()), 7))
    assert inputs.stride() == torch.rand(7, 1, 8, 8).to(memory_format=layout).stride()
    assert torch.equal(targets, torch.tensor([0, 1, 2, 0, 1, 2, 0]))


def test_every_run_begins_with_the_same_weights(workload: Workload) -> None:
    model = ResidentModel(workload, CPU)
    first = [parameter.detach().clone() for parameter in model.module.parameters()]
    trainer = Trainer(model, Recipe(memory_format="channels_last"), workload)
    trainer.step(trainer.to_device(samples()))
    model.drop()
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.add_(1.0)
    assert all(parameter.grad is None for parameter in model.module.parameters())
    Trainer(model, Recipe(), workload)
    assert all(torch.equal(a, b) for a, b in zip(first, model.module.parameters(), strict=True))


@pytest.mark.parametrize(("optimizer", "fused"), [("sgd", False), ("adamw", False), ("adamw", True)])
def test_fp16_trains_on_after_its_first_overflows(workload: Workload, optimizer: Any, fused: bool) -> None:
    """The scaler's first scale is too large for these inputs; a few halvings later every step counts."""
    workload = dataclasses.replace(workload, spec=WorkloadSpec(optimizer=optimizer))
    trainer = Trainer(ResidentModel(workload, CPU), Recipe(precision="fp16", fused_optimizer=fused), workload)
    batch = trainer.to_device((torch.full((4, 1, 8, 8), 20.0), torch.tensor([0, 1, 2, 0])))
    started = trainer.num_halvings()
    for _ in range(20):
        trainer.step(batch)
    settled = trainer.num_halvings()
    assert settled > started, "nothing overflowed: the test tests nothing"
    for _ in range(10):
        trainer.step(batch)
    assert trainer.num_halvings() == settled
    assert all(torch.isfinite(parameter).all() for parameter in workload.model.parameters())
