"""Tiny datasets and models that the training's tests name by import path; each misbehaves in one way, or not at all."""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import PIL.Image
import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info

from loadtune.training import memory as bench_memory
from loadtune.training.memory import CpuMemory

NUM_CLASSES = 3
LENGTH = 512
BAD_INDEX = 5
VOCABULARY = 50


class Images(Dataset):
    """Small images with good labels."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return torch.full((3, 8, 8), float(index % 7)), index % NUM_CLASSES


class SlowImages(Images):
    """5 ms a sample: the loader is the wall, also on a machine that is busy with others."""

    def __getitem__(self, index):
        time.sleep(0.005)
        return super().__getitem__(index)


class RunsProcesses(Images):
    """A decoder that is a process of its own: one for each sample, which takes 30 ms of CPU time."""

    def __getitem__(self, index):
        subprocess.run([sys.executable, "-SEc", "import time\nwhile time.process_time() < 0.03: pass"], check=True)
        return super().__getitem__(index)


class Misbehaves(Images):
    """Good, until a file says what a sample does, in which process and which sample: `training_rig.fault` writes it."""

    def __init__(self):
        self._fault, self._kept = pathlib.Path(os.environ["LOADTUNE_TEST_FAULT"]), []

    def __getitem__(self, index):
        if self._fault.exists():
            what, where, which = self._fault.read_text().split()
            here = "main" if get_worker_info() is None else "worker"
            if where in (here, "any") and which in (str(index), "any"):
                getattr(self, what)()
        return super().__getitem__(index)

    def fail(self):
        raise ValueError("broken sample")

    def exit(self):
        os._exit(3)

    def crash(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def abort(self):
        os.abort()

    def hang(self):
        self._fault.with_name("reached").touch()
        time.sleep(3600)

    def print(self):
        print("x" * 1023)

    def litter(self):
        """What a worker leaves that is killed while it makes a batch, and while its temporary files are there."""
        pathlib.Path(f"/dev/shm/torch_{os.getpid()}_planted").touch()
        pathlib.Path(tempfile.mkdtemp(), "of a worker").touch()

    def keep(self):
        self._kept.append(b"x" * (512 << 10))
        time.sleep(0.005)


class FewSlowImages(SlowImages):
    """An epoch of three batches of 8, and a rest."""

    def __len__(self):
        return 25


class HeldOnceATrialIsKept(SlowImages):
    """Where a file ``hold`` lies in the working directory, workers wait from the first trial that a run has kept on."""

    def __getitem__(self, index):
        while get_worker_info() is not None and pathlib.Path("hold").exists() and any(map(has_trial, kept_runs())):
            time.sleep(0.05)
        return super().__getitem__(index)


def kept_runs():
    return pathlib.Path("kept").glob("*/*/run.json")


def has_trial(path):
    return json.loads(path.read_text()).get("trials")


class RaisesLater(Images):
    """Most samples are broken; those that are read first are not."""

    def __getitem__(self, index):
        if index >= BAD_INDEX:
            raise ValueError("broken sample")
        return super().__getitem__(index)


class RaisesAtOnce(Images):
    def __getitem__(self, index):
        raise KeyError("label missing")


class CrashesAtIndex(Images):
    """One file that makes its decoder crash."""

    def __getitem__(self, index):
        if index == BAD_INDEX and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().__getitem__(index)


class AllNan(Images):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image * float("nan"), label


class OddShapes(Images):
    def __getitem__(self, index):
        return torch.zeros(3, 8, 8 + index % 5), 0


def raising_factory():
    raise OSError("no such disk")


needs_arguments = 7


class Linear(nn.Module):
    """One matrix: a step takes less than a millisecond."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3 * 8 * 8, NUM_CLASSES)

    def forward(self, images):
        return self.layer(images.flatten(1))


class NanInBf16(Linear):
    """Overflows where autocast narrows its numbers, as a model may in fp16. A step takes about as long in each."""

    def forward(self, images):
        time.sleep(0.005)
        answer = super().forward(images)
        return answer * float("nan") if answer.dtype == torch.bfloat16 else answer


class MisbehavesByBatch(Linear):
    """A batch of exactly 5 samples ends the process."""

    def forward(self, images):
        if len(images) == 5:  # C++ that runs out of memory where nothing catches it, as in a thread: the process aborts
            ctypes.CDLL("libstdc++.so.6")["_ZSt17__throw_bad_allocv"]()
        return super().forward(images)


class OutOfMemoryInEvaluation(Linear):
    def forward(self, images):
        if not self.training:
            torch.empty(1 << 60, dtype=torch.uint8)
        return super().forward(images)


class ClaimsOutOfMemoryAbove4(Linear):
    """Says of itself what only CUDA's allocator may say."""

    def forward(self, images):
        if len(images) > 4:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(images)


class Wide(nn.Module):
    """4 MB an activation and sample, and four of them at once."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1_000_000))

    def forward(self, images):
        wide = (images.mean((1, 2, 3)).unsqueeze(1) * self.scale).sigmoid().exp()
        return wide[:, : NUM_CLASSES * 1000].unflatten(1, (NUM_CLASSES, -1)).mean(2)


def wide_on_a_small_budget():
    """Room for half a GiB more than is taken while the model is built."""
    budget = bench_memory.rss_bytes() + (512 << 20)
    CpuMemory.budget_bytes = lambda self: budget
    return Wide()


class LightningModule(Linear):
    """Stands for Lightning's class of that name, which need not be installed here."""

    def training_step(self, batch, batch_index):
        raise AssertionError("loadtune runs its own step")

    def configure_optimizers(self):
        raise AssertionError("loadtune makes its own optimizer")


class LitClassifier(LightningModule):
    pass


def frozen():
    return Linear().requires_grad_(False)


class Pictures(Images):
    """Somebody forgot ToTensor."""

    def __getitem__(self, index):
        return PIL.Image.new("RGB", (8, 8)), 0


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


class Text(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = (torch.arange(13) + index) % VOCABULARY
        return tokens[:-1], tokens[1:]


class Normed(nn.Module):
    """A convolution, batch normalisation over a vector: refuses a batch of 1."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, NUM_CLASSES)

    def forward(self, images):
        return self.head(self.norm(self.features(images).mean((2, 3))))
