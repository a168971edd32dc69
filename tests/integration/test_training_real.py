"""The training as a real process: real DataLoaders, real steps, on the CPU."""

import itertools
import os

import psutil
import pytest
from training_rig import Windows, training_on, trial

from loadtune.host.processes import ProcessTree
from loadtune.records.config import Recipe
from loadtune.records.measurement import TrainingRun
from loadtune.records.memory import BatchTry
from loadtune.training.loop import EndlessLoader


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    with training_on(tmp_path_factory.mktemp("training")) as client:
        yield client


def abut(windows):
    return all(later.start_s == earlier.end_s for earlier, later in itertools.pairwise(windows))


@pytest.fixture
def one_core():
    """As under ``taskset``."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(every)})
    yield max(every)
    os.sched_setaffinity(0, every)


def test_a_datasets_short_processes_are_counted_as_part_of_a_training_that_keeps_to_its_cores(tmp_path, one_core):
    """They live for less than a look of the sampler; what they use is neither others' load nor waiting."""
    cores, used_s = [], []
    watch, tree = Windows(enough=6), ProcessTree(lambda: training.pid)

    def look(window):
        main = psutil.Process(training.pid)
        cores.append([each.cpu_affinity() for each in (main, *main.children())])
        tree.search()
        used_s.append(tree.look()["training_cpu_cores"].total)
        return watch(window)

    with training_on(tmp_path, "RunsProcesses") as training:
        assert training.describe().sample_cpu_s > 0.8 * 0.03
        assert isinstance(training.time_training(trial(num_workers=2), 0.4, look), TrainingRun)
    assert used_s[-1] - used_s[0] > 0.6 * 0.03 * sum(window.num_samples for window in watch[1:])
    assert len(cores[0]) >= 3
    assert all(each == [one_core] for each in cores[0])


def test_describes_what_it_found(training):
    facts = training.describe()
    assert facts.dataset_length == 512
    assert facts.input_shape == (3, 8, 8)
    assert facts.sample_bytes == 3 * 8 * 8 * 4 + 8
    assert facts.num_classes == 3
    assert facts.num_parameters == 3 * 8 * 8 * 3 + 3
    assert facts.precisions == ("fp32", "bf16")
    assert facts.min_batch_size == 1
    assert 0 < facts.sample_s < 1
    assert facts.memory_capacity_bytes > 0
    assert training.describe() is facts
    names = [part.name for part in facts.code]
    assert "training_workloads.py" in names
    assert not any(name.startswith(("loadtune/", "torch/")) for name in names)


@pytest.mark.parametrize(("num_workers", "more"), [(0, {}), (2, {}), (1, {"prefetch_factor": 3, "pin_memory": True})])
def test_streams_windows_that_abut_until_the_watch_has_enough(training, num_workers, more):
    watch = Windows(enough=4)
    run = training.time_training(trial(num_workers=num_workers, **more), 0.1, watch)
    assert isinstance(run, TrainingRun)
    assert len(watch) == 4
    assert abut(watch)
    for window in watch:
        assert window.seconds >= 0.1
        assert window.num_samples == 8 * window.num_steps
        assert 0 <= window.wait_s <= window.seconds
        assert (window.queue_start is None) == (num_workers == 0)
    assert all(a.queue_end == b.queue_start for a, b in itertools.pairwise(watch))
    assert run.first_batch_s > 0
    assert watch[-1].loss_is_finite is True


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Samples of 5 ms, in epochs of three batches of 8 and a rest."""
    with training_on(tmp_path_factory.mktemp("slow"), dataset="FewSlowImages") as client:
        yield client


BATCH_S = 0.99 * 8 * 0.005
"""A sleep never ends early, however busy the machine."""


def test_the_start_of_an_epoch_is_told_apart_from_the_start_of_workers(slow):
    run = slow.time_training(trial(num_workers=2), 0.2, Windows(enough=2))
    assert 0 < run.ready_s < run.first_batch_s - BATCH_S
    assert run.batch_s >= BATCH_S


def test_runs_too_short_to_tell_a_step_tell_it_together(slow):
    for _ in range(20):
        run = slow.time_training(trial(num_workers=0), 0.2, Windows(enough=4))
        if run.steps:
            break
    assert run.steps[0].name.startswith("training_workloads.py:")
    assert run.steps[0].name.endswith("time.sleep(0.005)")


def test_a_watch_that_raises_ends_the_bench_which_may_be_closed_twice_and_started_again(slow):
    def watch(window):
        raise LookupError("enough of this")

    with pytest.raises(LookupError):
        slow.time_training(trial(num_workers=1), 0.05, watch)
    assert slow.pid is None
    slow.close()
    assert slow.try_batch(BatchTry(recipe=Recipe(), batch_size=4)).fits
    slow.close()
    slow.close()
    assert slow.pid is None


def test_the_seed_fixes_in_which_order_each_training_reads(tmp_path, in_thread, monkeypatch):
    seen = {}

    class Noting(EndlessLoader):
        def next_batch(self):
            batch = super().next_batch()
            seen.setdefault(self, tuple(batch[0][:, 0, 0, 0].tolist()))
            return batch

    monkeypatch.setattr("loadtune.training.session.EndlessLoader", Noting)
    for num_before in (0, 0, 2):
        with training_on(tmp_path) as client:
            client.num_trainings = num_before
            for _ in range(2):
                client.time_training(trial(64), 0.01, Windows(enough=1))
    firsts = list(seen.values())
    assert firsts[:2] == firsts[2:4]
    assert len(set(firsts)) == 4, "each has another order, those after a resumption, too"
