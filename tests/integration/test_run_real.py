"""The command as a user runs it: real processes, a real dataset and model, on the CPU; and what ends it early."""

import json
import signal

import pytest
import training_workloads
from cli_rig import Command, files_below
from torch.utils.data import DataLoader

import loadtune
from loadtune.errors import ResultError
from loadtune.run import read_run

# A search of a model whose step takes a millisecond takes half of it; the rest is for a machine that is busy.
SHORT = ("--device", "cpu", "--time-budget", "50", "--trials", "1", "--max-workers", "2", "--out", "kept")
# Of a run that a signal ends: few sizes to probe before the search, whose workers wait from the first trial kept on.
HELD = (
    "--dataset",
    "training_workloads:HeldOnceATrialIsKept",
    "--model",
    "training_workloads:Linear",
    "--device",
    "cpu",
)
LONG = ("--time-budget", "300", "--max-batch-size", "16", "--max-workers", "2", "--precision", "fp32")
RUN_FILES = ["report.html", "result.json", "run.json", "study.db", "training.log"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One whole run, shared by the tests that look at what it left; of a model whose loss in bf16 is NaN."""
    words = ("--dataset", "training_workloads:SlowImages", "--model", "training_workloads:NanInBf16")
    command = Command(tmp_path_factory.mktemp("run"), "run", *words, *SHORT, "--batch-size", "16", "--json")
    yield command, command.end()
    command.kill()


@pytest.fixture(scope="module")
def run_folder(finished):
    (folder,) = (finished[0].home / "cwd" / "kept").glob("*/*")
    return folder


def test_a_run_ends_with_an_answer_and_leaves_no_process(finished):
    _, ended = finished
    assert ended.code == 0, ended.stderr
    assert ended.left_behind == []
    assert "Traceback" not in ended.stderr


def test_stdout_is_the_result_and_nothing_else(finished, run_folder):
    _, ended = finished
    assert ended.stdout == (run_folder / "result.json").read_text()
    assert json.loads(ended.stdout)["best"] is not None


def test_what_is_kept_lies_in_the_runs_own_folder(finished, run_folder):
    command, _ = finished
    assert run_folder.parent.name == "training_workloads.SlowImages-training_workloads.NanInBf16"
    assert files_below(run_folder) == RUN_FILES
    assert list(command.home.glob("tmp-*/*")) == []
    written = [name for name in files_below(command.home) if name != "stderr"]
    assert written == [str((run_folder / name).relative_to(command.home)) for name in RUN_FILES]


def test_the_result_says_what_was_confirmed(run_folder):
    result = loadtune.load_result(run_folder)
    assert result.cut_short is None
    assert result.yours.batch_size == 16
    assert result.assumed == ("num_workers", "pin_memory", "precision")
    assert result.best_at_your_batch.config.batch_size == 16
    confirmed = {finalist.config: finalist for finalist in result.finalists}
    assert result.best.samples_per_s == confirmed[result.best.config].samples_per_s
    assert result.yours in confirmed
    assert all(trial.config.batch_size <= training_workloads.LENGTH for trial in result.trials)
    assert not any(trial.failure for trial in result.trials)


def test_a_precision_that_gives_no_finite_loss_is_left_out_and_named(run_folder):
    result = loadtune.load_result(run_folder)
    assert {trial.config.precision for trial in result.trials} == {result.best.config.precision} == {"fp32"}
    assert any(note.startswith("bf16 was left out") and "NaN or infinite" in note for note in result.notes)


def test_every_run_is_told_with_the_workers_it_had(run_folder):
    """Found from outside, by the names that PyTorch gives its processes. Short spans may begin before a worker is."""
    result = loadtune.load_result(run_folder)
    runs = [(finalist.config, run.telemetry) for finalist in result.finalists for run in finalist.runs]
    cores = [telemetry.training_cpu_cores for _, telemetry in runs if telemetry.training_cpu_cores is not None]
    assert cores
    assert min(cores) > 0
    assert all(telemetry.timeline for _, telemetry in runs)
    assert all(config.loader.num_workers for config, telemetry in runs if telemetry.workers_cpu_cores is not None)
    with_workers = [telemetry for config, telemetry in runs if config.loader.num_workers]
    assert not with_workers or any(telemetry.workers_cpu_cores is not None for telemetry in with_workers)


@pytest.mark.parametrize("keep_batch_size", [False, True])
def test_a_dataloader_takes_the_answer(run_folder, keep_batch_size):
    kwargs = loadtune.best_loader_kwargs(run_folder.parent, keep_batch_size=keep_batch_size)
    batches = iter(DataLoader(training_workloads.Images(), shuffle=True, drop_last=True, **kwargs))
    inputs, targets = next(batches)
    assert tuple(inputs.shape) == (kwargs["batch_size"], 3, 8, 8)
    assert len(targets) == kwargs["batch_size"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed in its second trial: its home, what it had kept, and how it ended."""
    home = tmp_path_factory.mktemp("killed")
    (home / "cwd").mkdir()
    (home / "cwd" / "hold").touch()
    command = Command(home, "run", *HELD, *LONG, "--num-workers", "2", "--out", "kept")
    try:
        command.until(lambda: "[search] trial 1/" in command.stderr())
        command.until(lambda: len(command.descendants()) >= 2)  # the training and workers of a trial
        command.signal(signal.SIGKILL)
        ended = command.end()
    finally:
        command.kill()
    (stored,) = (home / "cwd" / "kept").glob("*/*/run.json")
    return home, read_run(stored.parent), ended


def test_a_killed_run_takes_its_bench_and_workers_along(killed):
    home, before, ended = killed
    assert ended.left_behind == []
    assert list(home.glob("tmp-*/*")) == []
    assert before.trials


@pytest.mark.parametrize(("number", "code", "word"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGHUP, 129, "SIGHUP")])
def test_a_run_that_is_asked_to_end_keeps_what_it_saw_and_claims_nothing(killed, number, code, word):
    home, before, _ = killed
    command = Command(home, "run", "--resume", "--out", "kept")
    try:
        command.until(lambda: "This run was resumed" in command.stderr())
        command.until(lambda: len(command.descendants()) >= 2)
        command.signal(number)
        ended = command.end()
    finally:
        command.kill()
    assert ended.code == code
    assert ended.left_behind == []
    assert "Traceback" not in ended.stderr
    assert "Nothing was confirmed." in ended.stdout
    (folder,) = (home / "cwd" / "kept").glob("*/*")
    assert f"loadtune run --resume {folder.relative_to(home / 'cwd')}\n" in ended.stdout
    result = loadtune.load_result(folder)
    assert word in result.cut_short
    assert list(result.trials[: len(before.trials)]) == before.trials
    assert result.best is None
    with pytest.raises(ResultError, match="no confirmed winner"):
        loadtune.best_loader_kwargs(folder)


def test_it_is_resumed_and_measures_nothing_again(killed):
    home = killed[0]
    (folder,) = (home / "cwd" / "kept").glob("*/*")
    before = read_run(folder)
    (home / "cwd" / "hold").unlink()
    resumed = Command(
        home,
        "run",
        "--resume",
        "--out",
        "kept",
        "--trials",
        str(len(before.trials) + 1),
        "--time-budget",
        "50",
        "--json",
    )
    try:
        ended = resumed.end()
    finally:
        resumed.kill()
    assert ended.code == 0, ended.stderr
    assert list((home / "cwd" / "kept").glob("*/*")) == [folder]
    result = loadtune.load_result(folder)
    assert list(result.trials[: len(before.trials)]) == before.trials
    assert len(result.trials[len(before.trials) :]) == 1
    assert {c for c in result.ceilings if not c.verified} <= set(before.ceilings)
    assert "[memory" not in ended.stderr
    assert result.best is not None


def test_a_run_that_cannot_be_built_in_its_time_says_so(tmp_path):
    words = ("--dataset", "training_workloads:slow_to_build", "--model", "training_workloads:Linear", "--device", "cpu")
    command = Command(tmp_path, "run", *words, "--time-budget", "5")
    try:
        ended = command.end()
    finally:
        command.kill()
    assert ended.code == 2, ended.stderr
    assert "The time budget of 5.0 s ended before anything was measured" in ended.stderr
    assert ended.left_behind == []
