"""What is trained: a `WorkloadSpec`, and the caller's own objects where there are any → everything one training step
needs. A batch and a model in, a scalar loss out; and the optimizers.

Targets are class indices, for B samples (B,), or (B, *d) where the model answers for each position, as (B, K, *d) or
(B, *d, K) for K classes.
"""

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from loadtune.errors import WorkloadError
from loadtune.records.config import (
    LiveObjects,
    OptimizerName,
    Precision,
    WorkloadPart,
    WorkloadSpec,
    is_import_path,
)
from loadtune.records.facts import CodePart
from loadtune.units import counted
from loadtune.workload.batches import Batch, is_pair, own_structure, structure_text
from loadtune.workload.datasets import make_model, make_parts, model_needs, num_classes_of
from loadtune.workload.loaders import Epoch, LoaderParts, epoch_of
from loadtune.workload.user_code import call_named, find, is_users_file, module_of, reported, unpack_parts

_CPU = torch.device("cpu")

ComputeLoss = Callable[[nn.Module, Batch], torch.Tensor]
"""(model, batch) → scalar."""

Loss = Callable[[Any, Any], torch.Tensor]
"""A loss of the user's own: (what the model returned, targets) → scalar; or (model, batch) → scalar (`takes_model`)."""

OptimizerFactory = Callable[[Any], torch.optim.Optimizer]
"""The user's own: parameters → optimizer; or model → optimizer (`takes_model`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained, still on the CPU."""

    spec: WorkloadSpec
    loader: LoaderParts
    """What is loaded: of the user's own DataLoader, or a dataset in random order."""
    epoch: Epoch
    """What one epoch of it draws."""
    model: nn.Module
    """An empty one where the user's script trains."""
    compute_loss: ComputeLoss
    """Of a batch of any structure that can be trained on."""
    num_classes: int
    """As the user gave it, else as the dataset says, else as the model's published weights have it."""
    own: frozenset[str] = frozenset()
    """Parts that are the user's own code, by name. The others were made of a name, or are ours."""
    loss_takes: Literal["classes", "outputs", "batch"] = "classes"
    """``classes``: it is ours. ``outputs``: the user's own takes any outputs and targets. ``batch``: the user's own, or
    a script, takes batches of any structure."""
    optimizer: OptimizerName | OptimizerFactory = "sgd"
    on_device: tuple[Callable[[Batch], Batch], ...] = ()
    """What is done with a batch once it is on the device, before it is trained on."""

    @property
    def dataset(self) -> Any:
        return self.loader.dataset


def build_workload(
    spec: WorkloadSpec,
    objects: LiveObjects | None = None,
    device: torch.device = _CPU,
    making: AbstractContextManager[object] | None = None,
) -> Workload:
    """Build loader and model on the CPU, from objects or from the names in `spec`; tensors of a loss go to `device`.
    Only the model is made within `making`, for example under fake tensors. Raises WorkloadError."""
    own = _own_parts(spec, {} if objects is None else unpack_parts(objects, device))
    loss: Loss | None = own.get("loss")
    of_batch = loss is not None and takes_model(loss)
    needs = model_needs(spec, own)
    loader = make_parts(spec, needs, own)
    num_classes = spec.num_classes or num_classes_of(loader.dataset) or needs.num_classes
    torch.manual_seed(spec.seed)
    with making or nullcontext():
        model = make_model(spec, needs, num_classes, own, own_training=of_batch)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(
            f"The model {spec.model} has no trainable parameter: requires_grad is False for all. Unfreeze some of them."
        )
    return Workload(
        spec=spec,
        loader=loader,
        epoch=epoch_of(loader, spec.seed),
        model=model,
        compute_loss=loss_of_batches(loss, spec.loss or ""),
        num_classes=num_classes,
        own=frozenset(own),
        loss_takes="batch" if of_batch else "classes" if loss is None else "outputs",
        optimizer=own.get("optimizer") or spec.named_optimizer or "sgd",
    )


_FUNCTIONS = {"loss": "loss function", "optimizer": "optimizer", "collate": "collate function"}
"""Parts that are functions, by what they are called in messages."""


def _own_parts(spec: WorkloadSpec, live: Mapping[str, Any]) -> dict[str, Any]:
    """The user's own parts: objects of the caller, and what import paths name. Raises WorkloadError."""
    own = dict(live)
    for part in get_args(WorkloadPart):
        path, option = getattr(spec, part), _FUNCTIONS.get(part, part)
        is_a_name = part in ("dataset", "model") and not is_import_path(path)
        if part in live or path is None or is_a_name or path in get_args(OptimizerName):
            continue
        own[part] = find(path, option)
        if part in _FUNCTIONS and not callable(own[part]):
            found = type(own[part]).__name__
            raise WorkloadError(f"The {option} {path} is of type {found}. It has to be a function or class.")
    return own


def code_of(workload: Workload) -> tuple[CodePart, ...]:
    """What tells this workload from another later: the user's files that were imported, by name, ``pkg/mod.py``, and
    the model's layers."""
    paths = [getattr(workload.spec, part) for part in get_args(WorkloadPart)]
    named = {module_of(path) for path in paths if path is not None and is_import_path(path)}
    found: dict[str, bytes] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        path = Path(file if isinstance(file, str) else "")  # torch has modules that only claim one
        if not path.is_absolute() or path.suffix != ".py":
            continue
        # What torch.compile writes is a module of torch's that lies in a temporary folder.
        if name in named or (not name.startswith("torch.") and is_users_file(str(path))):
            inside = "/__init__" if path.stem == "__init__" else ""
            with suppress(OSError):
                found[f"{name.replace('.', '/')}{inside}.py"] = path.read_bytes()
    model = workload.model
    layers = [f"{name}: {type(layer).__module__}.{type(layer).__qualname__}" for name, layer in model.named_modules()]
    layers += [f"{name} {tuple(weights.shape)}" for name, weights in model.named_parameters()]
    parts = dict(sorted(found.items())) | {"the model's layers": "\n".join(layers).encode()}
    return tuple(CodePart(name=name, sha256=hashlib.sha256(content).hexdigest()) for name, content in parts.items())


AUTOCAST_DTYPES: dict[Precision, torch.dtype | None] = {
    "fp32": None,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "own": None,
}
"""What autocast computes in. None: there is none, or the user's script has it."""

IGNORED_TARGET = -100
"""Cross entropy's own default for a position that does not count: padding of a text, say."""

_LOGITS = ("logits", "out")  # Hugging Face's and torchvision's names, where a model returns more than those


def loss_of_batches(loss: Loss | None, name: str = "") -> ComputeLoss:
    """How a batch is trained on: by this loss of the user's own, else by cross entropy, or by the ``.loss`` of what the
    model returns for a mapping. Raises WorkloadError where no scalar comes of it."""
    takes_batch = loss is not None and takes_model(loss)
    gets = (
        "As fn(model, batch) it gets each batch as the collate function returns it, moved to the device"
        if takes_batch
        else "As fn(outputs, targets) it gets what the model returns and the targets of a batch; a function whose "
        "arguments are called model and batch gets these"
    )
    sentence = f"{f'The loss function {name}'.rstrip()} raised {{}}. {gets}"

    def compute(model: nn.Module, batch: Batch) -> torch.Tensor:
        batch = own_structure(batch)
        if loss is not None and (takes_batch or is_pair(batch)):
            given = (model, batch) if takes_batch else (model(batch[0]), batch[1])
            return _checked_scalar(call_named(sentence, loss, *given), "loss function")
        if is_pair(batch):
            return class_loss(model, *batch)
        if loss is None and isinstance(batch, Mapping):
            output = model(**batch)
            value = _part(output, "loss")
            if isinstance(value, torch.Tensor):
                return _checked_scalar(value, "model")
            raise WorkloadError(
                f"The model was called with a batch {structure_text(batch)} and returned type {type(output).__name__} "
                "without a `.loss`. Have the batches bring what its loss needs (`labels`, mostly), or give a function "
                "`fn(model, batch) -> scalar`: --loss FILE.py:fn."
            )
        wanted = "or a mapping" if loss is None else "for a loss of (outputs, targets)"
        raise WorkloadError(
            f"A batch is {structure_text(batch)}. It has to be a pair (inputs, targets) {wanted}. For other batches "
            "give a function `fn(model, batch) -> scalar`: --loss FILE.py:fn."
        )

    return compute


def takes_model(function: Callable[..., Any]) -> bool:
    """Whether a loss is called with (model, batch) instead of (outputs, targets), or an optimizer's function with the
    model instead of its parameters: the arguments have these names."""
    try:
        names = list(inspect.signature(function.forward if isinstance(function, nn.Module) else function).parameters)
    except (TypeError, ValueError):  # a builtin has none
        return False
    return names[:1] == ["model"] or names[1:2] == ["batch"]


def _checked_scalar(value: Any, name: str) -> torch.Tensor:
    """The loss, if it is one number that gradients can come from. Raises WorkloadError."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        several = isinstance(value, torch.Tensor)
        found = f"a tensor of shape {tuple(value.shape)}" if several else repr(value)[:60]
        advice = "take its mean" if several else "return the loss tensor itself"
        raise WorkloadError(f"The {name} returned {found}. It has to return a tensor with one number: {advice}.")
    if torch.is_grad_enabled() and not value.requires_grad:
        raise WorkloadError(
            f"The {name} returned a tensor without a gradient: it does not depend on the model's parameters. Compute "
            "it from the model's output, without detach(), item() or no_grad()."
        )
    return value


def model_logits(output: Any) -> torch.Tensor:
    """The logits out of whatever a model returned. Raises WorkloadError where there are none."""
    found = (output, *(_part(output, name) for name in _LOGITS))
    logits = next((part for part in found if isinstance(part, torch.Tensor)), None)
    if logits is None:
        raise WorkloadError(
            f"The model returned type {type(output).__name__}. For cross entropy it has to return a tensor of shape "
            "(batch, classes), or an object with such a tensor as `.logits`, or a dict with the key 'logits' or 'out'. "
            "Otherwise give a loss of your own: --loss FILE.py:fn."
        )
    return logits


def class_dimension(logits: torch.Tensor, targets: torch.Tensor) -> Literal[1, -1]:
    """Where the classes are: 1 for (B, K, *d), which counts where both fit, -1 for (B, *d, K).

    Raises WorkloadError where logits and targets do not go together.
    """
    if logits.dim() == targets.dim() + 1:
        if (logits.shape[0], *logits.shape[2:]) == targets.shape:
            return 1
        if logits.shape[:-1] == targets.shape:
            return -1
    raise WorkloadError(
        f"the model returned a tensor of shape {tuple(logits.shape)} for targets of shape {tuple(targets.shape)}; "
        "cross entropy needs outputs (batch, classes) for targets (batch,), and outputs (batch, classes, ...) or "
        "(batch, ..., classes) for targets (batch, ...). Change the targets or the model, or give a loss of "
        "your own: --loss FILE.py:fn."
    )


def class_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the model's logits; auxiliary heads, as of Inception v3, do not count."""
    logits, targets = model_logits(model(inputs)), targets.long()
    if class_dimension(logits, targets) == 1:
        return cross_entropy(logits, targets)
    return cross_entropy(logits.flatten(0, -2), targets.flatten())


def check_targets(workload: Workload, batch: Batch, sample: Any) -> None:
    """Raises WorkloadError for targets that cross entropy, the default loss, would take for other classes."""
    targets = batch[1] if is_pair(batch) else None
    if workload.loss_takes != "classes" or not isinstance(targets, torch.Tensor):
        return
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise WorkloadError(
            f"The dataset returns {structure_text(sample)}. With cross entropy, the default loss, a target has to be a "
            "class index: an integer, or a tensor of integers where the model predicts a class for each position. For "
            "other targets give a loss function: --loss FILE.py:fn."
        )


def check_labels(batch: Batch, num_classes: int, *, is_own: bool = True) -> None:
    """Raises WorkloadError for a label no class has, before a GPU answers it with an assert that ends its context.

    Where each position of a sample has a label, those may be told not to count. ``is_own``: the model is the user's.
    """
    labels = batch[1] if batch[1].dim() == 1 else batch[1][batch[1] != IGNORED_TARGET]
    if labels.numel() == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        but = "" if batch[1].dim() == 1 else f", or be {IGNORED_TARGET} where it does not count"
        advice = "Correct the labels or the model" if is_own else "Give --num-classes, or correct the labels"
        raise WorkloadError(
            f"a sample's target is {low if low < 0 else high}, but the model has {counted(num_classes, 'class')}, so "
            f"it has to lie between 0 and {num_classes - 1}{but}. {advice}."
        )


def _part(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


# So small that the weights stay where they began: no loss becomes infinite by a learning rate that nobody chose.
_LEARNING_RATE, _MOMENTUM = 1e-12, 0.9


def make_optimizer(
    choice: OptimizerName | OptimizerFactory, model: nn.Module, *, fused: bool, scaled: bool = False
) -> torch.optim.Optimizer:
    """A fresh optimizer; ``fused`` False leaves PyTorch its own default (foreach on CUDA). Raises WorkloadError.

    It has no state yet, but for a fused SGD whose gradients are ``scaled``: a first step that GradScaler skips would
    leave its momentum unset, so it begins at zero. One of the user's own is fused as it was written.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if callable(choice):
        wanted = (
            "It is called with the list of trainable parameters, or with the model if its argument is called model, "
            "and has to return a torch.optim.Optimizer."
        )
        with reported(f"The optimizer function raised {{}}. {wanted}"):
            own = choice(model if takes_model(choice) else parameters)
        if not isinstance(own, torch.optim.Optimizer):
            raise WorkloadError(f"The optimizer function returned a value of type {type(own).__name__}. {wanted}")
        return own
    implementation = True if fused else None
    if choice == "adamw":
        return torch.optim.AdamW(parameters, lr=_LEARNING_RATE, fused=implementation)
    made = torch.optim.SGD(parameters, lr=_LEARNING_RATE, momentum=_MOMENTUM, fused=implementation)
    if fused and scaled:
        for parameter in parameters:
            made.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return made
