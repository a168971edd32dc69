"""A sample that hangs, or that ends its process, is named: by index, and in which process."""

import re
import time

import pytest
from bench_rig import Windows, bench_on, trial
from cli_rig import Command

from loadtune.bench.bounded_log import LEFT_OUT, MAX_BYTES
from loadtune.errors import BenchError, OutOfTimeError
from loadtune.records import TrialFailure

ENDLESS = 10**9


def failure_of(folder, dataset, num_workers, hang_s=30.0):
    with bench_on(folder, dataset=dataset, hang_s=hang_s) as bench:
        bench.describe()
        failure = bench.time_training(trial(num_workers=num_workers), 0.05, Windows(enough=ENDLESS))
        assert isinstance(failure, TrialFailure)
        return failure


def test_a_sample_that_hangs_in_a_worker_is_named_with_its_stack(tmp_path):
    failure = failure_of(tmp_path, "WorkerHangsAtIndex", num_workers=2, hang_s=3.0)
    assert failure.kind == "hang"
    assert failure.message.startswith("dataset[41] (in a batch of 8: ")
    assert " did not return for " in failure.message
    assert failure.message.endswith("in a worker; the training process was ended.")
    assert "bench_workloads.py" in failure.log_tail, "where in the user's code it hung"
    assert "next_batch" in failure.log_tail, "and where the training process waited"


def test_a_batch_that_hangs_in_the_training_process_is_named(tmp_path):
    failure = failure_of(tmp_path, "BatchHangs", num_workers=0, hang_s=3.0)
    assert failure.kind == "hang"
    assert failure.message.startswith("one of dataset[")
    assert ", … (a batch of 8) did not return for " in failure.message
    assert failure.message.endswith("in the training process, which was ended.")


def test_a_first_sample_that_hangs_is_named(tmp_path):
    with bench_on(tmp_path, dataset="FirstSampleHangs", hang_s=3.0) as bench, pytest.raises(BenchError) as raised:
        bench.describe()
    assert "dataset[0] did not return for " in str(raised.value)
    assert "in the training process" in str(raised.value)


@pytest.mark.parametrize(
    ("dataset", "how"), [("WorkerCrashesAtIndex", "was ended by SIGSEGV"), ("WorkerExitsAtIndex", "exited with code 3")]
)
def test_a_sample_that_ends_its_worker_is_named(tmp_path, dataset, how):
    failure = failure_of(tmp_path, dataset, num_workers=2)
    assert failure.kind == "crash"
    assert failure.message.startswith(f"A worker {how} while it loaded dataset[41] (in a batch of 8: ")


def test_a_batch_that_ends_the_training_process_is_named(tmp_path):
    failure = failure_of(tmp_path, "BatchAborts", num_workers=0)
    assert failure.kind == "crash"
    assert failure.message.startswith("The training process was ended by SIGABRT while it loaded one of dataset[")


def test_a_request_ends_at_its_time_and_names_the_sample_it_waited_for(tmp_path):
    with bench_on(tmp_path, dataset="WorkerHangsAtIndex", hang_s=600.0) as bench:
        bench.describe()
        bench.finish_by(time.monotonic() + 10.0)
        with pytest.raises(OutOfTimeError) as raised:
            bench.time_training(trial(num_workers=2), 0.05, Windows(enough=ENDLESS))
        assert raised.value.stuck.startswith("dataset[41] (in a batch of 8: ")
        assert bench.pid is None
        with pytest.raises(OutOfTimeError):
            bench.time_training(trial(num_workers=0), 0.05, Windows(enough=1))
        assert bench.pid is None, "nothing is started once the time is over"


def test_a_request_that_is_given_up_in_its_midst_names_no_sample(tmp_path):
    with bench_on(tmp_path, dataset="SlowImages") as bench:
        bench.describe()
        bench.finish_by(time.monotonic() + 4.0)
        with pytest.raises(OutOfTimeError) as raised:
            bench.time_training(trial(num_workers=2), 0.05, Windows(enough=ENDLESS))
    assert raised.value.stuck is None


def test_a_run_whose_sample_hangs_ends_in_time_and_advises_no_larger_budget(tmp_path):
    words = ("--dataset", "bench_workloads:WorkerHangsAtIndex", "--model", "bench_workloads:Linear", "--device", "cpu")
    command = Command(tmp_path, "run", *words, "--num-workers", "2", "--batch-size", "16", "--time-budget", "20")
    try:
        ended = command.end()
    finally:
        command.kill()
    took_s = time.monotonic() - command.started
    assert took_s < 60.0, "at 20 s its requests end; loading the command, on a busy machine, is the rest"
    assert ended.left_behind == []
    assert ended.code == 2, ended.stderr
    assert "dataset[41] (in a batch of 16: " in ended.stderr
    # The order has no end, so that both workers may come to this sample.
    assert re.search(r" did not return for \S+ s, in (a worker|2 workers)\.", ended.stderr), ended.stderr
    assert "larger --time-budget" not in ended.stderr
    log = ended.stderr.rpartition("The stacks are at the end of ")[2].strip().rstrip(".")
    assert "bench_workloads.py" in (tmp_path / "cwd" / log).read_text(), "it is kept, and says where"


def test_a_run_that_cannot_be_built_in_its_time_says_so(tmp_path):
    words = ("--dataset", "bench_workloads:slow_to_build", "--model", "bench_workloads:Linear", "--device", "cpu")
    command = Command(tmp_path, "run", *words, "--time-budget", "6")
    try:
        ended = command.end()
    finally:
        command.kill()
    assert ended.code == 2, ended.stderr
    assert "The time budget of 6.0 s ended before the workload was built" in ended.stderr
    assert ended.left_behind == []


def test_a_dataset_that_prints_for_each_sample_fills_no_disk(tmp_path):
    with bench_on(tmp_path, dataset="Prints") as bench:
        bench.time_training(trial(num_workers=1, batch_size=64), 0.1, Windows(enough=30))
    log = tmp_path / "bench.log"
    assert log.stat().st_size <= MAX_BYTES
    assert log.read_bytes().count(LEFT_OUT) == 1
