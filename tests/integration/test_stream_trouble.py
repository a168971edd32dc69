"""Errors that are nobody's but the sampler's, the loop's or another loader's; and what goes on after them."""

import gc
import os
import signal
import sys
import time
from functools import partial
from unittest.mock import Mock

import pytest
from switching_rig import Switching
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from loadtune.stream import torch_private
from loadtune.stream.sample_table import SampleTable

LENGTH = 40


class Numbers(Dataset):
    def __init__(self, length=LENGTH, sample_s=0.0, interrupted_at=None):
        self.length, self.sample_s, self.interrupted_at = length, sample_s, interrupted_at

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.sample_s)
        if index == self.interrupted_at:
            self.interrupted_at = None
            raise KeyboardInterrupt
        return index


class Breaks(SequentialSampler):
    """Raises in the middle of the second epoch's first batches."""

    num_epochs = 0

    def __iter__(self):
        self.num_epochs += 1
        for index in super().__iter__():
            if self.num_epochs > 1 and index == 6:
                raise LookupError("no such index")
            yield index


def numbers(batches):
    return [index for batch in batches for index in batch.tolist()]


def test_an_iterator_that_cannot_be_made_raises_once(monkeypatch):
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    monkeypatch.setattr(
        os, "memfd_create", Mock(side_effect=BlockingIOError)
    )  # a class: an instance would keep its frames
    with pytest.raises(BlockingIOError):
        iter(Switching(DataLoader(Numbers())))
    gc.collect()
    assert lost == []


@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_of_the_sampler_reaches_the_loop_and_blames_no_workers(persistent):
    data = Numbers()
    loader = DataLoader(data, 4, sampler=Breaks(data), num_workers=1, persistent_workers=persistent)
    switching = Switching(loader)
    batches = iter(switching)
    switching.switch(2)
    assert numbers(batches) == list(range(LENGTH))
    with pytest.raises(LookupError, match="no such index"):
        numbers(switching)
    assert switching.withdrawn == []
    switching.close()


def test_after_ctrl_c_in_the_training_process_a_switch_loses_and_reorders_nothing():
    switching = Switching(DataLoader(Numbers(10_000, 0.002, interrupted_at=9), 4))
    batches = iter(switching)
    seen = numbers([next(batches), next(batches)])
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    switching.switch(2)
    while not switching.took_over() and len(seen) < 4000:
        seen += next(batches).tolist()
    assert switching.took_over()
    seen += numbers([next(batches) for _ in range(9)])
    assert seen == [*range(8), *range(12, len(seen) + 4)], "the batch that was interrupted is gone, as in torch"


@pytest.mark.parametrize("from_the_start", [False, True])
def test_a_pool_that_cannot_be_made_is_withdrawn_and_leaves_no_row(from_the_start):
    class Full(SampleTable):
        def reserve(self, num_workers):
            if num_workers > 2:
                raise ValueError("no room")
            return super().reserve(num_workers)

    table = Full()
    switching = Switching(DataLoader(Numbers(), 4, num_workers=1), table=table)
    if from_the_start:
        switching.switch(3)
    batches = iter(switching)
    switching.switch(1 if from_the_start else 3)
    assert numbers(batches) == list(range(LENGTH))
    assert [str(each.__cause__) for each in switching.withdrawn] == ["no room"]
    assert table.reserve(2).start == 0, "all rows are free again"


def test_the_death_of_another_loaders_worker_withdraws_nothing(monkeypatch):
    switching = Switching(DataLoader(Numbers(10_000, 0.002), 1))
    batches = iter(switching)
    switching.switch(1)
    while not switching.took_over():
        next(batches)

    failed = Mock(side_effect=RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."))
    with monkeypatch.context() as patch:
        patch.setattr(torch_private, "error_if_any_worker_fails", failed)
        with pytest.raises(RuntimeError, match="pid 7"):
            next(batches)
    next(batches)
    assert switching.withdrawn == []
    switching.close()


class Handler:
    def __call__(self, *_):
        raise TimeoutError("of the user's handler")


@pytest.mark.parametrize("handler", [Handler(), partial(Handler.__call__, Handler())], ids=["object", "partial"])
def test_what_a_handler_raises_as_workers_end_reaches_the_loop(handler):
    switching = Switching(DataLoader(Numbers(10_000, 0.002), 1))
    batches = iter(switching)
    switching.switch(1)
    while not switching.took_over():
        next(batches)

    def get(timeout):
        for worker in batches.delivering()._workers:
            worker.kill()
            worker.join()
        signal.raise_signal(signal.SIGUSR1)

    batches.delivering()._data_queue.get = get
    before = [(number, signal.signal(number, act)) for number, act in ((signal.SIGUSR1, handler), (signal.SIGCHLD, 0))]
    try:
        with pytest.raises(RuntimeError, match="exited unexpectedly") as found:
            next(batches)
    finally:
        for number, act in before:
            signal.signal(number, act)
    assert isinstance(found.value.__cause__, TimeoutError), "as torch itself tells it"
    assert switching.withdrawn == []
    switching.close()


def test_minutes_in_which_the_loop_does_something_else_count_against_no_workers(monkeypatch):
    switching = Switching(DataLoader(Numbers(), 4))
    batches = iter(switching)
    switching.switch(2)
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 1000.0)  # validation, say
    assert numbers(batches) == list(range(LENGTH))
    assert switching.withdrawn == []
