"""What a user gets wrong, through the real command: one message that helps, exit code 2, and nothing left behind."""

import concurrent.futures
import os
import shlex

import pytest
from cli_rig import IMAGES, Command, files_below

W = "bench_workloads:"
LINEAR, GOOD = f"--model {W}Linear", f"--dataset {W}Images"
# (words, what the message says): found, allowed, what to do.
BAD = {
    "budget 0": ("--time-budget 0", ["--time-budget is 0", "above 0"]),
    "no such device": ("--device cuda:99", ["--device is 'cuda:99'", "--device cpu"]),
    "--out is a file": ("--out taken", ["--out is taken,"]),
    "unknown dataset": (f"--dataset FakeDate {LINEAR}", ["'FakeDate'", "Did you mean FakeData"]),
    "unknown model": (f"{GOOD} --model resnet5", ["'resnet5'", "Did you mean resnet", "resnet50"]),
    "no data root": ("--dataset ImageFolder --model resnet18", ["ImageFolder", "--data-root FOLDER"]),
    "missing data root": (
        "--dataset ImageFolder --data-root nowhere --model resnet18",
        ["ImageFolder", "nowhere", "does not exist", "--data-root"],
    ),
    "no download": (
        "--dataset MNIST --data-root empty --model resnet18",
        ["not whole, in empty", "Connection refused", "by hand"],
    ),
    "batch above dataset": (f"{GOOD} {LINEAR} --batch-size 513", ["513", "512 samples"]),
    "batch below the model's": (f"{GOOD} --model {W}Normed --batch-size 1", ["--batch-size 1", "at least 2"]),
    "no such module": (f"--dataset nobody:make {LINEAR}", ["no module 'nobody'", "PYTHONPATH"]),
    "no such factory": (f"--dataset {W}Imagse {LINEAR}", ["no 'Imagse'", "Did you mean Images"]),
    "factory raises": (f"--dataset {W}raising_factory {LINEAR}", ["raised OSError: no such disk"]),
    "factory exits": (f"--dataset {W}exits {LINEAR}", ["raised SystemExit: 2", "without arguments"]),
    "factory returns no dataset": (f"--dataset {W}no_dataset {LINEAR}", ["no_dataset is a dict", "map-style"]),
    "factory returns no model": (f"{GOOD} --model {W}not_a_model", ["returned a str", "torch.nn.Module"]),
    "empty dataset": (f"--dataset {W}Empty {LINEAR}", ["is empty", "holds samples"]),
    "shapes differ": (f"--dataset {W}OddShapes {LINEAR}", ["the input differs", "(3, 8, 8)", "same type and shape"]),
    "no tensors": (f"--dataset {W}Pictures {LINEAR}", ["cannot be collated", "mode=RGB size=8x8", "ToTensor"]),
    "a sample raises": (f"--dataset {W}RaisesAtOnce {LINEAR}", ["dataset[0] raised KeyError: 'label missing'"]),
    "a later sample raises": (f"--dataset {W}RaisesAtIndex {LINEAR}", ["dataset[5] raised ValueError: broken sample"]),
    "model rejects samples": (f"--dataset {W}Scalars {LINEAR}", ["does not train", "float32 tensor (4,)"]),
    "labels out of range": (f"--dataset {W}LabelTooHigh {LINEAR}", ["target is 3", "between 0 and 2", "--num-classes"]),
}
OWN_TRACEBACK = {"factory raises", "factory exits", "a sample raises", "a later sample raises", "model rejects samples"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All of them, two at a time: most of a run is the start of its bench."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(_run, tmp_path_factory.mktemp("bad"), words) for name, (words, _) in BAD.items()}
        pool.shutdown(cancel_futures=True)


def _run(home, words):
    for name in ("taken", "empty"):
        (home / "cwd" / name).parent.mkdir(exist_ok=True)
    (home / "cwd" / "taken").write_text("a file")
    (home / "cwd" / "empty").mkdir()
    # The number of trials is what ends a run that should have been refused.
    command = Command(home, "run", "--device", "cpu", "--trials", "2", "--time-budget", "60", *shlex.split(words))
    try:
        return command, command.end()
    finally:
        command.kill()


@pytest.mark.parametrize("name", BAD)
def test_it_is_told_in_a_message(runs, name):
    _, ended = runs[name].result()
    assert ended.code == 2, ended.stderr
    assert ended.stderr.count("error: ") == 1, ended.stderr
    message = ended.stderr.rpartition("error: ")[2]
    assert all(words in message for words in BAD[name][1]), message
    assert os.sep + "loadtune" + os.sep not in message, message


@pytest.mark.parametrize("name", BAD)
def test_no_traceback_but_the_users_own(runs, name):
    _, ended = runs[name].result()
    assert ("Traceback" in ended.stderr) == (name in OWN_TRACEBACK), ended.stderr
    assert ("bench_workloads.py" in ended.stderr) == (name in OWN_TRACEBACK)
    assert "loadtune/" not in ended.stderr, ended.stderr


@pytest.mark.parametrize("name", BAD)
def test_it_leaves_nothing_behind(runs, name):
    command, ended = runs[name].result()
    assert ended.left_behind == []
    kept = [file for file in files_below(command.home) if file not in ("stderr", "cwd/taken")]
    # What was measured before a broken sample turned up is kept, as a whole result or not at all.
    assert not kept or any(file.endswith("result.json") for file in kept)
    assert list((command.home / "cwd" / "empty").iterdir()) == []


def test_debug_adds_our_traceback_and_keeps_the_log(tmp_path):
    command = Command(tmp_path, "run", *IMAGES, "--device", "cpu", "--batch-size", "513", "--debug")
    ended = command.end()
    assert ended.code == 2
    assert "check_against_facts" in ended.stderr
    assert [name.rpartition("/")[2] for name in files_below(tmp_path / "cwd")] == ["bench.log", "journal.jsonl"]
