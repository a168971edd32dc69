"""A dataset that keeps objects, through real processes: said with its size, and ended before RAM is full."""

import functools
import os
import re

import bench_workloads
import pytest
from bench_rig import Windows, bench_on, trial

from loadtune import TuneConfig, tune
from loadtune.bench import client
from loadtune.host.memory import Ram
from loadtune.host.processes import anonymous_bytes
from loadtune.host.ram_guard import RamGuard, tree_bytes
from loadtune.records import Fixed, TrainingRun, TrialFailure

MIB = 1 << 20

pytestmark = pytest.mark.skipif(anonymous_bytes(os.getpid()) is None, reason="the kernel does not tell it apart")


def test_memory_that_grows_with_each_sample_is_told(tmp_path):
    config = TuneConfig(
        device="cpu",
        num_trials=3,
        time_budget_s=60.0,
        max_batch_size=16,
        precisions=("fp32",),
        fix=(Fixed(name="num_workers", value=1),),
    )
    dataset, model = bench_workloads.KeepsObjects(), bench_workloads.Linear()
    result = tune(config=config, dataset=dataset, model=model, folder=tmp_path)
    assert result.best is not None
    (note,) = [note for note in result.notes if "grows with each sample" in note]
    grown = re.match(r"The memory of the workers grows with each sample loaded, by (\d+) KiB ", note)
    assert grown, note
    assert 256 < int(grown[1]) < 1024
    assert all(words in note for words in ("RAM in use reached", "are full after", "keeps Python objects"))


def test_a_trial_that_takes_all_ram_is_ended_and_the_next_request_works(tmp_path, monkeypatch):
    room, begun = 300 * MIB, []

    def ram(pid):
        held = tree_bytes(pid, anonymous_bytes)
        begun.append(held)
        return Ram(total_bytes=room, limit_bytes=room, available_bytes=begun[0] + room - held)

    monkeypatch.setattr(client, "RamGuard", lambda pid: RamGuard(pid, ram=functools.partial(ram, pid)))
    with bench_on(tmp_path, dataset="KeepsObjects") as bench:
        bench.describe()
        failure = bench.time_training(trial(num_workers=1), 0.05, Windows(enough=10**9))
        assert isinstance(failure, TrialFailure)
        assert (failure.kind, failure.phase) == ("host_oom", "training")
        assert failure.grown_bytes > room / 2
        assert "more RAM in this trial" in failure.message
        assert "a list that __getitem__ appends to" in failure.message
        begun.clear()
        assert isinstance(bench.time_training(trial(num_workers=1), 0.05, Windows(enough=1)), TrainingRun)
