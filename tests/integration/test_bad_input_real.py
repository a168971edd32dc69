"""What a user gets wrong, through the real command: one message that helps, exit code 2, and nothing left behind."""

import os
import shlex

import pytest
from cli_rig import files_below, invoke

W = "training_workloads:"
LINEAR, GOOD = f"--model {W}Linear", f"--dataset {W}Images"
# (words, what the message says): found, allowed, what to do.
BAD = {
    "no such device": ("--device cuda:99", ["--device is 'cuda:99'", "--device cpu"]),
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
    "no such module": (f"--dataset nobody:make {LINEAR}", ["No module named 'nobody'", "PYTHONPATH"]),
    "factory raises": (f"--dataset {W}raising_factory {LINEAR}", ["raised OSError: no such disk"]),
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
    "a named dataset's transform": (
        f"--dataset FakeData {LINEAR}",
        ["float32 tensor (3, 224, 224)", "transform ToTensor", "--image-size"],
    ),
    "no finite loss": (f"--dataset {W}AllNan {LINEAR}", ["NaN or infinite"]),
}
OWN_TRACEBACK = {"factory raises", "a sample raises", "a later sample raises", "a named dataset's transform"}
# The number of trials is what ends a run that should have been refused.
RUN = ("run", "--device", "cpu", "--trials", "2", "--time-budget", "60")


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
    kept = [file for file in files_below(home) if file != "stderr"]
    # What was measured before a broken sample turned up is kept.
    assert not kept or any(file.endswith("run.json") for file in kept)


@pytest.mark.parametrize("name", BAD)
def test_it_is_told_in_a_message_and_nothing_is_kept(name, tmp_path, monkeypatch, in_thread):
    """With the training process as a thread: a message is the same, and comes sooner."""
    (tmp_path / "cwd" / "empty").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "cwd")
    run = invoke(*RUN, *shlex.split(BAD[name][0]))
    check_message(name, run.exit_code, run.stderr)
    check_nothing_is_kept(tmp_path)
