"""Several ranks of the user's script as one training: real ranks over gloo, and how they end."""

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
from cli_rig import until
from forked import finished
from script_rig import FP32, client_of, timed

from loadtune.cli.command import NO_ANSWER
from loadtune.records.measurement import TrainingRun
from loadtune.stream.shm_cleanup import is_alive

SCRIPT = """
import json, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

mode = sys.argv[1]
dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()

class Rows(Dataset):
    def __len__(self):
        return 640
    def __getitem__(self, index):
        time.sleep(0.004 if mode == "uneven" and rank == 1 else 0.001)
        return torch.full((4,), float(index)), index % 3

def batches():
    rows = Rows()
    if mode == "loads nothing" and rank == 1:
        while True:
            size = torch.zeros(1, dtype=torch.long)
            dist.broadcast(size, 0)
            yield torch.zeros(int(size), 4), torch.zeros(int(size), dtype=torch.long)
    given = {"sampler": DistributedSampler(rows)}
    if mode == "uneven":
        rows, given = Subset(rows, range(640 if rank else 200)), {"shuffle": True}
    while True:
        for inputs, labels in DataLoader(rows, 8, num_workers=1, **given):
            if mode == "loads nothing":
                dist.broadcast(torch.tensor([len(inputs)]), 0)
            yield inputs, labels

model = DistributedDataParallel(nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for inputs, labels in batches():
    if mode == "full" and rank == 1 and len(inputs) > 32:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    print(json.dumps([rank, len(inputs), os.getpid()]), flush=True)
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LAUNCHER = """
import os, subprocess, sys

common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
environments = [os.environ | common | {"RANK": rank} for rank in "01"]
ranks = [subprocess.Popen([sys.executable, *sys.argv[2:]], env=each, start_new_session=True) for each in environments]
os.wait()
for rank in ranks:
    rank.kill()
sys.exit(1)
"""


@pytest.fixture
def ranks(tmp_path, forked):
    """(Starts a client of two ranks in this mode, what they noted: rank, batch size, process)."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    (tmp_path / "launch.py").write_text(LAUNCHER)

    def client(mode):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            command = (sys.executable, str(tmp_path / "launch.py"), str(free.getsockname()[1]), str(path), mode)
        return client_of(command, tmp_path / "log")

    def notes():
        found = re.findall(r"\[[01], \d+, \d+\]", (tmp_path / "log").read_text())
        return [json.loads(line) for line in found]

    return client, notes


@pytest.mark.parametrize("mode", ["even", "loads nothing"])
def test_all_ranks_train_on_what_is_asked_for_and_start_again_where_one_ends(ranks, mode):
    client, notes = ranks
    with client(mode) as training:
        facts = training.describe()
        assert (facts.dataset_length, facts.num_ranks) == (320, 1 if mode == "loads nothing" else 2)
        for size, workers in ((16, 0), (40, 2)):
            before = len(notes())
            run, windows = timed(training, size, workers=workers)
            assert isinstance(run, TrainingRun), run
            assert [each.num_samples for each in windows] == [size * each.num_steps for each in windows]
            assert {(0, size), (1, size)} == {tuple(each[:2]) for each in notes()[before:]}
            assert run.differing == ()
        point = training.time_compute(FP32, 24, 0.1)
        assert [each.num_samples for each in point.windows] == [24 * each.num_steps for each in point.windows]
        if mode == "even":
            os.kill(next(pid for rank, _, pid in notes()[::-1] if rank == 1), signal.SIGKILL)
            failure, _ = timed(training, 40)
            assert failure.kind == "crash"
            assert isinstance(timed(training, 24)[0], TrainingRun)
    # One that is killed takes a moment to give its memory back.
    assert until(lambda: not any(is_alive(pid) for pid in {pid for _, _, pid in notes()}))


def test_a_rank_whose_memory_is_full_ends_the_trial_of_all(ranks):
    client, _ = ranks
    with client("full") as training:
        training.describe()
        failure, _ = timed(training, 40)
        assert (failure.kind, failure.message[:7]) == ("oom", "Rank 1:")


def test_a_whole_run_says_that_ranks_train_in_step_and_names_the_slow_one(ranks, tmp_path):
    options = ["--device", "cpu", "--time-budget", "30", "--trials", "2", "--out", "found", "--fix", "precision=fp32"]
    script = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", "uneven"]
    command = [sys.executable, "-m", "loadtune", "run", *options, "--", *script]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = finished(command, tmp_path / "said", cwd=tmp_path, env=environment)
    assert done.returncode in (0, NO_ANSWER), done.stderr
    assert "200 samples of 4 float32" in done.stderr, "the shortest epoch counts"
    assert "2 ranks train in step" in done.stderr
    assert "Rank 1 loads" in done.stderr
    (found,) = tmp_path.glob("found/*/*/run.json")
    assert json.loads(found.read_text())["facts"]["num_ranks"] == 2
