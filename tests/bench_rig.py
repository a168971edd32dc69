"""A bench on the CPU over one of the tiny workloads, for tests that need a real process."""

import contextlib
import os
from pathlib import Path

from loadtune.bench import BenchClient
from loadtune.records import Device, LoaderConfig, Recipe, TrialConfig, WorkloadSpec

TESTS = Path(__file__).resolve().parent
CPU = Device(kind="cpu", name="cpu")


def spec_of(dataset="Images", model="Linear"):
    return WorkloadSpec(dataset=f"bench_workloads:{dataset}", model=f"bench_workloads:{model}")


@contextlib.contextmanager
def bench_on(folder, dataset="Images", model="Linear", hang_s=30.0, cores=None):
    """The client, with the tiny workloads importable for its child."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(TESTS) if before is None else f"{TESTS}{os.pathsep}{before}"
    try:
        spec, log_path = spec_of(dataset, model), folder / "bench.log"
        with BenchClient(spec, CPU, log_path=log_path, hang_s=hang_s, cores=cores) as bench:
            yield bench
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


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
