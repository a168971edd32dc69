"""The command as a user runs it: real processes, a real dataset and model, on the CPU."""

import json

import pytest
import training_workloads
from cli_rig import Command, files_below

import loadtune

RUN = ("run", "--device", "cpu", "--max-workers", "2", "--out", "kept")
# The search takes half of it; the rest is for a machine that is busy.
SHORT = ("--time-budget", "50", "--json")
RUN_FILES = ["report.html", "result.json", "run.json", "study.db", "training.log"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One whole run, shared by the tests that look at what it left; of a model whose loss in bf16 is NaN."""
    words = ("--dataset", "training_workloads:SlowImages", "--model", "training_workloads:NanInBf16")
    home = tmp_path_factory.mktemp("run")
    with Command(home, *RUN, *words, *SHORT, "--trials", "1", "--batch-size", "16", fresh=True) as command:
        ended = command.end()
    (folder,) = (home / "cwd" / "kept").glob("*/*")
    return home, folder, ended


def test_a_run_ends_with_an_answer_and_leaves_its_own_folder_alone(finished):
    home, folder, ended = finished
    assert ended.code == 0, ended.stderr
    assert ended.left_behind == []
    assert "Traceback" not in ended.stderr
    assert ended.stdout == (folder / "result.json").read_text()
    assert json.loads(ended.stdout)["best"] is not None
    assert folder.parent.name == "training_workloads.SlowImages-training_workloads.NanInBf16"
    assert list(home.glob("tmp-*/*")) == []
    written = [name for name in files_below(home) if name not in ("stdout", "stderr")]
    assert written == [str((folder / name).relative_to(home)) for name in RUN_FILES]


def test_the_result_says_what_was_confirmed_and_which_precision_was_left_out(finished):
    result = loadtune.load_result(finished[1])
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


def test_every_run_is_told_with_the_workers_it_had(finished):
    """Found from outside, by the names that PyTorch gives its processes. Short spans may begin before a worker is."""
    result = loadtune.load_result(finished[1])
    runs = [(each.config.loader.num_workers, run.telemetry) for each in result.finalists for run in each.runs]
    assert all(telemetry.timeline for _, telemetry in runs)
    seen = {bool(num_workers) for num_workers, telemetry in runs if telemetry.workers_cpu_cores is not None}
    assert seen == ({True} if any(num_workers for num_workers, _ in runs) else set())
