"""Remedies on a real GPU: batches that are copied ahead, and floats that are made there."""

from typing import Any

import pytest
import torch
from remedy_rig import equal, fake_images, job_with, lines_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision import transforms as v1
from workload_rig import workload_of

from loadtune.bench.training import Feed, ResidentModel, Trainer
from loadtune.records.config import LoaderConfig, Recipe

pytestmark = pytest.mark.gpu

NUM_BATCHES, BATCH_SIZE, WIDTH = 20, 64, 4096
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def numbered() -> TensorDataset:
    """Each row holds its own number: a batch that is read before it was copied holds others."""
    rows = torch.arange(NUM_BATCHES * BATCH_SIZE)
    return TensorDataset(rows[:, None].float().expand(-1, WIDTH), rows)


def busy(device: torch.device) -> None:
    """Work that keeps the stream which trains behind the copies."""
    matrix = torch.rand(2048, 2048, device=device)
    for _ in range(10):
        matrix = (matrix @ matrix).clamp(0, 1)


def test_the_pasted_lines_copy_every_batch_once_in_order() -> None:
    device = torch.device("cuda")
    loader = DataLoader(numbered(), BATCH_SIZE, pin_memory=True)
    definitions, _, _ = lines_of("copy_ahead", workload_of(numbered())).partition("for inputs, targets in")
    names: dict[str, Any] = {"torch": torch}
    exec(definitions, names)
    seen = []
    for inputs, targets in names["copied_ahead"](loader, device):
        busy(device)
        seen.append((inputs.clone(), targets.clone()))
        del inputs, targets  # their memory may be used again for the next copy
    assert len(seen) == NUM_BATCHES
    for (inputs, targets), (expected, numbers) in zip(seen, loader, strict=True):
        assert torch.equal(targets.cpu(), numbers)
        assert torch.equal(inputs.cpu(), expected)


def test_the_feed_gives_the_first_batch_twice_and_then_each_in_order() -> None:
    device = torch.device("cuda")
    job = job_with(workload_of(numbered(), nn.Linear(WIDTH, 2)), "copy_ahead")
    trainer = Trainer(ResidentModel(job, device), Recipe(), job)
    assert trainer.copies_ahead
    feed, loader = Feed(trainer), DataLoader(numbered(), BATCH_SIZE, pin_memory=True)
    seen = []
    for batch in loader:
        inputs, targets = feed.batch(batch)
        busy(device)
        seen.append((inputs.clone(), targets.clone()))
        del inputs, targets
    expected = list(loader)
    for (inputs, targets), (rows, numbers) in zip(seen, [expected[0], *expected[:-1]], strict=True):
        assert torch.equal(targets.cpu(), numbers)
        assert torch.equal(inputs.cpu(), rows)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_floats_made_on_the_gpu_are_those_of_the_workers_but_for_rounding(memory_format: Any) -> None:
    plain = workload_of(fake_images(v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)])), nn.Conv2d(3, 2, 3))
    made = []
    for job in (plain, job_with(plain, "uint8_transfer", "copy_ahead")):
        trainer = Trainer(ResidentModel(job, torch.device("cuda")), Recipe(memory_format=memory_format), job)
        (batch,) = job.loader.make(LoaderConfig(batch_size=6, pin_memory=True), sampler=range(6))
        made.append(Feed(trainer).batch(batch))
    (one, targets), (other, same_targets) = made
    assert other.dtype == torch.float32
    assert one.stride() == other.stride()
    assert torch.allclose(one, other, atol=1e-6)
    assert torch.equal(targets, same_targets)


def test_inputs_widened_on_the_gpu_are_the_rounded_ones() -> None:
    plain = workload_of(fake_images(v1.ToTensor()), nn.Conv2d(3, 2, 3))
    job = job_with(plain, "half_transfer")
    trainer = Trainer(ResidentModel(job, torch.device("cuda")), Recipe(), job)
    config = LoaderConfig(batch_size=6, pin_memory=True)
    (batch,), (floats,) = (each.loader.make(config, sampler=range(6)) for each in (job, plain))
    inputs, targets = trainer.receive(batch)
    assert equal((inputs.cpu(), targets.cpu()), (floats[0].half().float(), floats[1]))
