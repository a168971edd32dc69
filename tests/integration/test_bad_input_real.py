"""What a user gets wrong, through the real command: one message that helps, exit code 2, and nothing left behind."""

import os
import shlex

import pytest
from cli_rig import Command, files_below
from typer.testing import CliRunner

from loadtune.cli import app

W = "training_workloads:"
LINEAR, GOOD = f"--model {W}Linear", f"--dataset {W}Images"
# (words, what the message says): found, allowed, what to do.
BAD = {
    "budget 0": ("--time-budget 0", ["--time-budget is 0", "at least 5 seconds"]),
    "no such device": ("--device cuda:99", ["--device is 'cuda:99'", "--device cpu"]),
    "--out is a file": ("--out taken", ["--out is taken,"]),
    "unknown dataset": (f"--dataset FakeDate {LINEAR}", ["'FakeDate'", "Did you mean FakeData"]),
    "unknown model": (f"{GOOD} --model resnet5", ["'resnet5'", "Did you mean resnet", "resnet50"]),
    "missing data root": (
        "--dataset ImageFolder --data-root nowhere --model resnet18",
        ["ImageFolder", "nowhere", "does not exist", "--data-root"],
    ),
    "no download": (
        "--dataset MNIST --data-root empty --model resnet18",
        ["could not be read from empty", "downloads nothing", "--data-root"],
    ),
    "batch above dataset": (f"{GOOD} {LINEAR} --batch-size 513", ["513", "512 samples"]),
    "batch below the model's": (f"{GOOD} --model {W}Normed --batch-size 1", ["--batch-size 1", "at least 2"]),
    "no such module": (f"--dataset nobody:make {LINEAR}", ["no module 'nobody'", "PYTHONPATH"]),
    "factory raises": (f"--dataset {W}raising_factory {LINEAR}", ["raised OSError: no such disk"]),
    "factory exits": (f"--dataset {W}exits {LINEAR}", ["raised SystemExit: 2", "without arguments"]),
    "factory returns no dataset": (f"--dataset {W}no_dataset {LINEAR}", ["no_dataset is a dict", "map-style"]),
    "shapes differ": (
        f"--dataset {W}OddShapes {LINEAR}",
        ["stack expects each tensor to be equal size", "(3, 8, 8)", "same type and shape"],
    ),
    "no tensors": (f"--dataset {W}Pictures {LINEAR}", ["cannot be collated", "mode=RGB size=8x8", "ToTensor"]),
    "a sample raises": (f"--dataset {W}RaisesAtOnce {LINEAR}", ["dataset[0] raised KeyError: 'label missing'"]),
    "a later sample raises": (
        f"--dataset {W}RaisesLater {LINEAR} --precision fp32 --max-batch-size 8",
        ["dataset[", "] raised ValueError: broken sample"],
    ),
    "model rejects samples": (f"--dataset {W}Scalars {LINEAR}", ["does not train", "float32 tensor (4,)"]),
    "a named dataset's transform": (
        f"--dataset FakeData {LINEAR}",
        ["float32 tensor (3, 224, 224)", "transform ToTensor", "--image-size"],
    ),
    "no finite loss": (f"--dataset {W}AllNan {LINEAR}", ["NaN or infinite"]),
    "labels out of range": (
        f"--dataset {W}LabelTooHigh {LINEAR}",
        ["target is 3", "between 0 and 2", "Correct the labels or the model"],
    ),
}
OWN_TRACEBACK = {
    "factory raises",
    "factory exits",
    "a sample raises",
    "a later sample raises",
    "model rejects samples",
    "a named dataset's transform",
}

IN_PROCESSES = {"budget 0", "--out is a file", "a later sample raises"}
"""Run as a user runs them: what is refused before a training process starts, and an error in its midst."""
IN_THREAD = [name for name in BAD if name not in IN_PROCESSES]
"""Run in this process, with the training process as a thread: a message is the same, and comes sooner."""
# The number of trials is what ends a run that should have been refused.
RUN = ("run", "--device", "cpu", "--trials", "2", "--time-budget", "60")


@pytest.fixture(params=sorted(IN_PROCESSES))
def ended(request, tmp_path):
    """A case's name, and how its command ended."""
    _make_folder(tmp_path)
    command = Command(tmp_path, *RUN, *shlex.split(BAD[request.param][0]))
    try:
        return request.param, command.end()
    finally:
        command.kill()


def _make_folder(home):
    """Where the command runs, with a file that is in its way and a folder for data."""
    (home / "cwd" / "empty").mkdir(parents=True)
    (home / "cwd" / "taken").write_text("a file")


def check_message(name, code, stderr):
    assert code == 2, stderr
    assert stderr.count("error: ") == 1, stderr
    message = stderr.rpartition("error: ")[2]
    assert all(words in message for words in BAD[name][1]), message
    assert os.sep + "loadtune" + os.sep not in message, message
    assert ("Traceback" in stderr) == (name in OWN_TRACEBACK), stderr
    assert ("training_workloads.py" in stderr) == (name in OWN_TRACEBACK)
    assert "loadtune/" not in stderr, stderr


def check_nothing_is_kept(home):
    kept = [file for file in files_below(home) if file not in ("stderr", "cwd/taken")]
    # What was measured before a broken sample turned up is kept.
    assert not kept or any(file.endswith("run.json") for file in kept)
    assert list((home / "cwd" / "empty").iterdir()) == []


def test_the_command_ends_with_a_message_and_leaves_nothing_behind(ended, tmp_path):
    name, run = ended
    check_message(name, run.code, run.stderr)
    check_nothing_is_kept(tmp_path)
    assert run.left_behind == []


@pytest.mark.parametrize("name", IN_THREAD)
def test_it_is_told_in_a_message_and_nothing_is_kept(name, tmp_path, monkeypatch, in_thread):
    _make_folder(tmp_path)
    monkeypatch.chdir(tmp_path / "cwd")
    run = CliRunner().invoke(app, [*RUN, *shlex.split(BAD[name][0])])
    assert isinstance(run.exception, SystemExit), "an error of ours would end it otherwise"
    check_message(name, run.exit_code, run.stderr)
    check_nothing_is_kept(tmp_path)
