"""The optimizers a workload can name, and those of the user's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from loadtune.errors import WorkloadError
from loadtune.records import StepOptimizer
from loadtune.workload.user_code import last_line, user_traceback

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""The user's own: parameters → optimizer."""

# Speed does not depend on it. So small that the weights stay where they began: a loss that is not finite then comes
# from the data, the model or the precision, and never from a learning rate that nobody chose.
_LEARNING_RATE = 1e-12
_MOMENTUM = 0.9


def make_optimizer(
    choice: StepOptimizer | OptimizerFactory, model: nn.Module, *, fused: bool, scaled: bool = False
) -> torch.optim.Optimizer:
    """A fresh optimizer; ``fused`` False leaves PyTorch its own default (foreach on CUDA).

    It has no state yet, but for a fused SGD whose gradients are ``scaled``: a first step that GradScaler skips would
    leave its momentum unset, and nothing would train any more. Its momentum begins at zero.

    One of the user's own is fused as it was written. Raises WorkloadError where that cannot be made.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if callable(choice):
        return _own_optimizer(choice, parameters)
    implementation = True if fused else None
    if choice == "adamw":
        return torch.optim.AdamW(parameters, lr=_LEARNING_RATE, fused=implementation)
    momentum = 0.0 if choice == "sgd_plain" else _MOMENTUM
    made = torch.optim.SGD(parameters, lr=_LEARNING_RATE, momentum=momentum, fused=implementation)
    if fused and scaled and momentum:
        for parameter in parameters:
            made.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return made


def _own_optimizer(
    factory: Callable[[list[nn.Parameter]], Any], parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    wanted = "It is called with the list of trainable parameters and has to return a torch.optim.Optimizer."
    try:
        made = factory(parameters)
    except Exception as error:
        raise WorkloadError(
            f"The optimizer function raised {last_line(error)}. {wanted}", user_traceback(error)
        ) from error
    if not isinstance(made, torch.optim.Optimizer):
        raise WorkloadError(f"The optimizer function returned a {type(made).__name__}. {wanted}")
    return made
