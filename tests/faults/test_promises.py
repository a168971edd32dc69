"""What the README promises, each with a test of its name; the other files here have many more for each.

Of faults under a tuner `benchmarks/inflight_faults.py` has many more; these stand for each kind of them.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import inflight_faults
import pytest
from cli_rig import Command
from fakes import FakeTraining
from forked import finished
from pipeline_rig import ALL_TRIALS, Killed, resumed, tune_fake

import loadtune
from loadtune import story
from loadtune.errors import ResultError
from loadtune.run.state import read_run
from loadtune.store import load_result

RUN = ("run", "--device", "cpu", "--max-workers", "2", "--out", "kept")
SHORT = ("--time-budget", "50", "--json")
ROOT = Path(__file__).parents[2]
FAILED = (
    "other_worker_is_killed", "other_worker_is_killed_with_a_lock", "other_worker_hangs", "other_worker_is_stopped",
    "other_worker_raises", "dataset_cannot_be_pickled", "starting_worker_is_killed", "other_worker_fills_shm",
    "first_worker_cannot_use_cuda", "no_descriptors",
)  # fmt: skip
FAULTS = dict.fromkeys(FAILED, "3 workers failed") | {
    "worker_reads_other_samples": "other samples than the training process",
    "tuner_fails_in_open": "broken on purpose",
    "tuner_fails_in_after_step": "broken on purpose",
    "handler_raises_while_the_loop_waits": "",
    "loop_is_interrupted": "KeyboardInterrupt",
    "loader_is_deleted": "",
}
"""And what is said on stderr."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed in its second trial, whose workers waited and go with it: its home, what it had kept."""
    words = ("--dataset", "training_workloads:HeldOnceATrialIsKept", "--model", "training_workloads:Linear")
    words += ("--time-budget", "300", "--max-batch-size", "16", "--precision", "fp32", "--num-workers", "2")
    home = tmp_path_factory.mktemp("killed")
    (home / "cwd").mkdir()
    (home / "cwd" / "hold").touch()
    with Command(home, *RUN, *words) as command:
        command.until(lambda: "[search] trial 1/" in command.stderr())
        command.until(lambda: len(command.descendants()) >= 2)  # the training and workers of a trial
        command.signal(signal.SIGKILL)
        ended = command.end()
    assert ended.left_behind == []
    assert list(home.glob("tmp-*/*")) == []
    (folder,) = (home / "cwd" / "kept").glob("*/*")
    before = read_run(folder)
    assert before.trials
    return home, before


@pytest.fixture
def cut(killed, tmp_path):
    """A copy of what it left: its home, its folder there, and what that has."""
    home, before = killed
    shutil.copytree(home / "cwd", tmp_path / "cwd")
    (folder,) = (tmp_path / "cwd" / "kept").glob("*/*")
    return tmp_path, folder, before


def test_whatever_ends_a_run_nothing_of_it_stays_running(cut):
    """Whatever ends a run, nothing of it stays running: `killed` was killed, and this is resumed until its terminal
    closes. What it saw is kept, and nothing is claimed."""
    home, folder, before = cut
    with Command(home, "run", "--resume", "--out", "kept") as command:
        command.until(lambda: "This run was resumed" in command.stderr())
        command.until(lambda: len(command.descendants()) >= 2)
        command.signal(signal.SIGHUP)
        ended = command.end()
    assert ended.code == 129
    assert ended.left_behind == []
    assert "Traceback" not in ended.stderr
    assert "Nothing was confirmed." in ended.stdout
    assert f"loadtune run --resume {folder.relative_to(home / 'cwd')}\n" in ended.stdout
    result = loadtune.load_result(folder)
    assert "SIGHUP" in result.cut_short
    assert list(result.trials[: len(before.trials)]) == before.trials
    assert result.best is None
    with pytest.raises(ResultError, match="no confirmed winner"):
        loadtune.best_loader_kwargs(folder)


def test_finished_measurements_can_be_resumed(cut):
    """Finished measurements can be resumed: nothing is measured again."""
    home, folder, before = cut
    (home / "cwd" / "hold").unlink()
    num_trials = len(before.trials) + 1
    with Command(home, "run", "--resume", "--out", "kept", *SHORT, "--trials", str(num_trials)) as command:
        ended = command.end()
    assert ended.code == 0, ended.stderr
    assert list((home / "cwd" / "kept").glob("*/*")) == [folder]
    result = loadtune.load_result(folder)
    assert list(result.trials[:-1]) == before.trials
    assert len(result.trials) == num_trials
    assert {c for c in result.ceilings if not c.verified} <= set(before.ceilings)
    assert result.best is not None


def test_a_confirmed_answer_is_on_disk(tmp_path, monkeypatch):
    """A confirmed answer is on disk, before it is explained."""

    def dies(*given):
        raise Killed

    monkeypatch.setattr(story, "name_bottleneck", dies)
    with pytest.raises(Killed):
        tune_fake(FakeTraining(), tmp_path, ALL_TRIALS)
    monkeypatch.undo()
    best = load_result(tmp_path).best
    assert resumed(tmp_path, ALL_TRIALS).best.config == best.config


def test_a_sample_or_worker_that_fails_is_named(tmp_path):
    """A sample or worker that fails is named, and no configuration with it is the answer."""
    words = ("--dataset", "training_workloads:CrashesAtIndex", "--model", "training_workloads:Linear", *SHORT)
    words += ("--trials", "1", "--precision", "fp32", "--fix", "num_workers=2", "--max-batch-size", "16", "--quiet")
    with Command(tmp_path, *RUN, *words, "--num-workers", "2") as command:
        run = command.end()
    assert run.code == 1, run.stderr
    assert run.left_behind == []
    result = json.loads(run.stdout)
    assert result.get("best") is None
    named = "A worker was ended by SIGSEGV while it loaded dataset["
    assert any(named in note for note in result["notes"]), result["notes"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    command, environment = [sys.executable, inflight_faults.__file__, *FAULTS], os.environ | {"PYTHONPATH": str(ROOT)}
    done = finished(command, tmp_path_factory.mktemp("faults"), env=environment)
    assert done.returncode == 0, done.stderr
    return {each["fault"]: each for each in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize(("fault", "said"), FAULTS.items())
def test_your_training_gets_the_samples_it_would_get_without_loadtune_and_ends_as_it_would(fault, said, found):
    """Your training gets the samples it would get without loadtune, in the same order, and ends as it would."""
    assert found[fault]["with"] == found[fault]["without"]
    assert found[fault]["without"]["status"] != "hung"
    assert said in found[fault]["said"]
