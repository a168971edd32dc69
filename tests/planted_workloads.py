"""Workloads with one thing that is slow, put there on purpose."""

import time

import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info

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


class SlowFirstWorker(Samples):
    """One worker takes 12 ms a sample, the others 2 ms."""

    def __getitem__(self, index):
        worker = get_worker_info()
        time.sleep(0.012 if worker is not None and worker.id == 0 else 0.002)
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
    """Matrix products on a GPU, some 30 ms; on a CPU, which may be busy with others' work, 0.15 s of sleep."""

    def forward(self, images):
        if images.is_cuda:
            matrix = torch.ones(8192, 8192, device=images.device, dtype=torch.bfloat16)
            for _ in range(16):
                matrix = matrix @ matrix
        else:
            time.sleep(0.15)
        return super().forward(images)
