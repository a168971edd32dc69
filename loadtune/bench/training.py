"""Training steps under one recipe, from the initial weights. Knows nothing of loaders, clocks or requests."""

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import interpolate
from torch.utils._pytree import tree_leaves

from loadtune.bench.compiling import Compiler
from loadtune.bench.loss_watch import LossWatch
from loadtune.errors import WorkloadError
from loadtune.records import MemoryFormat, Precision, Recipe, StepOptimizer
from loadtune.workload import Batch, Workload, make_optimizer

_AUTOCAST_DTYPES: dict[Precision, torch.dtype | None] = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}
# Never in a measured run: so the scale only ever halves, once for each skipped step, and skipped steps can be counted
# from it. Its length changes no step's work.
_NO_SCALE_GROWTH = 1_000_000
# Real samples a resident batch repeats: enough that labels and pixels differ, few enough to be read at once.
_NUM_RESIDENT_SAMPLES = 8


class ResidentModel:
    """The workload's model on the device; each run starts it again from the same weights."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self.task = workload.task
        self.forward = workload.forward
        self.device = device
        self._initial: dict[str, Any] = copy.deepcopy(workload.model.state_dict())  # stays on the CPU
        self.module = workload.model.to(device)

    def drop_gradients(self) -> None:
        """Free the gradients, which a step that failed leaves behind."""
        self.module.zero_grad(set_to_none=True)

    def reset(self, memory_format: MemoryFormat) -> None:
        """Initial weights, in this memory format, without gradients, ready to train."""
        self.drop_gradients()
        _lay_out(self.module, memory_format)
        self.module.load_state_dict(self._initial)
        self.module.train()


class Trainer:
    """One run of steps: fresh weights, a fresh optimizer and, for fp16, a fresh scaler. `close` drops them."""

    def __init__(
        self,
        model: ResidentModel,
        recipe: Recipe,
        workload: Workload,
        optimizer: StepOptimizer | None = None,
        compiler: Compiler | None = None,
        losses: LossWatch | None = None,
    ) -> None:
        """``optimizer``: instead of the workload's. ``compiler``: of this model, for a compiled recipe. ``losses`` is
        given each step's loss; None where the memory of a step is measured, because the sum takes some."""
        torch.manual_seed(workload.spec.seed)
        self._model = model
        self._recipe = recipe
        self._compiler = compiler
        self._losses = losses
        self._called = model.module if compiler is None else compiler.module
        self._dtype = _AUTOCAST_DTYPES[recipe.precision]
        self._target_dtype = (
            None if workload.own_loss else torch.long
        )  # cross entropy's; a loss of one's own knows its own
        model.reset(recipe.memory_format)
        self._optimizer = make_optimizer(optimizer or workload.optimizer, model.module, fused=recipe.fused_optimizer)
        self._scaler: torch.amp.GradScaler | None = None
        if recipe.precision == "fp16":
            self._scaler = torch.amp.GradScaler(model.device.type, growth_interval=_NO_SCALE_GROWTH)

    @property
    def precision(self) -> Precision:
        return self._recipe.precision

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def module(self) -> nn.Module:
        """What is trained."""
        return self._model.module

    def state_tensors(self) -> list[torch.Tensor]:
        """The optimizer's and the gradient scaler's own, wherever they lie; empty before the first step."""
        scaler = {} if self._scaler is None else vars(self._scaler)
        leaves = tree_leaves([list(self._optimizer.state.values()), list(scaler.values())])
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def to_device(self, batch: Batch) -> Batch:
        """The batch where and how the model wants it; a pinned one is copied without waiting."""
        inputs, targets = batch
        layout = torch.preserve_format
        if self._recipe.memory_format == "channels_last":
            layout = _CHANNELS_LAST.get(inputs.dim(), layout)
        inputs = inputs.to(self._model.device, non_blocking=True, memory_format=layout)
        targets = targets.to(self._model.device, dtype=self._target_dtype, non_blocking=True)
        return inputs, targets

    def step(self, batch: Batch) -> None:
        """One training step on a batch that is on the device; returns before a GPU has finished it."""
        inputs, targets = batch
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self._model.task(self._called, inputs, targets)
        if self._losses is not None:
            self._losses.add(loss)
        if self._scaler is None:
            torch.autograd.backward(loss)
            self._optimizer.step()
        else:
            torch.autograd.backward(self._scaler.scale(loss))
            self._scaler.step(self._optimizer)
            self._scaler.update()

    def evaluate(self, batch: Batch) -> None:
        """A forward pass in evaluation mode, without gradients, not compiled; training mode again afterwards."""
        self._model.module.eval()
        try:
            with torch.no_grad(), self._autocast():
                self._model.forward(self._model.module, batch[0])
        finally:
            self._model.module.train()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._model.device.type, dtype=self._dtype, enabled=self._dtype is not None)

    def synchronize(self) -> None:
        """Wait for the device to finish what it was given."""
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)

    def num_compiled(self) -> int:
        """How often something was compiled so far; 0 for a recipe that is not."""
        return 0 if self._compiler is None else self._compiler.num_compiled

    def loss_is_finite(self) -> bool | None:
        """Whether every step's loss so far was finite. Waits for the device. None: nobody watches, or no step ran."""
        return None if self._losses is None else self._losses.is_finite()

    def num_halvings(self) -> float:
        """How often the scaler has halved its scale so far: once for each skipped step. Waits for the device."""
        if self._scaler is None:
            return 0.0
        scale = self._scaler.get_scale()
        # Below the smallest float the scale is 0 and stays there: every step since is a skipped one, uncounted.
        return -math.log2(scale) if scale > 0 else math.inf

    def state(self) -> dict[str, Any]:
        """What a checkpoint of this training holds."""
        return {"model": self._model.module.state_dict(), "optimizer": self._optimizer.state_dict()}

    def close(self) -> None:
        """Drop gradients and the optimizer's state; the model stays."""
        self._model.drop_gradients()
        self._optimizer.state.clear()


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _lay_out(module: nn.Module, memory_format: MemoryFormat) -> None:
    """Module.to(memory_format=…) refuses models that mix 4-D and 5-D parameters, so each is laid out by its own."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dim() in _CHANNELS_LAST:
                wanted = _CHANNELS_LAST[tensor.dim()] if memory_format == "channels_last" else torch.contiguous_format
                # Strides are compared, not is_contiguous: weights of one channel or of 1×1 pixels count as both
                # layouts, and it is their strides by which cuDNN's is chosen.
                like = torch.empty_like(tensor, memory_format=wanted, device="meta")
                if tensor.stride() != like.stride():
                    tensor.data = torch.empty_like(tensor, memory_format=wanted).copy_(tensor)


def resident_batch(samples: Batch, batch_size: int, trainer: Trainer) -> Batch:
    """A few real samples, repeated to the batch's size on the device: what a loader would deliver, without one."""
    inputs, targets = trainer.to_device((samples[0][:_NUM_RESIDENT_SAMPLES], samples[1][:_NUM_RESIDENT_SAMPLES]))
    at = torch.arange(batch_size, device=inputs.device) % len(inputs)
    # Through to_device again: indexing need not keep the memory format.
    return trainer.to_device((inputs.index_select(0, at), targets.index_select(0, at)))


def resized(samples: Batch, image_size: int) -> Batch:
    """Images (B, C, H, W), and masks (B, H, W) with them, of another height and width. Raises WorkloadError."""
    inputs, targets = samples
    if inputs.dim() != 4 or not inputs.is_floating_point():
        raise WorkloadError(f"samples of shape {tuple(inputs.shape[1:])} are no images, whose size could be changed.")
    size = (image_size, image_size)
    if targets.dim() == 3:
        targets = interpolate(targets[:, None].float(), size)[:, 0].to(targets.dtype)
    return interpolate(inputs, size), targets
