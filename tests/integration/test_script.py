"""The user's script as the training process: real scripts, their loops, and how they end."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from cli_rig import until
from forked import finished
from script_rig import FP32, client_of, timed

from loadtune.cli.command import NO_ANSWER
from loadtune.errors import TrainingError
from loadtune.records.config import Recipe
from loadtune.records.measurement import TrainingRun, TrialFailure
from loadtune.records.memory import BatchTry
from loadtune.stream.shm_cleanup import is_alive

SCRIPT = """
import contextlib, json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

mode = sys.argv[1]

def note(*noted):
    print(json.dumps(noted), flush=True)

class Rows(Dataset):
    def __len__(self):
        return 640
    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 3

class Images(Rows):
    def __getitem__(self, index):
        return torch.full((3, 8, 8), float(index)), index % 3

class Convolution(nn.Sequential):
    def forward(self, images):
        with torch.autocast("cpu", torch.bfloat16, enabled=False) if mode == "switch" else contextlib.nullcontext():
            features = self[0](images)
            with torch.autocast("cpu", enabled=False):
                self.seen = str(features.dtype), self[0].weight.is_contiguous(memory_format=torch.channels_last)
                return self[1](features.float().mean((2, 3)))

def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    rows, model = Rows(), nn.Linear(4, 3)
    if mode in ("switch", "images"):
        rows, model = Images(), Convolution(nn.Conv2d(3, 4, 3), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    given = {"batch_sampler": [[index, index + 1] for index in range(0, 640, 2)]} if mode == "batches" else {}
    given = given or {"batch_size": 8, "shuffle": True, "num_workers": 1}
    loader, validation, hidden = DataLoader(rows, **given), DataLoader(rows, 4), torch.zeros(8, 3)
    every = 2 if mode == "accumulate" else 1
    for epoch in range(3):
        for number, (inputs, labels) in enumerate(ahead(loader) if mode == "ahead" else loader):
            assert len(inputs) <= 8 or not torch.backends.cudnn.benchmark
            if mode == "short" and number == 12:
                break
            if mode in ("raises", "switch") and len(inputs) > 32:
                raise ValueError("too many rows")
            if mode == "full" and len(inputs) > 8:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
            if mode == "full" and torch.is_autocast_enabled("cpu"):
                raise RuntimeError("this loss is unsafe to autocast")
            if mode == "cut":
                inputs, labels = inputs[:8], labels[:8]
            outputs = model(inputs) + (hidden if mode == "own size" else 0)
            note(len(inputs), *getattr(model, "seen", [str(outputs.dtype)]))
            if mode == "saves":
                torch.save(model.state_dict(), "model.pt")
            nn.functional.cross_entropy(outputs.float(), labels).backward()
            if (number + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            sizes = [len(inputs) for inputs, _ in validation if model(inputs).dtype == torch.float32]
        note("validation", len(sizes))
    note("end")

def ahead(loader):
    batches = iter(loader)
    now = next(batches)
    for following in batches:
        yield now
        now = following
    yield now

if mode == "untrained":
    print("nothing to do")
elif mode == "fails":
    input("name of the run: ")
elif __name__ == "__main__":
    main()
"""
BF16 = Recipe(precision="bf16")


@pytest.fixture
def script(tmp_path, forked):
    """(Starts a client of the script in this mode, what the script noted)."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)

    def client(mode):
        return client_of((sys.executable, str(path), mode), tmp_path / "log")

    def notes():
        return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("[")]

    return client, notes


def test_its_loop_trains_on_batches_that_are_asked_for(script):
    client, notes = script
    with client("plain") as training:
        facts = training.describe()
        assert (facts.loader_place, facts.own_precision, facts.precisions) == ("train.py:42", "fp32", ("fp32", "bf16"))
        assert (facts.own_loader.batch_size, facts.own_loader.num_workers) == (8, 1)
        assert (facts.dataset_length, facts.input_shape, facts.fixed_batch_size) == (640, (4,), None)
        for size, recipe, workers in ((16, FP32, 0), (40, BF16, 2)):
            before = len(notes())
            run, windows = timed(training, size, recipe, workers)
            assert isinstance(run, TrainingRun)
            assert [each.num_samples for each in windows] == [size * each.num_steps for each in windows]
            assert {tuple(each) for each in notes()[before:]} == {(size, f"torch.{TYPES[recipe.precision]}")}
        point = training.time_compute(FP32, 24, 0.1)
        assert [each.num_samples for each in point.windows] == [24 * each.num_steps for each in point.windows]
        report = training.try_batch(BatchTry(recipe=FP32, batch_size=64, verify=True, partial_batch_size=3))
        assert report.fits, report.failure
        assert report.peak_bytes > 0
    assert all(each[0] != "end" for each in notes()), "nothing after the loop runs"


ROOT = Path(__file__).parents[2]
TYPES = {"fp32": "float32", "bf16": "bfloat16"}


@pytest.mark.parametrize("mode", ["switch", "images"])
def test_weights_are_laid_out_and_an_autocast_that_is_switched_off_around_the_model_is_switched(script, mode):
    client, notes = script
    with client(mode) as training:
        facts = training.describe()
        assert (facts.precisions, facts.takes_channels_last) == (("fp32", "bf16"), True)
        timed(training, 20, replace(BF16, memory_format="channels_last"))
        timed(training, 20)
        timed(training, 24, BF16)
        timed(training, 40)  # which ends the script; it starts again
        timed(training, 28, BF16)
    sizes = {20: [], 24: [], 28: []}
    for size, *seen in (each for each in notes() if each[0] in sizes):
        sizes[size] += [seen] if seen not in sizes[size][-1:] else []
    assert sizes == {
        20: [["torch.bfloat16", True], ["torch.float32", False]],
        24: [["torch.bfloat16", False]],
        28: [["torch.bfloat16", False]],
    }


def test_gradients_of_several_batches_are_seen(script):
    client, _ = script
    with client("accumulate") as training:
        training.describe()
        _, windows = timed(training, 16)
        assert all(each.num_steps % 2 == 0 for each in windows)


@pytest.mark.parametrize(("mode", "size"), [("own size", 8), ("cut", 8), ("batches", 2), ("ahead", None)])
def test_a_loop_with_one_batch_size_keeps_it_and_one_that_is_a_batch_ahead_takes_others(script, mode, size):
    client, _ = script
    with client(mode) as training:
        assert training.describe().fixed_batch_size == size
        run, _ = timed(training, size or 16, workers=1)
        assert isinstance(run, TrainingRun)


def test_memory_that_is_full_and_a_precision_that_its_loop_does_not_take_leave_the_rest_to_tune(script):
    client, _ = script
    with client("full") as training:
        facts = training.describe()
        assert (facts.fixed_batch_size, facts.precisions, facts.own_precision) == (None, ("fp32",), "fp32")
        assert isinstance(timed(training, 4)[0], TrainingRun)


def test_one_that_ends_by_itself_starts_again_and_one_that_always_does_is_told(script, monkeypatch):
    monkeypatch.setattr("loadtune.training.client._MAX_ENDED", 1)
    client, _ = script
    with client("short") as training:
        assert training.describe().dataset_length == 640
        with pytest.raises(TrainingError, match="ended by itself 2 times"):
            timed(training, 16, num_windows=100)


def test_what_its_loop_raises_ends_the_trial_and_the_next_one_starts_it_again(script):
    client, _ = script
    with client("raises") as training:
        training.describe()
        failure, _ = timed(training, 40)
        assert "too many rows" in failure.message + failure.log_tail
        run, _ = timed(training, 24)
        assert isinstance(run, TrainingRun)


@pytest.mark.parametrize(("mode", "said"), [("untrained", "nothing to do"), ("fails", "EOFError")])
def test_a_script_that_never_trains_is_told_in_a_sentence(script, mode, said):
    client, _ = script
    with client(mode) as training, pytest.raises(TrainingError) as raised:
        training.describe()
    assert "No optimizer had stepped twice yet in a loop over a torch DataLoader" in str(raised.value)
    assert said in str(raised.value)


def test_the_command_is_told_its_answer_and_files_of_an_earlier_run_stay(script, tmp_path):
    (tmp_path / "model.pt").write_bytes(b"of an earlier run")
    words = ["-m", "loadtune", "run", "--device", "cpu", "--time-budget", "15", "--out", "found"]
    command = [sys.executable, *words, "--", sys.executable, "train.py", "saves"]
    done = finished(command, tmp_path / "said", cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode in (0, NO_ANSWER), done.stderr
    assert re.search(r"baseline .*batch 8, 1 worker, not pinned, fp32", done.stdout), done.stdout
    assert "is thrown away at the end" in done.stderr or "Landlock" in done.stderr
    assert (tmp_path / "model.pt").read_bytes() == b"of an earlier run"


KILLED = """
import sys, time
from script_rig import client_of
training = client_of(tuple(sys.argv[1:]), None)
training.describe()
print(training.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("who", ["controller", "script"])
def test_whoever_is_killed_nothing_stays(script, tmp_path, who):
    client, _ = script
    if who == "script":
        with client("plain") as training:
            training.describe()
            os.kill(training.pid, signal.SIGKILL)
            failure, _ = timed(training, 16)
            assert isinstance(failure, TrialFailure)
            assert isinstance(timed(training, 16)[0], TrainingRun)
        return
    command = [sys.executable, str(tmp_path / "train.py"), "plain"]
    scratch = Path(tempfile.mkdtemp(dir="/tmp"))  # a short path, as sockets need
    given = [sys.executable, "-c", KILLED, *command]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = os.environ | {"TMPDIR": str(scratch), "PYTHONPATH": path}
    with subprocess.Popen(given, stdout=subprocess.PIPE, text=True, env=environment) as controller:
        pid = int(controller.stdout.readline())
        controller.kill()
    assert until(lambda: not is_alive(pid) and not list(scratch.iterdir()), 20.0)
    scratch.rmdir()
