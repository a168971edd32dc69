"""Errors that are nobody's but the sampler's, the loop's or another loader's; and what goes on after them."""

import gc
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import resource_sharer
from unittest.mock import Mock

import pytest
from switching_rig import Numbers, Switching, numbers
from torch.utils.data import DataLoader, SequentialSampler

from loadtune.stream import pool, torch_private
from loadtune.stream.sample_table import SampleTable

LENGTH = 40


class Interrupted(Numbers):
    at = 9

    def __getitem__(self, index):
        if index == self.at:
            self.at = None
            raise KeyboardInterrupt
        return super().__getitem__(index)


class Breaks(SequentialSampler):
    """Raises in the middle of the second epoch's first batches."""

    num_epochs = 0

    def __iter__(self):
        self.num_epochs += 1
        for index in super().__iter__():
            if self.num_epochs > 1 and index == 6:
                raise LookupError("no such index")
            yield index


def on_trial(num_workers=1, **settings):
    """An epoch in which workers on trial deliver, and what it gave before."""
    switching = Switching(DataLoader(Numbers(10_000, 0.002), 1, **settings))
    batches, seen = iter(switching), []
    switching.switch(num_workers)
    while not switching.took_over():
        seen += numbers([next(batches)])
    return switching, batches, seen


@pytest.mark.parametrize("collate", [None, list], ids=["memory that is asked of them", "no batch"])
def test_workers_that_hang_while_they_deliver_are_withdrawn(monkeypatch, collate):
    switching, batches, seen = on_trial(2, collate_fn=collate)
    for ending in batches._closing:
        ending.join()
    assert [each.name for each in threading.enumerate() if each.name.startswith("loadtune")] == []
    while batches.delivering()._data_queue.empty():
        time.sleep(0.01)
    for worker in batches.delivering()._workers:
        os.kill(worker.pid, signal.SIGSTOP)
    monkeypatch.setattr(pool, "HANG_S", 1.0)
    while not switching.withdrawn:
        seen += numbers([next(batches)])
    assert [str(each) for each in switching.withdrawn] == ["its workers gave no batch for 1 s"]
    assert seen == list(range(len(seen)))
    switching.close()


def test_an_iterator_that_cannot_be_made_raises_once(monkeypatch):
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    # A class: an instance would keep its frames.
    monkeypatch.setattr(os, "memfd_create", Mock(side_effect=BlockingIOError))
    with pytest.raises(BlockingIOError):
        iter(Switching(DataLoader(Numbers(LENGTH))))
    gc.collect()
    assert lost == []


@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_of_the_sampler_reaches_the_loop_and_blames_no_workers(persistent):
    data = Numbers(LENGTH)
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
    switching = Switching(DataLoader(Interrupted(10_000, 0.002), 4))
    batches = iter(switching)
    seen = numbers([next(batches), next(batches)])
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    switching.switch(2)
    while not switching.took_over() and len(seen) < 4000:
        seen += numbers([next(batches)])
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
    switching = Switching(DataLoader(Numbers(LENGTH), 4, num_workers=1), table=table)
    if from_the_start:
        switching.switch(3)
    batches = iter(switching)
    switching.switch(1 if from_the_start else 3)
    assert numbers(batches) == list(range(LENGTH))
    assert [str(each.__cause__) for each in switching.withdrawn] == ["no room"]
    assert table.reserve(2).start == 0, "all rows are free again"


def test_the_death_of_another_loaders_worker_withdraws_nothing(monkeypatch):
    switching, batches, _ = on_trial()

    failed = Mock(side_effect=RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."))
    with monkeypatch.context() as patch:
        patch.setattr(torch_private, "error_if_any_worker_fails", failed)
        with pytest.raises(RuntimeError, match="pid 7"):
            next(batches)
    next(batches)
    assert switching.withdrawn == []
    switching.close()


def test_only_the_loop_that_waits_for_workers_on_trial_has_a_limit(monkeypatch):
    sharer, usual = resource_sharer._resource_sharer, Mock(return_value="as ever")
    monkeypatch.setattr(type(sharer), "get_connection", usual)
    with torch_private.answering_within(1.0), ThreadPoolExecutor() as others:
        assert others.submit(sharer.get_connection, "a batch").result() == "as ever"
    assert sharer.get_connection is usual


class Handler:
    def __call__(self, *_):
        raise TimeoutError("of the user's handler")


@pytest.mark.parametrize("handler", [Handler(), partial(Handler.__call__, Handler())], ids=["object", "partial"])
def test_what_a_handler_raises_as_workers_end_reaches_the_loop(handler):
    switching, batches, _ = on_trial()

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
    switching = Switching(DataLoader(Numbers(LENGTH), 4))
    batches = iter(switching)
    switching.switch(2)
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 1000.0)  # validation, say
    assert numbers(batches) == list(range(LENGTH))
    assert switching.withdrawn == []


def test_batches_that_came_before_their_turn_count_as_asked_for():
    loader = DataLoader(Numbers(LENGTH), 1, num_workers=2, worker_init_fn=lambda worker: time.sleep(0.5 - worker / 2))
    batches = iter(Switching(loader))
    first = next(batches)  # while its worker started, the other one's batches came
    batches.delivering().feed()
    assert numbers([first, *batches]) == list(range(LENGTH))


def test_workers_that_are_ready_before_the_first_batch_keep_the_order(monkeypatch):
    started = pool._Starter.poll
    monkeypatch.setattr(pool._Starter, "poll", lambda starter: started(starter) and not time.sleep(0.5))
    switching = Switching(DataLoader(Numbers(LENGTH), 1))
    switching.asked = 2  # torch asks the sampler at the first batch where the caller has no workers: these begin then
    batches = iter(switching)
    switching.switch(3)
    assert numbers(batches) == list(range(LENGTH))
    assert batches.delivering()._num_workers == 3
