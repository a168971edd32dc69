"""Jobs of other libraries: a Lightning module, a Hugging Face Trainer. The parts of a `Job` are pickled together, so
its optimizer holds the parameters of its model in the training process too.
"""

import inspect
import warnings
from collections.abc import Iterable
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from loadtune.errors import UsageError, WorkloadError
from loadtune.objects import Job
from loadtune.workload.user_code import call_named, last_line


def from_lightning(module: Any, datamodule: Any = None) -> Job:
    """The job that ``Trainer().fit(module, datamodule)`` trains, on one device.

    The loss is ``training_step``'s, the optimizer ``configure_optimizers``'s; learning rate schedules and callbacks are
    left out. ``prepare_data``, ``setup("fit")`` and ``configure_model`` are called first, and a batch goes through
    ``on_before_batch_transfer`` and ``on_after_batch_transfer``, as in a Trainer. Raises UsageError for manual
    optimization, several optimizers, several loaders, and methods that need a Trainer.
    """
    if not hasattr(module, "training_step") or not hasattr(module, "configure_optimizers"):
        raise UsageError(
            f"from_lightning got a value of type {type(module).__name__}; it takes a LightningModule, with "
            "`training_step` and `configure_optimizers`. Pass other models as loadtune.Job(loader=..., model=...)."
        )
    if not getattr(module, "automatic_optimization", True):
        raise UsageError(
            f"{type(module).__name__} has `automatic_optimization = False`: its training_step calls the optimizers "
            f"itself. {_STEP_INSTEAD}"
        )
    owners = (module,) if datamodule is None else (datamodule, module)
    for hook, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        for owner in owners:
            _without_trainer(owner, hook, *arguments)
    if hasattr(module, "configure_model"):  # from Lightning 2 on
        _without_trainer(module, "configure_model")
    source = owners[0]
    loader = _without_trainer(source, "train_dataloader")
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"train_dataloader of {type(source).__name__} returned a value of type {type(loader).__name__}. loadtune "
            "tunes one torch.utils.data.DataLoader: return one, or write the job with loadtune.Job(loader=...)."
        )
    hooks = [(name, getattr(datamodule, name, None)) for name in _TRANSFER_HOOKS]
    own = [name for name, hook in hooks if hook is not None and hook.__qualname__ != f"DataHooks.{name}"]
    if own:
        raise UsageError(
            f"{type(datamodule).__name__} overrides {own[0]}, which loadtune does not call. Move the method to "
            f"{type(module).__name__}."
        )
    optimizer = partial(_lightning_optimizer, module)
    optimizer(module.parameters())  # what cannot be used is told before anything is measured
    return Job(loader=loader, model=module, loss=lightning_loss, optimizer=optimizer)


_TRANSFER_HOOKS = ("on_before_batch_transfer", "on_after_batch_transfer")


def lightning_loss(model: Any, batch: Any) -> torch.Tensor:
    """The loss of a LightningModule's ``training_step`` for a batch that is on the device."""
    for name in _TRANSFER_HOOKS:
        batch = getattr(model, name)(batch, 0)
    takes_index = len(inspect.signature(model.training_step).parameters) > 1
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"You are trying to `self\.log\(\)`")
        said = (
            f"training_step of {type(model).__name__} raised {{}}. It is called without a Trainer. If it needs one, "
            "write the loss as a function: loadtune.tune(loader, model=..., loss=...)"
        )
        result = call_named(said, model.training_step, *((batch, 0) if takes_index else (batch,)))
    loss = result.get("loss") if isinstance(result, dict) else result
    if not isinstance(loss, torch.Tensor):
        raise WorkloadError(
            f"training_step of {type(model).__name__} returned type {type(result).__name__} without a loss. It has to "
            'return the loss as a tensor, or a dict with the key "loss".'
        )
    return loss


def _lightning_optimizer(module: Any, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """As `partial` makes an optimizer function of it, which is called with parameters, and pickles."""
    made = _without_trainer(module, "configure_optimizers")
    if not isinstance(made, (list, tuple)):
        made = [made]
    elif len(made) == 2 and isinstance(made[0], list):  # of Lightning's six forms one is (optimizers, schedulers)
        made = made[0]
    found = [each["optimizer"] if isinstance(each, dict) else each for each in made]
    if len(found) != 1 or not isinstance(found[0], torch.optim.Optimizer):
        what = f"a value of type {type(found[0]).__name__}" if len(found) == 1 else f"{len(found)} optimizers"
        raise UsageError(
            f"configure_optimizers of {type(module).__name__} returned {what}, where one torch.optim.Optimizer was "
            f"expected. {_STEP_INSTEAD}"
        )
    return found[0]


def from_trainer(trainer: Any) -> Job:
    """The job that ``trainer.train()`` of a Hugging Face ``Trainer`` trains, on one device.

    Batches, loss and optimizer are made by the Trainer's own methods, also by those that a subclass overrides. Learning
    rate schedules, gradient clipping and callbacks are left out. Where the arguments ask for gradient checkpointing, it
    is turned on in the Trainer's model, as ``train()`` does. Raises UsageError for DeepSpeed and FSDP.
    """
    if not hasattr(trainer, "args") or not hasattr(trainer, "train_dataset"):
        raise UsageError(
            f"from_trainer got a value of type {type(trainer).__name__}; it takes a transformers.Trainer. Pass other "
            "models as loadtune.Job(loader=..., model=...)."
        )
    from transformers import Trainer

    args = trainer.args
    if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
        raise UsageError(
            "The Trainer uses DeepSpeed or FSDP, which train on several GPUs. loadtune uses one: pass a Trainer whose "
            "TrainingArguments leave `deepspeed` and `fsdp` out."
        )
    if trainer.train_dataset is None:
        raise UsageError("The Trainer has no train_dataset. Pass one: Trainer(..., train_dataset=...).")
    for name in ("activation_checkpointing", "gradient_checkpointing"):  # as train() does; transformers 5 renamed it
        if getattr(args, name, False):
            getattr(trainer.model, f"{name}_enable")(getattr(args, f"{name}_kwargs"))
            break
    own_loss = type(trainer).compute_loss is not Trainer.compute_loss
    own_loss = own_loss or trainer.compute_loss_func is not None or trainer.label_smoother is not None
    lasting = _DetachedTrainer(trainer, without=(*_NOT_NEEDED, "train_dataset", "data_collator", "optimizer"))
    return Job(
        loader=_DetachedTrainer(trainer, without=_NOT_NEEDED).trainer.get_train_dataloader(),
        model=trainer.model,
        loss=lasting.compute_loss if own_loss else None,
        optimizer=lasting.make_optimizer,
        accumulate=args.gradient_accumulation_steps,
        precision="bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
    )


_STEP_INSTEAD = "Write the training step as a function and pass it: loadtune.tune(loader, step=make_step)."


def _without_trainer(owner: Any, method: str, *arguments: Any) -> Any:
    """What a Lightning hook returns where no Trainer is attached."""
    try:
        return getattr(owner, method)(*arguments)
    except Exception as error:
        raise UsageError(
            f"{method} of {type(owner).__name__} raised {last_line(error)}. from_lightning calls the method without a "
            "Trainer. If the method needs one, write the job with loadtune.Job(loader=..., model=..., "
            "loss=loadtune.lightning_loss, optimizer=...)."
        ) from error


_NOT_NEEDED = (
    *("accelerator", "callback_handler", "eval_dataset", "gather_function", "lr_scheduler", "model_wrapped"),
    "_memory_tracker",
)


class _OneProcess:
    """What a Trainer asks its accelerator for while it makes batches, a loss or an optimizer, on one device."""

    parallelism_config = None
    num_processes = 1
    process_index = 0
    is_main_process = True

    def prepare(self, part: Any, *_: Any, **__: Any) -> Any:
        return part

    unwrap_model = prepare


class _DetachedTrainer:
    """A Trainer of the same class and attributes without what ties it to a process, so that it can be pickled."""

    def __init__(self, trainer: Any, *, without: tuple[str, ...]) -> None:
        self.trainer = copy(trainer)
        self.trainer.__dict__ = {name: value for name, value in vars(trainer).items() if name not in without}
        self.trainer.accelerator = _OneProcess()
        self.trainer._train_batch_size = trainer.args.per_device_train_batch_size
        self.given = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # unwrapped, once it was prepared

    def compute_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        inputs = dict(batch)  # the Trainer takes labels out
        labels = inputs.get("labels")
        counted = self.trainer.model_accepts_loss_kwargs or self.trainer.compute_loss_func is not None
        num_items = labels.ne(-100).sum() if counted and isinstance(labels, torch.Tensor) else None
        loss: torch.Tensor = self.trainer.compute_loss(model, inputs, num_items_in_batch=num_items)
        return loss

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimizer of the model's parameters; the argument only fits the usual form of such functions."""
        if self.given is not None:
            groups = [dict(group) for group in self.given.param_groups]
            return type(self.given)(groups)  # type: ignore[no-any-return]
        self.trainer.optimizer = None
        made = self.trainer.create_optimizer()
        self.trainer.optimizer = None
        return made  # type: ignore[no-any-return]
