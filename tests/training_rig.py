"""A training on the CPU over one of the tiny workloads, for tests that need a real process."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.training.client import TrainingClient

TESTS = Path(__file__).resolve().parent
CPU = Device(kind="cpu", name="cpu")
FAULT = "LOADTUNE_TEST_FAULT"


def spec_of(dataset="Images", model="Linear"):
    return WorkloadSpec(dataset=f"training_workloads:{dataset}", model=f"training_workloads:{model}")


@contextlib.contextmanager
def training_on(folder, dataset="Images", model="Linear", *, fresh=False):
    """The client, with the tiny workloads importable for its child. ``fresh``: that is a new interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        started_by = subprocess
        if not fresh:
            from forked import PROCESSES as started_by  # imports torch
        patch.setattr("loadtune.training.process.subprocess", started_by)
        patch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        patch.setenv(FAULT, str(folder / "fault"))
        spec, log_path = spec_of(dataset, model), folder / "training.log"
        with TrainingClient(spec, CPU, log_path=log_path, hang_s=30.0) as training:
            yield training


@contextlib.contextmanager
def fault(words):
    """Have a sample of `Misbehaves` do so: ``exit worker 41``, ``hang main any``. Yields a file that is there once one
    hangs."""
    path = Path(os.environ[FAULT])
    order, reached = path.with_name("order"), path.with_name("reached")
    reached.unlink(missing_ok=True)
    order.write_text(words)
    order.replace(path)  # at once: a worker may be reading it
    try:
        yield reached
    finally:
        path.unlink()


def trial(batch_size=8, num_workers=0, **loader):
    return TrialConfig(loader=LoaderConfig(batch_size=batch_size, num_workers=num_workers, **loader), recipe=Recipe())


class Windows(list):
    """A watch that keeps what it is told and has enough after so many windows."""

    def __init__(self, enough):
        super().__init__()
        self._enough = enough

    def __call__(self, window):
        self.append(window)
        return len(self) < self._enough
