"""Batches fetched with one call, by the loader that trials use; and remedies that change from trial to trial."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loop_rig import SleepingTrainer
from remedy_rig import Table, job_with
from workload_rig import workload_of

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.measurement import TrainingRun
from loadtune.training.endless_loader import EndlessLoader
from loadtune.training.loop import TrainingLoop
from loadtune.workload import Workload

CONFIG = LoaderConfig(batch_size=4, num_workers=2)


@pytest.fixture
def job() -> Workload:
    return job_with(workload_of(Table(num=24)), "batched_fetch")


@pytest.fixture
def loader(job: Workload) -> Iterator[EndlessLoader]:
    made = EndlessLoader(job, CONFIG)
    yield made
    made.close()


def rows(batches: list[Any]) -> list[int]:
    """The numbers of their samples."""
    return [int(row) // 3 for inputs, _ in batches for row in inputs[:, 0]]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_full_batches_and_each_sample_once_an_epoch(num_workers: int, job: Workload) -> None:
    loader = EndlessLoader(job, replace(CONFIG, num_workers=num_workers))
    try:
        batches = [loader.next_batch() for _ in range(18)]
    finally:
        loader.close()
    assert all(inputs.shape == (4, 3) and targets.shape == (4,) for inputs, targets in batches)
    assert Counter(rows(batches)) == dict.fromkeys(range(24), 3)
    assert all(torch.equal(targets, inputs[:, 0].long() // 3 % 3) for inputs, targets in batches)


class Loop:
    """A training loop whose loaders are noted; each trial is one short window."""

    def __init__(self, plain: Workload) -> None:
        self.jobs = {(): plain, ("batched_fetch",): job_with(plain, "batched_fetch")}
        self.made: list[EndlessLoader] = []
        self.closed: list[EndlessLoader] = []
        self.loop = TrainingLoop(self._make)
        self.sizes: list[int] = []

    def _make(self, config: TrialConfig) -> EndlessLoader:
        loader = EndlessLoader(self.jobs[config.remedies], config.loader)
        close = loader.close

        def closed() -> None:
            self.closed.append(loader)
            close()

        loader.close = closed  # type: ignore[method-assign]
        self.made.append(loader)
        return loader

    def run(self, loader: LoaderConfig, *remedies: str) -> TrainingRun:
        windows: list[Any] = []
        line: Any = SimpleNamespace(
            enter=lambda phase: None, pulse=lambda: None, stop_asked=lambda: bool(windows), window=windows.append
        )
        trainer: Any = Trainer(self.sizes)
        config = TrialConfig(loader=loader, recipe=Recipe(), remedies=remedies)
        run = self.loop.time_training(trainer, config, 0.01, line, lambda: None)
        assert isinstance(run, TrainingRun)
        assert len(run.windows) == 1
        return run


class Trainer(SleepingTrainer):
    """Notes the sizes of the batches that it trains on."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(step_s=0.001)
        self._sizes = sizes

    def step(self, batch: Any) -> None:
        super().step(batch)
        self._sizes.append(len(batch[0]))

    def num_compiled(self) -> int:
        return 0


def test_each_trial_has_a_loader_of_its_own_and_ends_the_one_before() -> None:
    rig = Loop(workload_of(Table(num=24)))
    try:
        rig.run(CONFIG)
        rig.run(replace(CONFIG, num_workers=1))
        assert rig.closed == rig.made[:1]
        rig.sizes.clear()
        rig.run(replace(CONFIG, batch_size=8), "batched_fetch")
        assert set(rig.sizes) == {8}
    finally:
        rig.loop.end()
    assert len(rig.made) == 3
    assert rig.closed == rig.made
