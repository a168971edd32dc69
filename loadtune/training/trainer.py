"""Training steps under one recipe, from the initial weights, compiled where that is asked for. Knows nothing of loaders
or requests."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from loadtune.errors import WorkloadError
from loadtune.records.config import MemoryFormat, OptimizerName, Precision, Recipe
from loadtune.workload import (
    AUTOCAST_DTYPES,
    PAIR,
    Batch,
    Places,
    Workload,
    call_named,
    is_pair,
    last_line,
    make_optimizer,
    moved,
    own_structure,
    user_traceback,
)


class LossWatch:
    """Sums the losses: a sum in float64 is NaN or infinite from the first loss on that is."""

    def __init__(self) -> None:
        self._sums: dict[torch.device, torch.Tensor] = {}

    def add(self, loss: torch.Tensor | float) -> None:
        """Take a loss of one step: a number, or a tensor that holds one. Does not wait for the device."""
        if not isinstance(loss, torch.Tensor):
            loss = torch.tensor(loss, dtype=torch.float64)
        loss = loss.detach().reshape(())
        if loss.device in self._sums:
            self._sums[loss.device].add_(loss)
        else:
            self._sums[loss.device] = loss.to(torch.float64, copy=True)

    def is_finite(self) -> bool | None:
        """Whether all losses so far were finite. Waits for the device. None: there was none."""
        return all(math.isfinite(total.item()) for total in self._sums.values()) if self._sums else None


# Never in a measured run: so the scale only ever halves, once for each skipped step, and skipped steps can be counted
# from it. Its length changes no step's work.
_NO_SCALE_GROWTH = 1_000_000
# Real samples a resident batch repeats: enough that labels and pixels differ, few enough to be read at once.
_NUM_RESIDENT_SAMPLES = 8


NO_MODEL = "Not possible with a whole training step, because loadtune cannot see its model."


class ResidentModel:
    """The workload's model on the device; each run starts it again from the same weights."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self.compute_loss = workload.compute_loss
        self.own_batches = workload.own_batches
        self.device = device
        self.own_step: Callable[[Batch], Any] | None = None
        """What the user's ``make_step`` returned. None: not made yet, or there is none."""
        self._initial: dict[str, Any] = copy.deepcopy(workload.model.state_dict())  # stays on the CPU
        self.module = workload.model.to(device)

    def drop_gradients(self) -> None:
        """Free the gradients, which a step that failed leaves behind."""
        self.module.zero_grad(set_to_none=True)

    def reset(self, memory_format: MemoryFormat) -> None:
        """Initial weights, in this memory format, without gradients, ready to train."""
        self.drop_gradients()
        layout = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if tensor.dim() == 4:  # always anew: strides of 1×1 weights count as both layouts, and cuDNN looks at them
                tensor.data = torch.empty_like(tensor, memory_format=layout).copy_(tensor.data)
        self.module.load_state_dict(self._initial)
        self.module.train()


# Graphs of one function that PyTorch keeps: batch sizes × precisions × layouts × blocks of the model, which all may
# share it. Past its own limit of 8 it goes on without compiling and says so in a log; past this one it raises.
_MOST_GRAPHS = 10_000


def compiled(module: nn.Module) -> nn.Module:
    """`module`, compiled when it is first called, and anew where a batch size, a precision or a layout is new.

    Each batch size is compiled for itself (``dynamic=False``), as a script gets that trains at one size.
    """
    import torch._dynamo as dynamo  # two seconds, which only who compiles has to wait

    dynamo.config.recompile_limit = dynamo.config.accumulated_recompile_limit = _MOST_GRAPHS
    dynamo.config.fail_on_recompile_limit_hit = True
    dynamo.config.suppress_errors = False  # else what does not compile is run as it is written, in silence
    made: nn.Module = torch.compile(module, dynamic=False)  # type: ignore[assignment]
    return made


def num_graphs() -> int:
    """Graphs that torch.compile made in this process. 0: all of the model is run as it is written."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


class Trainer:
    """One run of steps: fresh weights, a fresh optimizer and, for fp16, a fresh scaler. `close` drops them."""

    def __init__(
        self,
        model: ResidentModel,
        recipe: Recipe,
        workload: Workload,
        optimizer: OptimizerName | None = None,
        called: nn.Module | None = None,
        losses: LossWatch | None = None,
        places: Places = PAIR,
        batch_size: int = 1,
    ) -> None:
        """``optimizer``: instead of the workload's. ``called``: the model, compiled. ``losses`` is given each step's
        loss; None where the memory of a step is measured, because the sum takes some. ``places``: where batches keep
        their samples; ``batch_size``: how many those have that do not tell."""
        torch.manual_seed(workload.spec.seed)
        self._model = model
        self._recipe = recipe
        self._losses = losses
        self._called = model.module if called is None else called
        self._dtype = AUTOCAST_DTYPES[recipe.precision]
        self.places = places
        self._on_device = workload.on_device
        self._batch_size = batch_size
        self.accumulate = workload.spec.accumulate
        """Batches whose gradients are summed before the optimizer steps."""
        self._num_summed = 0
        self._scaler: torch.amp.GradScaler | None = None
        self._begin(workload, optimizer)

    def _begin(self, workload: Workload, optimizer: OptimizerName | None) -> None:
        model, recipe = self._model, self._recipe
        model.reset(recipe.memory_format)
        scaled = recipe.precision == "fp16"
        self._optimizer = make_optimizer(
            optimizer or workload.optimizer, model.module, fused=recipe.fused_optimizer, scaled=scaled
        )
        if scaled:
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

    def num_samples(self, batch: Batch) -> int:
        """Samples of this batch: those that were collated where it does not tell."""
        return self.places.num_samples(batch) if self.places.count else self._batch_size

    def to_device(self, batch: Batch) -> Batch:
        """The batch where and how the model wants it; a pinned one is copied without waiting."""
        channels_last = self._recipe.memory_format == "channels_last"

        def laid_out(tensor: torch.Tensor) -> torch.Tensor:
            images = tensor.layout is torch.strided and tensor.dim() == 4 and tensor.is_floating_point()
            layout = torch.channels_last if channels_last and images else torch.preserve_format
            return tensor.to(self._model.device, non_blocking=True, memory_format=layout)

        return moved(batch, self._model.device, laid_out)

    def receive(self, batch: Batch) -> Batch:
        """What a loader delivered, on the device and ready to be trained on."""
        batch = self.to_device(batch)
        for change in self._on_device:
            batch = change(batch)
        return self.to_device(batch) if self._on_device else batch

    def step(self, batch: Batch) -> None:
        """Forward and backward pass on a batch that is on the device, and the optimizer's step where it is due.

        Returns before a GPU has finished it.
        """
        if self._num_summed == 0:
            self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self._model.compute_loss(self._called, batch)
        if self._losses is not None:
            self._losses.add(loss)
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
        """A forward pass in evaluation mode, without gradients, not compiled; training mode again afterwards."""
        self._model.module.eval()
        try:
            with torch.no_grad(), self._autocast():
                if self._model.own_batches or not is_pair(batch):
                    self._model.compute_loss(self._model.module, batch)
                else:
                    self._model.module(own_structure(batch[0]))
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
        return 0 if self._called is self._model.module else num_graphs()

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

    def close(self) -> None:
        """Drop gradients and the optimizer's state; the model stays."""
        self._model.drop_gradients()
        self._optimizer.state.clear()


class OwnStep(Trainer):
    """The user's own training step: it holds models and optimizers, and lives as long as the process."""

    def _begin(self, workload: Workload, optimizer: OptimizerName | None) -> None:
        del optimizer
        self._scaler = None
        self._run = _made_step(workload, self._model)
        self._sentence = (
            f"The step {workload.spec.step or ''} raised {{}}. step(batch) gets each batch as the collate function "
            "returns it, moved to the device"
        )

    @property
    def module(self) -> nn.Module:
        raise WorkloadError(f"{NO_MODEL} Use --model and --loss.")

    def state_tensors(self) -> list[torch.Tensor]:
        return []

    def step(self, batch: Batch) -> None:
        value = call_named(self._sentence, self._run, own_structure(batch))
        if self._losses is not None:
            for loss in _losses_in(value):
                self._losses.add(loss)

    def evaluate(self, batch: Batch) -> None:
        raise WorkloadError("A training step of your own has no evaluation pass.")

    def close(self) -> None:
        """Nothing is dropped: the next trial goes on with the same step."""


def _losses_in(value: Any) -> Iterator[torch.Tensor | float]:
    """The numbers in what a step returned; of a mapping that names losses only those, because metrics may be NaN."""
    if isinstance(value, Mapping):
        named = [part for key, part in value.items() if "loss" in str(key).lower()]
        value = named or list(value.values())
    for leaf in tree_leaves(value):
        if isinstance(leaf, Real):
            yield float(leaf)
        elif isinstance(leaf, torch.Tensor) and leaf.numel() == 1 and leaf.is_floating_point():
            yield leaf


def _made_step(workload: Workload, model: ResidentModel) -> Callable[[Batch], Any]:
    """The step, made once for a process."""
    if model.own_step is None:
        assert workload.make_step is not None
        wanted = "make_step(device) has to return a function step(batch), which trains on one batch."
        try:
            made = workload.make_step(model.device)
        except Exception as error:
            raise WorkloadError(
                f"The training step could not be made: make_step raised {last_line(error)}. {wanted}",
                user_traceback(error),
            ) from error
        if not callable(made):
            raise WorkloadError(f"make_step returned a {type(made).__name__}. {wanted}")
        model.own_step = made
    return model.own_step


def resident_batch(samples: Batch, batch_size: int, trainer: Trainer) -> Batch:
    """A few real samples, repeated to the batch's size on the device: what a loader would deliver, without one."""
    places = trainer.places
    count = min(_NUM_RESIDENT_SAMPLES, places.num_samples(samples))
    few = trainer.to_device(places.take(samples, range(count)))
    # Through to_device again: indexing need not keep the memory format.
    return trainer.to_device(places.take(few, [at % count for at in range(batch_size)]))
