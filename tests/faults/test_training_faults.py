"""What dies or hangs in the training is data, names its sample, and leaves nothing behind; the next request works."""

import functools
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from cli_rig import segments, until
from training_rig import Windows, fault, training_on, trial

from loadtune.errors import OutOfTimeError, TrainingError
from loadtune.host.processes import RamGuard, tree_bytes
from loadtune.host.usable import Ram, read_oom_kills
from loadtune.records.config import Recipe
from loadtune.records.measurement import TrainingRun, TrialFailure
from loadtune.records.memory import BatchTry
from loadtune.stream.shm_cleanup import group_members
from loadtune.training import client, process
from loadtune.training.process import LEFT_OUT

ENDLESS = 10**9
MIB = 1 << 20
# What a SIGKILL means that the kernel did not send: where nothing counts the kernel's own, it is taken for one.
KILLED = "host_oom" if read_oom_kills() is None else "crash"

needs_shm = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no folder here")


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """One for all tests, in any order: that the next one's request works is part of each."""
    with training_on(tmp_path_factory.mktemp("training"), "Misbehaves", "MisbehavesByBatch") as started:
        yield started


@pytest.fixture
def impatient(training, monkeypatch):
    """Its process has loaded and trained before: to import all of that takes longer than a hang may."""
    assert isinstance(training.time_training(trial(), 0.05, Windows(enough=1)), TrainingRun)
    monkeypatch.setattr(training, "_hang_s", 2.0)
    return training


def tried(training, batch_size):
    return training.try_batch(BatchTry(recipe=Recipe(), batch_size=batch_size))


def failure_of(training, words, num_workers, enough=ENDLESS):
    """How training ends where a sample does that."""
    with fault(words):
        failure = training.time_training(trial(num_workers=num_workers), 0.05, Windows(enough))
    assert isinstance(failure, TrialFailure)
    return failure


def test_a_first_sample_that_hangs_is_named(tmp_path, monkeypatch):
    with training_on(tmp_path, "Misbehaves") as training, fault("hang main 0"):
        monkeypatch.setattr(training, "_hang_s", 2.0)
        with pytest.raises(TrainingError) as raised:
            training.describe()
    assert "dataset[0] did not return for " in str(raised.value)
    assert "in the training process" in str(raised.value)


def test_a_sample_that_raises_is_named_by_its_index(training):
    training.describe()
    before = training.pid
    for num_workers in (0, 1):
        failure = failure_of(training, "fail any 5", num_workers)
        assert failure.kind == "user_error"
        assert "dataset[5]" in failure.message
        assert "ValueError: broken sample" in failure.message
        assert "training_workloads.py" in failure.log_tail
        assert "loadtune/workload" not in failure.log_tail
    assert tried(training, 8).fits
    assert training.pid == before, "a user's exception costs no new process"


@pytest.mark.parametrize(("what", "how"), [("crash", "was ended by SIGSEGV"), ("exit", "exited with code 3")])
def test_a_sample_that_ends_its_worker_is_named(training, what, how):
    failure = failure_of(training, f"{what} worker 41", num_workers=2)
    assert failure.kind == "crash"
    assert failure.message.startswith(f"A worker {how} while it loaded dataset[41] (in a batch of 8: ")


def test_a_sample_that_hangs_in_a_worker_is_named_with_its_stack(impatient):
    leader = impatient.pid
    failure = failure_of(impatient, "hang worker any", num_workers=1)
    assert (failure.kind, failure.phase) == ("hang", "first batch")
    assert failure.message.startswith("dataset[")
    assert "] (in a batch of 8: " in failure.message
    assert " did not return for " in failure.message
    assert failure.message.endswith("in a worker; the training process was ended.")
    assert "training_workloads.py" in failure.log_tail, "where in the user's code it hung"
    assert "next_batch" in failure.log_tail, "and where the training process waited"
    assert until(lambda: not group_members(leader))


def test_a_sample_that_hangs_in_the_training_process_is_named(impatient):
    assert failure_of(impatient, "exit worker 41", num_workers=2).kind == "crash"  # and is forgotten
    failure = failure_of(impatient, "hang main 41", num_workers=0)
    assert failure.kind == "hang"
    assert failure.message.startswith("dataset[41] (in a batch of 8: ")
    assert failure.message.endswith(" did not return for 2 s, in the training process; the training process was ended.")


def test_a_sample_that_ends_the_training_process_is_named(training):
    first, facts = training.pid, training.describe()
    failure = failure_of(training, "abort main 41", num_workers=0)
    assert failure.kind == "crash"
    assert failure.message.startswith("The training process was ended by SIGABRT while it loaded dataset[41]")
    assert "Fatal Python error" in failure.log_tail
    assert tried(training, 8).fits
    assert training.pid != first
    assert training.describe() is facts


@pytest.mark.skipif(sys.platform != "linux", reason="needs libstdc++")
def test_cpp_that_runs_out_of_memory_unseen_is_memory_and_no_crash(training):
    failure = tried(training, 5).failure
    assert failure.kind == "host_oom", failure.log_tail
    assert "refused" in failure.message


def test_a_request_ends_at_its_time_and_names_the_sample_it_waited_for(training, monkeypatch):
    def end_it(reached):
        until(reached.exists, 120.0)
        training.until_s = time.monotonic() + 4.0

    monkeypatch.setattr(training, "until_s", math.inf)
    with fault("hang worker 41") as reached:
        threading.Thread(target=end_it, args=(reached,)).start()
        with pytest.raises(OutOfTimeError) as raised:
            training.time_training(trial(num_workers=2), 0.05, Windows(ENDLESS))
    assert raised.value.stuck.startswith("dataset[41] (in a batch of 8: ")
    assert training.pid is None
    with pytest.raises(OutOfTimeError):
        training.time_training(trial(), 0.05, Windows(enough=1))
    assert training.pid is None, "nothing is started once the time is over"


@needs_shm
def test_workers_leave_no_shared_memory_also_where_a_request_is_given_up_in_its_midst(training, monkeypatch):
    workers, given_up = set(), []

    def watch(window):
        workers.update(group_members(training.pid) - {training.pid})
        assert segments(workers), "nothing to take away: the test tests nothing"
        return False

    def give_up(window):
        given_up.append(window)
        training.until_s = time.monotonic()
        return watch(window) or True

    with fault("litter worker any"):
        training.time_training(trial(num_workers=2), 0.05, watch)
        assert len(workers) == 2
        training.time_training(trial(), 0.05, Windows(enough=1))  # else the workers go on, for the next trial
        assert until(lambda: not segments(workers))
        workers.clear()
        monkeypatch.setattr(training, "until_s", math.inf)
        with pytest.raises(OutOfTimeError) as raised:
            training.time_training(trial(num_workers=2), 0.05, give_up)
    assert raised.value.stuck is None, "no sample hung"
    assert len(given_up) == 1, "a moment that the watch itself sets holds at once"
    assert len(workers) == 2
    assert until(lambda: not segments(workers))


def test_a_dataset_that_prints_for_each_sample_fills_no_disk(training, monkeypatch):
    monkeypatch.setattr(process, "MAX_BYTES", 1 << 16)
    with fault("print worker any"):
        assert isinstance(training.time_training(trial(64, num_workers=1), 0.1, Windows(enough=30)), TrainingRun)
    log = training._log_path
    assert log.stat().st_size <= process.MAX_BYTES
    assert log.read_bytes().count(LEFT_OUT) == 1


def test_a_trial_that_takes_all_ram_is_ended(tmp_path, monkeypatch):
    """In an interpreter of its own: with pages of this one, a fork that shares them would count as growth."""
    room, begun = 200 * MIB, []

    def ram(pid):
        held = tree_bytes(pid)
        begun.append(held)
        return Ram(total_bytes=room, limit_bytes=room, available_bytes=begun[0] + room - held)

    with training_on(tmp_path, "Misbehaves", fresh=True) as training:
        training.describe()
        monkeypatch.setattr(client, "RamGuard", lambda pid: RamGuard(pid, ram=functools.partial(ram, pid)))
        failure = failure_of(training, "keep worker any", num_workers=1)
    assert (failure.kind, failure.phase) == ("host_oom", "training")
    assert failure.grown_bytes > room / 2
    assert "more RAM in this trial" in failure.message
    assert "a list that __getitem__ appends to" in failure.message


def test_a_bench_that_never_starts_is_an_error_with_its_log(tmp_path):
    (tmp_path / "torch.py").write_text("import os\nos.abort()\n")
    with training_on(tmp_path, fresh=True) as training, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        with pytest.raises(TrainingError) as raised:
            training.describe()
        assert training.pid is None
    assert "Fatal Python error" in str(raised.value)


def test_a_training_process_that_is_killed_is_not_out_of_memory_and_leaves_no_temporary_file(short_tmp, tmp_path):
    sockets = []

    def kill(window):
        os.kill(training.pid, signal.SIGKILL)
        return True

    def watch(window):
        sockets.extend(short_tmp.rglob("pymp-*"))
        return False

    with training_on(tmp_path, "Misbehaves") as training, fault("litter worker any"):
        failure = training.time_training(trial(num_workers=1), 0.05, kill)
        assert (failure.kind, failure.phase) == (KILLED, "training")
        assert isinstance(training.time_training(trial(num_workers=2), 0.05, watch), TrainingRun)
        assert list(short_tmp.rglob("of a worker")), "nothing to take away: the test tests nothing"
    assert sockets, "nothing to take away: the test tests nothing"
    assert list(short_tmp.iterdir()) == []
