"""Remedies on a real GPU: floats that are made there."""

from typing import Any

import pytest
import torch
from remedy_rig import fake_images, job_with
from torch import nn
from torchvision import transforms as v1
from workload_rig import workload_of

from loadtune.records.config import LoaderConfig, Recipe
from loadtune.training.steps import ResidentModel, Trainer

pytestmark = pytest.mark.gpu

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_floats_made_on_the_gpu_are_those_of_the_workers_but_for_rounding(memory_format: Any) -> None:
    plain = workload_of(fake_images(v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)])), nn.Conv2d(3, 2, 3))
    made = []
    for job in (plain, job_with(plain, "uint8_transfer")):
        trainer = Trainer(ResidentModel(job, torch.device("cuda")), Recipe(memory_format=memory_format), job)
        (batch,) = job.loader.make(LoaderConfig(batch_size=6, pin_memory=True), sampler=range(6))
        made.append(trainer.receive(batch))
    (one, targets), (other, same_targets) = made
    assert other.dtype == torch.float32
    assert one.stride() == other.stride()
    assert torch.allclose(one, other, atol=1e-6)
    assert torch.equal(targets, same_targets)
