"""An allocator's books over a CPU's tensors: a storage is a block, convolutions take workspace, a library keeps some.

What is really alive is known from weak references to the storages, so an account made of these books has a truth.
"""

import weakref
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset

from loadtune.api.given import Job, pack_job
from loadtune.footprint.account import Event, Mark
from loadtune.footprint.estimate import estimate_step, plan_of_spec
from loadtune.records.config import WorkloadSpec
from loadtune.records.memory import block_bytes

WORKSPACE_BYTES = 3 << 20
KEPT_BYTES = 1 << 20
KEPT_ADDRESS = 0x40
WORKSPACE_ADDRESS = 0x80
SLACK_BYTES = 700


def plan_of(make_model, input_shape, *, optimizer="sgd", precision="fp32"):
    """The step of a classifier on inputs of this shape, without the batch dimension."""
    job = Job(model=make_model, optimizer=optimizer)
    spec, objects = pack_job(WorkloadSpec(), job, input_shape=input_shape)
    return plan_of_spec(spec, precision, objects)


class Blocks(nn.Sequential):
    """A small classifier in blocks, for images of any size."""

    def __init__(self):
        blocks = (nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(3))
        super().__init__(nn.Sequential(*blocks), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 3))


class Uncalled(nn.Module):
    """Uses a layer's parameters without calling the layer."""

    def __init__(self):
        super().__init__()
        self.called, self.uncalled = nn.Linear(192, 3), nn.Linear(3, 3)

    def forward(self, images):
        return nn.functional.linear(self.called(images.flatten(1)), self.uncalled.weight, self.uncalled.bias)


class Decides(Blocks):
    """What it does depends on the values of a tensor, not on shapes alone."""

    def forward(self, images):
        return super().forward(images if images.sum() > 0 else -images)


RATED = [(torch.zeros(3, 8, 8), 0.5)] * 4
"""Samples whose targets are no classes."""

WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))


class Autoencoder(nn.Sequential):
    """Returns an image, not class scores."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(6, 3, 4, 2, 1))


class Broken(IterableDataset):
    """A stream that raises."""

    def __iter__(self):
        raise OSError("the shard is gone")
        yield


class FakeBooks(TorchDispatchMode):
    """`loadtune.footprint.account.AllocatorLog`."""

    def __init__(self, owned):
        """``owned()``: the tensors that are there before a step."""
        super().__init__()
        self._owned, self._seen, self._events = owned, {}, []
        self._alive = {KEPT_ADDRESS: KEPT_BYTES}
        self.peak_bytes = 0

    @contextmanager
    def kept(self):
        for tensor in self._owned():
            self._see(tensor)
        self._events.clear()
        with self:
            yield
        self._seen.clear()

    def mark(self):
        return Mark(len(self._events), SLACK_BYTES + self._taken() - sum(self._alive.values()))

    def address_of(self, tensor):
        return tensor.untyped_storage().data_ptr()

    def standing(self):
        return dict(self._alive)

    def events(self):
        return list(self._events)

    def give_back_workspaces(self):
        self._event(KEPT_ADDRESS, 0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "convolution" in func.__name__:
            self._event(WORKSPACE_ADDRESS, WORKSPACE_BYTES)
            self._event(WORKSPACE_ADDRESS, 0)
        returned = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(returned):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        return returned

    def _see(self, tensor):
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address == 0 or address in self._seen:
            return
        self._seen[address] = weakref.ref(storage, lambda _: self._gone(address))
        self._event(address, storage.nbytes())

    def _gone(self, address):
        if self._seen.pop(address, None) is not None:
            self._event(address, 0)

    def _event(self, address, num_bytes):
        self._events.append(Event(address, num_bytes))
        self._alive[address] = num_bytes
        if not num_bytes:
            del self._alive[address]
        self.peak_bytes = max(self.peak_bytes, self._taken())

    def _taken(self):
        return sum(map(block_bytes, self._alive.values()))


class FakeTraining:
    """A `TrainingClient` that finds a tenth more than shapes say."""

    made: ClassVar[list] = []

    def __init__(self, spec, device):
        self.made.append(device)
        self._spec = spec

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def describe(self):
        pass

    def account(self, precision, batch_size):
        found, _ = estimate_step(plan_of_spec(self._spec, precision), batch_size)
        lines = replace(found.at_peak, workspace_bytes=found.peak_bytes // 10, rounding_bytes=0)
        return replace(
            found,
            estimated=False,
            at_peak=lines,
            peak_bytes=lines.total_bytes + 7,
            fragmentation_bytes=1 << 20,
            outside_bytes=1 << 29,
            step_s=0.02,
        )
