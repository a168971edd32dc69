"""Run the workload and report: a child process that owns the device, and the controller's handle on it.

Whatever dies inside becomes a `TrialFailure`.
"""

from loadtune.training.client import TrainingClient

__all__ = ["TrainingClient"]
