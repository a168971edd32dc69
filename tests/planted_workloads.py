"""Workloads with one thing that is slow, put there on purpose."""

import time

import torch
from torch import nn
from torch.utils.data import Dataset

NUM_CLASSES = 3
LENGTH = 8192


class Samples(Dataset):
    """Nothing is slow: one tensor, and good labels."""

    shape = (3, 8, 8)

    def __init__(self):
        self._sample = torch.ones(self.shape)

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return self._sample, index % NUM_CLASSES


class SlowSamples(Samples):
    """5 ms each, whoever makes them."""

    def __getitem__(self, index):
        time.sleep(0.005)
        return super().__getitem__(index)


class LargeSamples(Samples):
    """3 MiB each: a batch of 64 takes 192 MiB on its way to the device."""

    shape = (3, 512, 512)


class Linear(nn.Module):
    """Sums up, then one matrix: whatever the image's size, a step takes less than a millisecond."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, NUM_CLASSES)

    def forward(self, images):
        return self.layer(images.mean((2, 3)))


class SlowStep(Linear):
    """Matrix products on a GPU, some 30 ms."""

    def forward(self, images):
        matrix = torch.ones(8192, 8192, device=images.device, dtype=torch.bfloat16)
        for _ in range(16):
            matrix = matrix @ matrix
        return super().forward(images)
