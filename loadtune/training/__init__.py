"""Run the workload and report: a child process that owns the device, and the controller's handle on it.

Comes in: a `WorkloadSpec` and a `Device`, then requests. Goes out: records; whatever dies inside becomes a
`TrialFailure`.
"""

from loadtune.training.client import TrainingClient

__all__ = ["TrainingClient"]
