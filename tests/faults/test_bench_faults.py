"""What dies or hangs in the bench is data, and leaves nothing behind."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from bench_rig import TESTS, Windows, bench_on, trial

from loadtune.errors import BenchError
from loadtune.host.memory import read_oom_kills
from loadtune.records import BatchTry, Recipe, TrainingRun, TrialFailure

# How long a process that was killed may take to be gone: far above any scheduler's delay.
GONE_S = 10.0


def group_of(leader):
    """Processes of that group that still run; a zombie does not."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def until(condition, timeout_s=GONE_S):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_sample_that_raises_is_named_by_its_index(tmp_path):
    with bench_on(tmp_path, dataset="RaisesAtIndex") as bench:
        bench.describe()
        before = bench.pid
        for num_workers in (0, 1):
            failure = bench.time_training(trial(num_workers=num_workers), 0.05, Windows(enough=10**9))
            assert isinstance(failure, TrialFailure)
            assert failure.kind == "user_error"
            assert "dataset[5]" in failure.message
            assert "ValueError: broken sample" in failure.message
            assert "bench_workloads.py" in failure.log_tail
            assert "loadtune/workload" not in failure.log_tail
        assert bench.try_batch(BatchTry(recipe=Recipe(), batch_size=4)).fits
        assert bench.pid == before, "a user's exception costs no new process"


# What a SIGKILL means that the kernel did not send: where nothing counts the kernel's own, it is taken for one.
KILLED = "host_oom" if read_oom_kills() is None else "crash"


@pytest.mark.parametrize(("dataset", "kind"), [("WorkerExits", "crash"), ("WorkerKilled", KILLED)])
def test_a_workers_death_is_told_apart(tmp_path, dataset, kind):
    with bench_on(tmp_path, dataset=dataset) as bench:
        failure = bench.time_training(trial(num_workers=2), 0.05, Windows(enough=1))
        assert isinstance(failure, TrialFailure)
        assert failure.kind == kind
        assert failure.phase == "first batch"
        assert isinstance(bench.time_training(trial(num_workers=0), 0.05, Windows(enough=1)), TrainingRun)


def test_a_hang_is_ended_and_the_next_request_works(tmp_path):
    with bench_on(tmp_path, dataset="WorkerHangs", hang_s=2.0) as bench:
        bench.describe()
        leader = bench.pid
        failure = bench.time_training(trial(num_workers=2), 0.05, Windows(enough=1))
        assert isinstance(failure, TrialFailure)
        assert (failure.kind, failure.phase) == ("hang", "first batch")
        assert "next_batch" in failure.log_tail, "the stacks say where it hung"
        assert until(lambda: not group_of(leader))
        assert bench.try_batch(BatchTry(recipe=Recipe(), batch_size=4)).fits


def test_a_step_that_hangs_is_a_failed_probe(tmp_path):
    with bench_on(tmp_path, model="HangsAtBatch4", hang_s=2.0) as bench:
        bench.describe()
        assert bench.try_batch(BatchTry(recipe=Recipe(), batch_size=4)).failure.kind == "hang"


def test_a_crash_is_a_failure_with_its_log_and_costs_one_process(tmp_path):
    with bench_on(tmp_path, model="AbortsAtBatch4") as bench:
        facts = bench.describe()
        first = bench.pid
        report = bench.try_batch(BatchTry(recipe=Recipe(), batch_size=4))
        assert report.failure.kind == "crash"
        assert "SIGABRT" in report.failure.message
        assert "Fatal Python error" in report.failure.log_tail
        assert bench.try_batch(BatchTry(recipe=Recipe(), batch_size=8)).fits
        assert bench.pid != first
        assert bench.describe() is facts


def test_a_bench_killed_by_somebody_is_not_out_of_memory(tmp_path):
    with bench_on(tmp_path, dataset="SlowImages") as bench:
        bench.describe()

        def watch(window):
            os.kill(bench.pid, signal.SIGKILL)
            return True

        failure = bench.time_training(trial(num_workers=1), 0.05, watch)
        assert failure.kind == KILLED
        assert failure.phase == "training"


def test_a_bench_that_never_starts_is_an_error_with_its_log(tmp_path):
    with bench_on(tmp_path, dataset="dies_while_building") as bench, pytest.raises(BenchError) as raised:
        bench.describe()
    assert "Fatal Python error" in str(raised.value)
    assert bench.pid is None


def test_ctrl_c_while_waiting_leaves_nothing(tmp_path):
    with bench_on(tmp_path, model="HangsAtBatch4") as bench:
        bench.describe()
        leader = bench.pid
        threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            bench.try_batch(BatchTry(recipe=Recipe(), batch_size=4))
        assert not group_of(leader)
        bench.close()


def segments_of(pids):
    return [path.name for pid in pids for path in Path("/dev/shm").glob(f"torch_{pid}_*")]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no folder here")
@pytest.mark.parametrize("ended", ["by the stop", "by the watch"])
def test_workers_that_are_ended_leave_no_shared_memory(tmp_path, ended):
    workers = set()
    with bench_on(tmp_path, dataset="LeavesSegments") as bench:
        bench.describe()

        def watch(window):
            workers.update(set(group_of(bench.pid)) - {bench.pid})
            assert segments_of(workers), "nothing to take away: the test tests nothing"
            if ended == "by the watch":
                raise RuntimeError(ended)
            return False

        with contextlib.suppress(RuntimeError):
            bench.time_training(trial(num_workers=2), 0.05, watch)
        assert len(workers) == 2
        if ended == "by the stop":  # the workers go on, for the next trial
            bench.time_training(trial(num_workers=0), 0.05, lambda window: False)
        assert until(lambda: not segments_of(workers))


def test_a_killed_controller_takes_the_bench_and_its_workers_along(tmp_path):
    script = tmp_path / "controller.py"
    script.write_text(
        "import pathlib, sys\n"
        "from bench_rig import bench_on, trial\n"
        "with bench_on(pathlib.Path(sys.argv[1]), dataset='LeavesSegments') as bench:\n"
        "    def watch(window):\n"
        "        print(bench.pid, flush=True)\n"
        "        return True\n"
        "    bench.time_training(trial(num_workers=2), 0.05, watch)\n"
    )
    path = os.pathsep.join([str(TESTS), str(Path(__file__).resolve().parents[2])])
    controller = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    with controller:
        leader = int(controller.stdout.readline())
        group = group_of(leader)
        assert len(group) == 3, "the bench and two workers"
        controller.kill()
    assert until(lambda: not group_of(leader))
    assert until(lambda: not segments_of(group))
