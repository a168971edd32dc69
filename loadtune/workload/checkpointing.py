"""Activation checkpointing of a model's blocks or segments, for as long as a `with` lasts; the model is not changed."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from loadtune.errors import WorkloadError
from loadtune.records.footprint import Checkpoint, Checkpointed

Keep = Callable[[torch.Tensor], object]
"""Called with every tensor that a checkpoint keeps: the inputs of its block or segment."""


@contextmanager
def checkpointed(
    model: nn.Module, keep: Keep, wanted: Checkpoint, *, preserve_rng_state: bool = True
) -> Iterator[Checkpointed]:
    """Run the model's blocks, or segments of its longest `nn.Sequential`, by `checkpoint`.

    Blocks where the model has some and no number of segments is wanted; both with ``use_reentrant=False``.
    ``preserve_rng_state``: as of `torch.utils.checkpoint`; fake tensors have no random numbers to restore.
    Raises WorkloadError where the model has neither, or not so many layers as segments are wanted.
    """
    blocks = [] if wanted.segments is not None else blocks_of(model)
    with ExitStack() as until_end:
        if blocks:
            for block in blocks:
                until_end.enter_context(_forward_of(block, _by_block(block.forward, keep, preserve_rng_state)))
            yield Checkpointed(num_modules=len(blocks))
        else:
            path, layers = _longest_sequential(model)
            segments = _num_segments(wanted, layers, type(model).__name__)
            run = _in_segments(layers, segments, keep, preserve_rng_state)
            until_end.enter_context(_forward_of(model.get_submodule(path), run))
            yield Checkpointed(num_modules=len(layers), num_segments=segments, path=path)


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


def _longest_sequential(model: nn.Module) -> tuple[str, list[nn.Module]]:
    """(Its path within the model, its layers): the first of the longest."""
    found = [
        (name, list(module))
        for name, module in model.named_modules()
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and len(module) > 1
    ]
    if not found:
        raise WorkloadError(
            f"--checkpoint: {type(model).__name__} has no nn.Sequential of two or more modules, which activation"
            " checkpointing is applied to. Put the model's layers into one, or leave --checkpoint out."
        )
    return max(found, key=lambda path_and_layers: len(path_and_layers[1]))


def _num_segments(wanted: Checkpoint, layers: list[nn.Module], model: str) -> int:
    """By default about the square root: segments keep their inputs, and one segment at a time its activations."""
    if wanted.segments is None:
        return max(2, round(math.sqrt(len(layers))))
    if not 2 <= wanted.segments <= len(layers):
        raise WorkloadError(
            f"--checkpoint-segments is {wanted.segments}; the longest nn.Sequential of {model} has {len(layers)}"
            f" modules, so it can be 2 to {len(layers)}. Choose such a number, or leave --checkpoint-segments out."
        )
    return wanted.segments


def _by_block(forward: Callable[..., Any], keep: Keep, preserve_rng_state: bool) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                keep(leaf)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, **kwargs)

    return wrapped


def _in_segments(
    layers: list[nn.Module], segments: int, keep: Keep, preserve_rng_state: bool
) -> Callable[[torch.Tensor], Any]:
    """As `checkpoint_sequential` cuts: the last segment takes the rest and is kept."""
    length = len(layers) // segments
    cut = length * (segments - 1)
    starts = range(0, cut, length)
    parts: list[Callable[..., Any]] = [
        _by_block(nn.Sequential(*layers[at : at + length]).forward, keep, preserve_rng_state) for at in starts
    ]
    parts += layers[cut:]

    def run(inputs: torch.Tensor) -> Any:
        for part in parts:
            inputs = part(inputs)
        return inputs

    return run


@contextmanager
def _forward_of(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    module.forward = forward
    try:
        yield
    finally:
        vars(module).pop("forward", None)


def _is_made_of_several(module: nn.Module) -> bool:
    return sum(1 for _ in module.modules()) > 2
