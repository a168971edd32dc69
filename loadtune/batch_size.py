"""Only the batch size: the largest that trains, found before a training script does anything else.

In: a model and its samples, as objects of the caller's script or by name. Out: a `MemoryCeiling`. Beside `tune`,
because it needs no loader and no study; like it, it measures in a process of its own, and the caller's stays clean.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loadtune.batch_size_arguments import at_least_1, is_random, recipe_of, workload_of
from loadtune.bench import BenchClient
from loadtune.errors import UsageError, WorkloadError
from loadtune.host import choose_device, read_host
from loadtune.objects import refuse_recursion
from loadtune.probe.step_limit import StepLimit
from loadtune.records import CeilingLimit, ComputePoint, MemoryCeiling, Precision, Recipe, WorkloadFacts
from loadtune.seams import Bench
from loadtune.stages.memory import find_ceiling

if TYPE_CHECKING:
    import torch

STEP_LIMIT_S = 5.0
"""Longest training step that is looked at on a CPU: it has RAM for steps of minutes, which nobody wants to wait for,
and least of all five times over."""


def find_batch_size(
    model_or_factory: "torch.nn.Module | Callable[[], torch.nn.Module] | str",
    input_shape_or_dataset: Any,
    *,
    loss: "Callable[[Any, torch.Tensor], torch.Tensor] | None" = None,
    optimizer: "str | Callable[[Any], torch.optim.Optimizer]" = "sgd",
    precision: Precision = "fp32",
    num_steps: int = 3,
    max_batch_size: int | None = None,
    device: "str | torch.device | None" = None,
    num_classes: int | None = None,
    channels_last: bool = False,
    fused: bool = False,
    compile: bool = False,
) -> MemoryCeiling:
    """The largest batch that trains on this machine; ``.safe_batch_size`` of the answer is the one to use.

    It is found by real training steps in a process of its own: nothing is left on the GPU, the model given is not
    changed, and the script needs no main guard. Keep the model on the CPU until afterwards: what this process holds of
    the GPU is not free.

    model_or_factory: a module, a function or class that makes one without arguments, a torchvision name, or an import
        path ``pkg.mod:factory``.
    input_shape_or_dataset: the shape of one sample, for random float32 inputs with labels in the model's range; or a
        map-style dataset, what makes one without arguments, an import path, or ``FakeData``.
    loss: (outputs, targets) → scalar. None: cross entropy, over (batch, classes), (batch, classes, …) or
        (batch, …, classes).
    optimizer: ``sgd`` (momentum 0.9), ``adamw``, or (parameters) → torch.optim.Optimizer.
    num_steps: training steps that each size has to survive.
    device: ``cpu``, ``cuda``, ``cuda:1`` or a GPU's UUID. None: the GPU with the most free memory, else the CPU.
    num_classes: for torchvision models and ``FakeData``.
    channels_last, fused: where the script trains so; a fused optimizer of one's own is made so by its callable.
    compile: train it compiled by torch.compile, each size that is tried for itself. Give the model uncompiled.

    On a CPU no step is tried that is foretold to take more than 5 s; where that is the limit, ``limit`` says ``time``.

    Raises UsageError, DeviceError, WorkloadError or NothingFitsError for what a user can mend.
    """
    refuse_recursion("find_batch_size")
    recipe = recipe_of(precision, channels_last, fused, compile, optimizer)
    num_steps = at_least_1("num_steps", num_steps)
    largest = None if max_batch_size is None else at_least_1("max_batch_size", max_batch_size)
    classes = None if num_classes is None else at_least_1("num_classes", num_classes)
    spec, objects = workload_of(model_or_factory, input_shape_or_dataset, loss, optimizer, classes)
    host = read_host()
    chosen = choose_device(host, None if device is None else str(device))
    with BenchClient(spec, chosen, objects=objects) as bench:
        facts = bench.describe()
        caps = _caps(facts, largest, precision, has_length=not is_random(spec))
        limit = None if chosen.kind == "cuda" else _step_limit(bench, recipe, facts)
        return find_ceiling(
            bench, recipe, facts, read_host(), host, chosen, caps, num_steps=num_steps, step_limit=limit
        )


def _step_limit(bench: Bench, recipe: Recipe, facts: WorkloadFacts) -> StepLimit:
    """On a CPU, where the first size already may be a long one: begin with what the smallest step says."""
    smallest = min(max(2, facts.min_batch_size), facts.dataset_length)
    scout = bench.time_compute(recipe, smallest, 0.0)  # what keeps it from training is the probe's to say
    known = {smallest: scout.quickest_step_s} if isinstance(scout, ComputePoint) else {}
    return StepLimit(seconds=STEP_LIMIT_S, known=known, admitted=facts.min_batch_size)


def _caps(
    facts: WorkloadFacts, max_batch_size: int | None, precision: Precision, *, has_length: bool
) -> dict[CeilingLimit, int]:
    """What bounds the batch beside memory. Raises where the workload rules out what was asked for."""
    if precision not in facts.precisions:
        raise UsageError(
            f"precision is {precision!r}, which {facts.device_name} does not run; it can be "
            f"{', '.join(facts.precisions)} there. Name one of these, or another device."
        )
    least = facts.min_batch_size
    if facts.dataset_length < least:
        raise WorkloadError(
            f"the dataset has {facts.dataset_length} sample, but the model trains on {least} at least (batch "
            "normalisation does). Pass a larger dataset."
        )
    if max_batch_size is not None and max_batch_size < least:
        raise UsageError(
            f"max_batch_size is {max_batch_size}, but the model trains on {least} samples at least (batch "
            "normalisation does). Raise it, or leave it out."
        )
    # Of random samples there are as many as it takes.
    caps: dict[CeilingLimit, int] = {"dataset": facts.dataset_length} if has_length else {}
    if max_batch_size is not None:
        caps["cap"] = max_batch_size
    return caps
