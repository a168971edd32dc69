"""Where does memory go? A training step's account, layer by layer, without running it.

Comes in: a `WorkloadSpec`, or a model's factory. Goes out: the records of `loadtune.records.footprint`. It needs torch,
and neither a GPU nor a CUDA context: the step is taken through on fake tensors.
"""

from loadtune.footprint.checkpointing import blocks_of
from loadtune.footprint.estimate import CUDA_CONTEXT_BYTES, estimate_layers, estimate_step, largest_batch
from loadtune.footprint.plan import StepPlan, plan_of_factory, plan_of_spec

__all__ = [
    "CUDA_CONTEXT_BYTES",
    "StepPlan",
    "blocks_of",
    "estimate_layers",
    "estimate_step",
    "largest_batch",
    "plan_of_factory",
    "plan_of_spec",
]
