"""Training steps under one recipe, from the initial weights. Knows nothing of loaders or requests."""

import copy
import math
from typing import Any

import torch

from loadtune.records.config import MemoryFormat, Recipe
from loadtune.workload.batches import PAIR, Batch, Places, is_pair, leaf_tensors, moved, own_structure
from loadtune.workload.build import AUTOCAST_DTYPES, Workload, make_optimizer

# Never in a measured run: the scale only halves, once for each skipped step, and so skipped steps can be counted.
_NO_SCALE_GROWTH = 1_000_000


class ResidentModel:
    """The workload's model on the device; each run starts it again from the same weights."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self.device = device
        self._initial: dict[str, Any] = copy.deepcopy(workload.model.state_dict())  # stays on the CPU
        self.module = workload.model.to(device)
        self.optimizer: torch.optim.Optimizer | None = None
        """Of the run that goes on. None: there is none, or the user's script holds it."""

    def reset(self, memory_format: MemoryFormat) -> None:
        """Initial weights, in this memory format, without gradients, ready to train."""
        self.module.zero_grad(set_to_none=True)
        layout = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if tensor.dim() == 4:  # always anew: strides of 1×1 weights count as both layouts, and cuDNN looks at them
                tensor.data = torch.empty_like(tensor, memory_format=layout).copy_(tensor.data)
        self.module.load_state_dict(self._initial)
        self.module.train()

    def drop(self) -> None:
        """Let go of what a run left: gradients and the optimizer's state. The model stays."""
        self.module.zero_grad(set_to_none=True)
        if self.optimizer is not None:
            self.optimizer.state.clear()
            self.optimizer = None


class Trainer:
    """One run of steps: fresh weights, a fresh optimizer and, for fp16, a fresh scaler. The model's `drop` ends it."""

    def __init__(
        self,
        model: ResidentModel,
        recipe: Recipe,
        workload: Workload,
        *,
        sums_losses: bool = False,
        places: Places = PAIR,
        batch_size: int = 1,
    ) -> None:
        """``sums_losses``: for `loss_is_finite`; not where the memory of a step is measured, because the sum takes
        some. ``places``: where batches keep their samples; ``batch_size``: how many those have that do not tell."""
        torch.manual_seed(workload.spec.seed)
        self.device, self.places, self.recipe = model.device, places, recipe
        self.module = model.module
        """What is trained."""
        self.accumulate = workload.spec.accumulate
        """Batches whose gradients are summed before the optimizer steps."""
        self._model, self.batch_size = model, batch_size
        self.workload = workload
        self._num_summed = 0
        self._losses: dict[torch.device, torch.Tensor] | None = {} if sums_losses else None
        self._scaler: torch.amp.GradScaler | None = None
        self._begin()

    def _begin(self) -> None:
        self._model.reset(self.recipe.memory_format)
        if scaled := self.recipe.precision == "fp16":
            self._scaler = torch.amp.GradScaler(self.device.type, growth_interval=_NO_SCALE_GROWTH)
        fused = self.recipe.fused_optimizer
        self._optimizer = make_optimizer(self.workload.optimizer, self.module, fused=fused, scaled=scaled)
        self._model.optimizer = self._optimizer

    def state_tensors(self) -> list[torch.Tensor]:
        """The optimizer's and the gradient scaler's own, wherever they lie; empty before the first step."""
        scaler = {} if self._scaler is None else vars(self._scaler)
        return leaf_tensors([list(self._optimizer.state.values()), list(scaler.values())])

    def num_samples(self, batch: Batch) -> int:
        """Samples of this batch: those that were collated where it does not tell."""
        return self.places.num_samples(batch) if self.places.count else self.batch_size

    def to_device(self, batch: Batch) -> Batch:
        """The batch where and how the model wants it; a pinned one is copied without waiting."""
        channels_last = self.recipe.memory_format == "channels_last"

        def laid_out(tensor: torch.Tensor) -> torch.Tensor:
            images = tensor.layout is torch.strided and tensor.dim() == 4 and tensor.is_floating_point()
            layout = torch.channels_last if channels_last and images else torch.preserve_format
            return tensor.to(self.device, non_blocking=True, memory_format=layout)

        return moved(batch, self.device, laid_out)

    def receive(self, batch: Batch) -> Batch:
        """What a loader delivered, on the device and ready to be trained on."""
        batch = self.to_device(batch)
        for change in self.workload.on_device:
            batch = change(batch)
        return self.to_device(batch) if self.workload.on_device else batch

    def step(self, batch: Batch) -> None:
        """Forward and backward pass on a batch on the device, the optimizer's step where it is due. Does not wait."""
        if self._num_summed == 0:
            self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self.workload.compute_loss(self.module, batch)
        if self._losses is not None:  # a number, or a tensor that holds one; the device is not waited for
            value = torch.as_tensor(loss, dtype=torch.float64).detach().reshape(())
            self._losses[value.device] = value + self._losses.get(value.device, 0.0)
        if self.accumulate > 1:
            loss = loss / self.accumulate
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))
        self._num_summed = (self._num_summed + 1) % self.accumulate
        if self._num_summed > 0:
            return
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()

    def evaluate(self, batch: Batch) -> None:
        """A forward pass in evaluation mode, without gradients; training mode again afterwards."""
        self.module.eval()
        try:
            with torch.no_grad(), self._autocast():
                if self.workload.loss_takes == "batch" or not is_pair(batch):
                    self.workload.compute_loss(self.module, batch)
                else:
                    self.module(own_structure(batch[0]))
        finally:
            self.module.train()

    def _autocast(self) -> torch.autocast:
        dtype = AUTOCAST_DTYPES[self.recipe.precision]
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def loss_is_finite(self) -> bool | None:
        """Whether every step's loss so far was finite, as their sum is. Waits for the device. None: none was summed."""
        return all(math.isfinite(total.item()) for total in self._losses.values()) if self._losses else None

    def num_halvings(self) -> float:
        """How often the scaler has halved its scale so far: once for each skipped step. Waits for the device."""
        if self._scaler is None:
            return 0.0
        scale = self._scaler.get_scale()
        # Below the smallest float the scale is 0 and stays there: every step since is a skipped one, uncounted.
        return -math.log2(scale) if scale > 0 else math.inf
