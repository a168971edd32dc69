"""What one training step computes: a batch and a model in, a scalar loss out; and the optimizers.

Targets are class indices, for B samples (B,), or (B, *d) where the model answers for each position, as (B, K, *d) or
(B, *d, K) for K classes.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from loadtune.errors import WorkloadError
from loadtune.records.config import OptimizerName, Precision
from loadtune.workload.batches import Batch, is_pair, own_structure, structure_text
from loadtune.workload.user_code import call_named, reported

ComputeLoss = Callable[[nn.Module, Batch], torch.Tensor]
"""(model, batch) → scalar."""

Loss = Callable[[Any, Any], torch.Tensor]
"""A loss of the user's own: (what the model returned, targets) → scalar; or (model, batch) → scalar (`takes_model`)."""

OptimizerFactory = Callable[[Any], torch.optim.Optimizer]
"""The user's own: parameters → optimizer; or model → optimizer (`takes_model`)."""

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
