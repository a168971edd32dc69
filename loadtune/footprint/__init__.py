"""Where does memory go? A training step's account, layer by layer, without running it.

Comes in: a `WorkloadSpec`, or a model's factory. Goes out: the records of `loadtune.records.footprint`. It needs torch,
and neither a GPU nor a CUDA context: the step is taken through on fake tensors.
"""
