"""A real run over data that crash a worker, or give a loss that is not finite: no such configuration is the answer."""

import json

from bench_rig import Windows, bench_on, trial
from cli_rig import Command

from loadtune.records import Recipe, TrialFailure

SHORT = ("--device", "cpu", "--time-budget", "60", "--max-batch-size", "64", "--quiet", "--json")


def ended(folder, dataset, *words):
    job = ("--dataset", f"bench_workloads:{dataset}", "--model", "bench_workloads:Linear")
    command = Command(folder, "run", *job, *SHORT, *words)
    try:
        return command.end()
    finally:
        command.kill()


def test_a_worker_that_crashes_at_an_index_leaves_no_answer_with_workers(tmp_path):
    run = ended(tmp_path, "CrashesAtIndex", "--num-workers", "2", "--fix", "num_workers=2")
    assert run.code == 1, run.stderr
    result = json.loads(run.stdout)
    assert result.get("best") is None
    assert any("A worker was ended by SIGSEGV" in note for note in result["notes"]), result["notes"]


def test_a_sample_that_is_not_finite_leaves_no_answer(tmp_path):
    run = ended(tmp_path, "NanAtIndex")
    assert run.code == 1, run.stderr
    result = json.loads(run.stdout)
    assert result.get("best") is None
    assert any("the dataset, the model or the loss" in note for note in result["notes"]), result["notes"]


def test_a_window_says_that_the_loss_was_not_finite(tmp_path, in_thread):
    with bench_on(tmp_path, "NanAtIndex") as bench:
        windows = Windows(4)
        run = bench.time_training(trial(batch_size=128), 0.1, windows)
        assert not isinstance(run, TrialFailure)
        assert windows[-1].loss_is_finite is False


def test_a_compute_only_rate_is_not_timed_with_a_loss_that_is_not_finite(tmp_path, in_thread):
    with bench_on(tmp_path, "AllNan") as bench:
        failure = bench.time_compute(Recipe(), 8, 0.1)
        assert isinstance(failure, TrialFailure)
        assert failure.kind == "non_finite_loss"
