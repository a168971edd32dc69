"""What an operation does on CUDA and not on a CPU, as far as memory is concerned.

Fake tensors are taken through a step on a fake CPU, because autograd refuses a fake GPU where there is no real one, and
where there is one a context would be created. Autocast and dropout then go the CPU's way; this puts them right.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Of autocast's fp32 list for CUDA (torch/amp/autocast_mode), those in models; the CPU's list lacks them.
_IN_FP32 = frozenset(
    {
        functional.layer_norm,
        functional.group_norm,
        functional.softmax,
        functional.log_softmax,
        functional.cross_entropy,
        functional.nll_loss,
        torch.softmax,
        torch.log_softmax,
        torch.Tensor.softmax,
        torch.Tensor.log_softmax,
    }
)
_HALVES = (torch.float16, torch.bfloat16)


class CudaWays(TorchFunctionMode):
    """While it is entered, these functions allocate as they do on CUDA."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout and not kwargs.get("inplace", False):
            return _dropout(*args, **kwargs)
        if func in _IN_FP32 and torch.is_autocast_enabled("cpu"):
            args = tuple(_widened(argument) for argument in args)
        return func(*args, **kwargs)


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """CUDA's fused kernel: a mask of one byte an element; the CPU keeps one in the input's dtype."""
    if inplace or not training or p == 0:
        return functional.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _widened(argument: Any) -> Any:
    is_half = isinstance(argument, torch.Tensor) and argument.dtype in _HALVES
    return argument.float() if is_half else argument
