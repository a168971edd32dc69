"""What the README promises, each with a test of its name; the other files here have many more for each. And what a run
leaves as a user starts it: real processes, a real dataset and model, on the CPU.

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
import training_workloads
from cli_rig import Command, files_below
from fakes import FakeTraining
from forked import finished
from pipeline_rig import ALL_TRIALS, Killed, resumed, tune_fake

import loadtune
from loadtune import story
from loadtune.errors import ResultError
from loadtune.run.state import read_run
from loadtune.store import load_result

RUN = ("run", "--device", "cpu", "--max-workers", "2", "--out", "kept")
# The search takes half of it; the rest is for a machine that is busy.
SHORT = ("--time-budget", "50", "--json")
RUN_FILES = ["report.html", "result.json", "run.json", "study.db", "training.log"]
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
    """A run that was killed in its second trial, whose workers waited and go with it: its home, what it had kept. Of a
    model whose loss in bf16 is NaN."""
    words = ("--dataset", "training_workloads:HeldOnceATrialIsKept", "--model", "training_workloads:NanInBf16")
    words += ("--time-budget", "300", "--batch-size", "16")
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


def copied(home, to):
    """Of what it left: the folder of its run."""
    shutil.copytree(home / "cwd", to / "cwd")
    (folder,) = (to / "cwd" / "kept").glob("*/*")
    return folder


@pytest.fixture(scope="module")
def resumed_run(killed, tmp_path_factory):
    """It went on to its end, of one more trial: its home, its folder there, and how it ended."""
    home = tmp_path_factory.mktemp("resumed")
    folder = copied(killed[0], home)
    for path in (home / "cwd" / "hold", folder / "study.db"):  # the second is written anew
        path.unlink()
    trials = ("--trials", str(len(killed[1].trials) + 1))
    with Command(home, "run", "--resume", "--out", "kept", *SHORT, *trials, fresh=True) as command:
        ended = command.end()
    return home, folder, ended


def test_whatever_ends_a_run_nothing_of_it_stays_running(killed, tmp_path):
    """Whatever ends a run, nothing of it stays running: `killed` was killed, and this is resumed until its terminal
    closes. What it saw is kept, and nothing is claimed."""
    home, before = tmp_path, killed[1]
    folder = copied(killed[0], home)
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


def test_finished_measurements_can_be_resumed(killed, resumed_run):
    """Finished measurements can be resumed: nothing is measured again."""
    before, (home, folder, ended) = killed[1], resumed_run
    assert ended.code == 0, ended.stderr
    assert list((home / "cwd" / "kept").glob("*/*")) == [folder]
    result = loadtune.load_result(folder)
    assert list(result.trials[:-1]) == before.trials
    assert len(result.trials) == len(before.trials) + 1
    assert {c for c in result.ceilings if not c.verified} <= set(before.ceilings)
    assert result.best is not None


def test_a_run_ends_with_an_answer_and_leaves_its_own_folder_alone(resumed_run):
    home, folder, ended = resumed_run
    assert ended.left_behind == []
    assert "Traceback" not in ended.stderr
    assert ended.stdout == (folder / "result.json").read_text()
    assert folder.parent.name == "training_workloads.HeldOnceATrialIsKept-training_workloads.NanInBf16"
    assert list(home.glob("tmp-*/*")) == []
    written = [name for name in files_below(home) if name not in ("stdout", "stderr")]
    assert written == [str((folder / name).relative_to(home)) for name in RUN_FILES]


def test_the_result_says_what_was_confirmed_and_which_precision_was_left_out(resumed_run):
    result = loadtune.load_result(resumed_run[1])
    assert result.cut_short is None
    assert result.yours.batch_size == result.best_at_your_batch.config.batch_size == 16
    assert result.assumed == ("num_workers", "pin_memory", "precision")
    confirmed = {finalist.config: finalist for finalist in result.finalists}
    assert result.best.samples_per_s == confirmed[result.best.config].samples_per_s
    assert result.yours in confirmed
    assert all(trial.config.batch_size <= training_workloads.LENGTH for trial in result.trials)
    assert not any(trial.failure for trial in result.trials)
    assert {trial.config.precision for trial in result.trials} == {result.best.config.precision} == {"fp32"}
    assert any(note.startswith("bf16 was left out") and "NaN or infinite" in note for note in result.notes)


def test_every_run_is_told_with_the_workers_it_had(resumed_run):
    """Found from outside, by the names that PyTorch gives its processes. Short spans may begin before a worker is."""
    result = loadtune.load_result(resumed_run[1])
    runs = [(each.config.loader.num_workers, run.telemetry) for each in result.finalists for run in each.runs]
    assert all(telemetry.timeline for _, telemetry in runs)
    seen = {bool(num_workers) for num_workers, telemetry in runs if telemetry.workers_cpu_cores is not None}
    assert seen == ({True} if any(num_workers for num_workers, _ in runs) else set())


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
