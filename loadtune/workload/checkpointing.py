"""Activation checkpointing over a model's blocks, for as long as a `with` lasts; the model itself stays as it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from loadtune.errors import WorkloadError

Keep = Callable[[torch.Tensor], object]
"""Called with every tensor that a checkpoint keeps: the inputs of its block."""


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Children of the model's `nn.Sequential`s that are made of several modules: its residual or encoder blocks."""
    found: list[nn.Module] = []
    for child in model.children():
        has_blocks = isinstance(child, nn.Sequential) and any(_is_made_of_several(part) for part in child.children())
        if isinstance(model, nn.Sequential) and _is_made_of_several(child) and not has_blocks:
            found.append(child)
        else:
            found += blocks_of(child)
    return found


@contextmanager
def checkpointed(model: nn.Module, keep: Keep, *, preserve_rng_state: bool = True) -> Iterator[None]:
    """Each block runs under `torch.utils.checkpoint` (use_reentrant=False). Raises WorkloadError without a block.

    ``preserve_rng_state``: as of `torch.utils.checkpoint`; fake tensors have no random numbers to restore.
    """
    blocks = blocks_of(model)
    if not blocks:
        raise WorkloadError(
            f"--checkpoint found no blocks in the model {type(model).__name__}. It checkpoints the children of each "
            "nn.Sequential that consist of several modules. Put the model's blocks into an nn.Sequential, or leave "
            "--checkpoint out."
        )
    try:
        for block in blocks:
            block.forward = _checkpointed(block.forward, keep, preserve_rng_state)
        yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


def _checkpointed(forward: Callable[..., Any], keep: Keep, preserve_rng_state: bool) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                keep(leaf)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, **kwargs)

    return wrapped


def _is_made_of_several(module: nn.Module) -> bool:
    return sum(1 for _ in module.modules()) > 2
