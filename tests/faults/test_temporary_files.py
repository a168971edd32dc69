"""Workers and the training process are killed, and all the same none of their temporary files is left."""

import os
import subprocess
import sys
from pathlib import Path

import bench_workloads
import pytest
import torchvision  # noqa: F401  importing it makes a folder for torch.compile, in whichever process
from bench_rig import TESTS, Windows, bench_on, trial
from cli_rig import GONE_S, until
from torch.utils.data import Subset

from loadtune import find_batch_size
from loadtune.records import TrainingRun

ROOT = TESTS.parent


def test_a_run_with_workers_leaves_no_temporary_file(short_tmp, tmp_path):
    sockets = []

    def watch(window):
        sockets.extend(short_tmp.rglob("pymp-*"))
        return False

    with bench_on(tmp_path, dataset="LeavesFiles") as bench:
        assert isinstance(bench.time_training(trial(num_workers=2), 0.05, watch), TrainingRun)
        assert list(short_tmp.rglob("of a worker")), "nothing to take away: the test tests nothing"
    assert sockets, "nothing to take away: the test tests nothing"
    assert list(short_tmp.iterdir()) == []


def test_a_training_process_that_is_killed_leaves_its_folder_to_the_next_one(short_tmp, tmp_path):
    with bench_on(tmp_path, model="AbortsAtBatch4", dataset="LeavesFiles") as bench:
        assert not isinstance(bench.time_training(trial(4, num_workers=1), 0.05, Windows(enough=1)), TrainingRun)
        assert isinstance(bench.time_training(trial(8, num_workers=1), 0.05, Windows(enough=1)), TrainingRun)
    assert list(short_tmp.iterdir()) == []


def test_find_batch_size_leaves_no_temporary_file(short_tmp, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{ROOT}")
    find_batch_size(bench_workloads.Linear(), Subset(bench_workloads.Images(), range(4)), device="cpu", num_steps=1)
    assert list(short_tmp.iterdir()) == []


CONTROLLER = """
import pathlib, sys
from bench_rig import bench_on, trial
with bench_on(pathlib.Path(sys.argv[1]), dataset="LeavesFiles") as bench:
    def watch(window):
        print(bench.pid, flush=True)
        return True
    bench.time_training(trial(num_workers=2), 0.05, watch)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="a group's members are found in /proc")
def test_a_killed_controller_leaves_no_temporary_file(short_tmp, tmp_path):
    path = os.pathsep.join([str(TESTS), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(short_tmp)},
    ) as controller:
        assert controller.stdout.readline(), "it never trained"
        assert list(short_tmp.rglob("pymp-*")), "nothing to take away: the test tests nothing"
        controller.kill()
    assert until(lambda: list(short_tmp.iterdir()) == [], GONE_S)
