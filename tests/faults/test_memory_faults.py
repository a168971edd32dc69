"""A size that does not fit the RAM is an answer, not a death; and a user's bug is not taken for one."""

import os
import shutil
import subprocess
import sys

import pytest
from training_rig import TESTS, training_on

from loadtune.records.config import Recipe
from loadtune.records.memory import BatchTry
from loadtune.training import memory as bench_memory

needs_limit = pytest.mark.skipif(bench_memory.status_bytes("VmData") is None, reason="no VmData to limit")


IN_A_NAMESPACE = """
import pathlib, subprocess, sys
from training_rig import Windows, training_on, trial
with training_on(pathlib.Path(sys.argv[1]), fresh=True) as training:
    for options in ("size=200k", "ro"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", "/dev/shm"], check=True)
        failure = training.time_training(trial(batch_size=512, num_workers=2), 0.05, Windows(enough=1))
        print(failure.kind, failure.message)
"""


def test_a_shm_that_is_too_small_or_read_only_is_not_blamed_on_the_dataset(tmp_path):
    """A batch has 388 KiB."""
    alone = ["unshare", "-m"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*alone, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=False).returncode
    ):
        pytest.skip("needs a mount namespace")
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    words = [*alone, sys.executable, "-c", IN_A_NAMESPACE, str(tmp_path)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": path})
    small, read_only = said.stdout.splitlines()
    for line in (small, read_only):
        assert line.startswith("shm "), said.stdout
        assert "--shm-size" in line


@needs_limit
def test_a_size_over_the_budget_is_refused_at_once_and_a_smaller_one_fits_after_it(tmp_path):
    with training_on(tmp_path, model="wide_on_a_small_budget") as training:
        training.describe()
        before = training.pid
        too_large = training.try_batch(BatchTry(recipe=Recipe(), batch_size=2000))  # 8 GB an activation
        assert too_large.failure.kind == "oom"
        assert "can't allocate memory" in too_large.failure.message
        assert too_large.seconds < 5.0, "refused, not filled"
        again = training.try_batch(BatchTry(recipe=Recipe(), batch_size=100))
        assert again.failure.kind == "oom", "the first activation fits, not all of them"
        fitting = training.try_batch(BatchTry(recipe=Recipe(), batch_size=8))
        assert fitting.fits
        assert fitting.peak_bytes <= fitting.budget_bytes
        assert training.pid == before


def test_a_size_whose_evaluation_runs_out_of_memory_trains_and_is_not_verified(tmp_path, in_thread):
    with training_on(tmp_path, model="OutOfMemoryInEvaluation") as training:
        assert training.try_batch(BatchTry(recipe=Recipe(), batch_size=8)).fits
        failure = training.try_batch(BatchTry(recipe=Recipe(), batch_size=8, verify=True)).failure
        assert (failure.kind, failure.phase) == ("oom", "evaluation")
        assert training.try_batch(BatchTry(recipe=Recipe(), batch_size=8)).fits


def test_a_model_that_says_out_of_memory_itself_has_a_bug(tmp_path, in_thread):
    with training_on(tmp_path, model="ClaimsOutOfMemoryAbove4") as training:
        failure = training.try_batch(BatchTry(recipe=Recipe(), batch_size=8)).failure
        assert failure.kind == "user_error"
        assert "training_workloads.py" in failure.log_tail


@needs_limit
def test_threads_that_start_under_a_full_limit_do_not_end_the_process():
    script = (
        "import torch\n"
        "from loadtune.training import memory as bench_memory\n"
        "from loadtune.training.memory import CpuMemory\n"
        "torch.set_num_threads(16)\n"
        "held = torch.empty(1 << 22)\n"
        "CpuMemory.budget_bytes = lambda self: bench_memory.rss_bytes() + (1 << 20)\n"
        "with CpuMemory().capped():\n"
        "    held.fill_(1.0)\n"
        "print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "alive\n", done.stderr
