"""The optimizers a workload can name."""

import torch
from torch import nn

from loadtune.records import OptimizerName

# Small enough that random weights on random data stay finite over some thousand steps; speed does not depend on it.
_LEARNING_RATE = 1e-3
_MOMENTUM = 0.9


def make_optimizer(name: OptimizerName, model: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
    """A fresh optimizer without state; ``fused`` False leaves PyTorch its own default (foreach on CUDA)."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    choice = True if fused else None
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=_LEARNING_RATE, fused=choice)
    return torch.optim.SGD(parameters, lr=_LEARNING_RATE, momentum=_MOMENTUM, fused=choice)
