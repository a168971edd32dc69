"""Faults under a tuner: a training sees and ends as it does with torch alone.

`benchmarks/inflight_faults.py` has many more; these stand for each kind of them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import inflight_faults
import pytest

ROOT = Path(__file__).parents[2]
FAULTS = {
    "other_worker_is_killed": "3 workers failed",
    "other_worker_hangs": "3 workers failed",
    "other_worker_is_stopped": "3 workers failed",
    "other_worker_raises": "3 workers failed",
    "starting_worker_raises": "3 workers failed",
    "dataset_cannot_be_pickled": "3 workers failed",
    "starting_worker_is_killed": "3 workers failed",
    "other_worker_fills_shm": "3 workers failed",
    "first_worker_cannot_use_cuda": "3 workers failed",
    "worker_reads_other_samples": "other samples than the training process",
    "no_descriptors": "3 workers failed",
    "tuner_fails_in_open": "broken on purpose",
    "tuner_fails_in_after_step": "broken on purpose",
    "loop_exits": "",
    "loop_is_interrupted": "KeyboardInterrupt",
    "loader_is_deleted": "",
}
"""And what is said on stderr."""


@pytest.fixture(scope="module")
def found():
    done = subprocess.run(
        [sys.executable, inflight_faults.__file__, *FAULTS],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True, check=True, timeout=400,
    )  # fmt: skip
    return {each["fault"]: each for each in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize(("fault", "said"), FAULTS.items())
def test_a_training_goes_on_and_ends_as_without(fault, said, found):
    assert found[fault]["with"] == found[fault]["without"]
    assert found[fault]["without"]["status"] != "hung"
    assert said in found[fault]["said"]
