"""A real run over data that crash a worker, or give a loss that is not finite: no such configuration is the answer."""

import json

from training_rig import Windows, training_on, trial
from typer.testing import CliRunner

from loadtune.cli import app
from loadtune.records.config import Recipe
from loadtune.records.measurement import TrialFailure

SHORT = ("--device", "cpu", "--time-budget", "50", "--trials", "1", "--precision", "fp32", "--quiet", "--json")


def of(dataset):
    return ("run", "--dataset", f"training_workloads:{dataset}", "--model", "training_workloads:Linear", *SHORT)


def test_a_sample_that_is_not_finite_leaves_no_answer(tmp_path, in_thread):
    words = ("--fix", "num_workers=0", "--max-batch-size", "64", "--out", str(tmp_path))
    run = CliRunner().invoke(app, [*of("NanAtIndex"), *words])
    assert run.exit_code == 1, run.stderr
    result = json.loads(run.stdout)
    assert result.get("best") is None
    assert any("the dataset, the model or the loss" in note for note in result["notes"]), result["notes"]


def test_a_window_says_that_the_loss_was_not_finite(tmp_path, in_thread):
    with training_on(tmp_path, "NanAtIndex") as training:
        windows = Windows(4)
        run = training.time_training(trial(batch_size=128), 0.1, windows)
        assert not isinstance(run, TrialFailure)
        assert windows[-1].loss_is_finite is False


def test_a_compute_only_rate_is_not_timed_with_a_loss_that_is_not_finite(tmp_path, in_thread):
    with training_on(tmp_path, "AllNan") as training:
        failure = training.time_compute(Recipe(), 8, 0.1)
        assert isinstance(failure, TrialFailure)
        assert failure.kind == "non_finite_loss"
