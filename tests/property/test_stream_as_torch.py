"""Whatever is switched and when: the loop sees what it would see with a plain DataLoader, also of its sampler and of
what torch's iterator counts; and the random numbers of the training process are as they would be.
"""

import random
import time
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from switched import Switched
from switching_rig import Switching
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)

from loadtune.inflight.account import Account, Options
from loadtune.inflight.iterator import begun_by
from loadtune.stream.switching import SwitchingIterator

LENGTH, WHOLE = 60, 1000


class Rows(Dataset):
    """Each sample is its index and the epoch that the data set was set to; some raise."""

    def __init__(self, bad=()):
        self.bad, self.epoch = frozenset(bad), 0

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        if get_worker_info() is not None:
            torch.rand(1), random.random(), np.random.rand()  # as an augmentation does
        if index in self.bad:
            raise KeyError(f"bad sample {index}")
        return torch.tensor([index, self.epoch])


class CountedSampler(SequentialSampler):
    """Counts how often it was asked for an iterator, and what it gave and ended so far, as a resumable one does."""

    num_iterators = num_given = num_ended = 0

    def __iter__(self):
        self.num_iterators += 1
        return self._counted()

    def _counted(self):
        for index in super().__iter__():
            self.num_given += 1
            yield index
        self.num_ended += 1


class Marking(BatchSampler):
    """Gives with each batch what the loop set last."""

    mark = 0

    def __iter__(self):
        for indices in super().__iter__():
            yield [*indices, self.mark]


ORDERS = {
    "sequential": lambda data, _: {"batch_size": 4},
    "shuffle": lambda data, _: {"batch_size": 4, "shuffle": True},
    "drop_last": lambda data, _: {"batch_size": 7, "shuffle": True, "drop_last": True},
    "replacement": lambda data, _: {"batch_size": 4, "sampler": RandomSampler(data, True, 50, torch.Generator())},
    "counted": lambda data, _: {"batch_size": 5, "sampler": CountedSampler(data)},
    "marking": lambda data, _: {"batch_sampler": Marking(SequentialSampler(data), 5, False)},
    "batch_sampler": lambda data, own: {"batch_sampler": BatchSampler(RandomSampler(data, generator=own), 6, False)},
    "lists": lambda data, _: {"batch_sampler": [[0, 1], [2], [3, 4, 5], [9, 8, 7, 6]] * 4},
    "no batches": lambda data, _: {"batch_size": None, "sampler": SequentialSampler(data)},
}


def made_loader(job):
    """A DataLoader as the example says, and the generator that it draws from."""
    generator = torch.Generator().manual_seed(7) if job["generator"] else None
    data = Rows(job["bad"])
    order = ORDERS[job["order"]](data, generator)
    if job["num_workers"]:
        order |= {"persistent_workers": job["persistent"], "prefetch_factor": job["prefetch_factor"]}
    return DataLoader(data, num_workers=job["num_workers"], generator=generator, **order), generator


def seen_by(loop, loader, generator, job, switch=lambda num_workers: None):
    """What a loop of some epochs sees, errors included, and the state of the random numbers after each epoch."""
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    seen = []
    for epoch, num_batches in enumerate(job["epochs"]):
        loader.dataset.epoch = epoch if job["changes"] else 0
        batches = iter(loop)
        for step in range(num_batches):
            if (epoch, step) in job["changes"]:
                loader.dataset.epoch += 10
                if job["order"] == "marking":
                    loader.batch_sampler.mark = step
            if (epoch, step) in job["switches"]:
                switch(job["switches"][epoch, step])
            try:
                seen.append(next(batches).tolist())
            except StopIteration:
                seen.append("end of the epoch")
                break
            except KeyError as error:
                seen.append((type(error), str(error).splitlines()[-1]))
            seen.append((counts(batches, loader.sampler), torch.rand(1).item()))
        seen.append(counts(batches, loader.sampler))
        del batches
        seen.append((torch.rand(1).item(), random.random(), np.random.rand()))
        if generator is not None:
            seen.append(torch.rand(1, generator=generator).item())
    return seen


def counts(batches, sampler):
    batches = batches.delivering() if isinstance(batches, SwitchingIterator) else batches
    return batches._num_yielded, *(getattr(sampler, name, None) for name in ("num_iterators", "num_given", "num_ended"))


def as_a_tuner_would(job):
    """A loader without workers gets none where its sampler must not be asked ahead."""
    acts_on_loop = job["order"] in ("counted", "marking", "replacement")
    return job | {"switches": {}} if acts_on_loop and not job["num_workers"] else job


STEPS = st.tuples(st.integers(0, 2), st.integers(0, 12))
JOBS = st.fixed_dictionaries(
    {
        "generator": st.booleans(),
        "order": st.sampled_from([*ORDERS]),
        "num_workers": st.sampled_from([0, 0, 1, 2]),
        "prefetch_factor": st.integers(1, 3),
        "persistent": st.booleans(),
        "bad": st.sampled_from([(), (), (17,), (0, 30, 59)]),
        "epochs": st.lists(st.sampled_from([WHOLE, WHOLE, 1, 5]), min_size=1, max_size=3),
        "switches": st.dictionaries(STEPS, st.integers(0, 3), max_size=4),
        "changes": st.lists(STEPS, max_size=2),
    }
).map(as_a_tuner_would)
JOB = {
    "generator": False, "order": "shuffle", "num_workers": 2, "prefetch_factor": 2, "persistent": False,
    "bad": (), "epochs": [WHOLE, WHOLE], "switches": {(0, 2): 3}, "changes": [],
}  # fmt: skip


def both_see(job, way):
    """What the loop sees with switches, and without."""
    if job["order"] == "lists":
        job = job | {"bad": ()}
    if job["bad"]:  # whoever takes over from workers that failed has the data set as it is then
        job = job | {"changes": []}
    if way == "switched":  # which asks no sampler, and looks at no data set
        job = as_a_tuner_would(job | {"num_workers": 0}) | {"changes": [], "num_workers": job["num_workers"]}
    fewest = min(1, job["num_workers"])  # a loader with workers never goes on without
    job = job | {"switches": {at: max(fewest, number) for at, number in job["switches"].items()}}
    plain, generator = made_loader(job)
    expected = seen_by(plain, plain, generator, job)
    own, generator = made_loader(job)
    if way == "switched":
        switching = Switching(own)
        seen = seen_by(switching, own, generator, job, switching.switch)
        switching.close()
        return seen, expected
    account = Account(name="", own_workers=own.num_workers, num_workers=own.num_workers)
    tuner = Switched(account, own, Options())
    tuner.switches = job["switches"]
    own._get_iterator = lambda: begun_by(tuner, own)
    seen = seen_by(own, own, generator, job)
    if own._iterator is not None:
        own._iterator._shutdown_workers()
    assert job["bad"] or job["changes"] or account.reason is None, account.reason
    return seen, expected


@pytest.mark.parametrize("way", ["switched", "by a tuner"])
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(job=JOBS)
@example(JOB | {"order": "counted", "switches": {(0, 1): 1}})
@example(JOB | {"generator": True, "epochs": [1, WHOLE], "switches": {(0, 0): 1}})
@example(JOB | {"persistent": True, "switches": {}})
@example(JOB | {"num_workers": 0, "switches": {(0, 0): 2, (0, 7): 0, (1, 3): 1}})
@example(JOB | {"persistent": True, "bad": (30,), "switches": {(0, 4): 3, (1, 4): 1}})
@example(JOB | {"epochs": [5, WHOLE], "order": "batch_sampler", "switches": {(0, 5): 3}})
@example(JOB | {"num_workers": 0, "order": "sequential", "switches": {(0, 0): 2, (1, 0): 2}, "changes": [(1, 7)]})
@example(JOB | {"num_workers": 1, "switches": {(0, 2): 3, (0, 7): 1}, "changes": [(0, 4)]})
@example(JOB | {"persistent": True, "switches": {(0, 2): 3, (1, 7): 2}, "changes": [(1, 4)]})
@example(JOB | {"order": "sequential", "prefetch_factor": 1, "switches": {(0, 3): 1}, "changes": [(0, 3)]})
@example(JOB | {"order": "sequential", "num_workers": 0, "bad": (17,), "switches": {(0, 1): 1, (0, 7): 0}})
@example(JOB | {"order": "counted", "switches": {(0, 2): 3, (1, 0): 3}})
@example(JOB | {"order": "marking", "switches": {(0, 2): 3}, "changes": [(0, 6)]})
@example(JOB | {"order": "replacement", "switches": {(0, 2): 3}})
def test_a_loop_sees_what_it_would_see_without_switches(way, job):
    seen, expected = both_see(job, way)
    assert seen == expected


@pytest.mark.parametrize(("num_workers", "others"), [(0, 2), (1, 3), (2, 1)])
def test_batches_out_of_order_come_once_and_those_of_one_worker_stay_in_order(num_workers, others):
    plain = DataLoader(Rows(), batch_size=7, num_workers=num_workers, in_order=False, drop_last=True)
    loader = Switching(plain)
    batches = iter(loader)
    seen = next(batches)[:, 0].tolist()
    loader.switch(others)
    seen += [index for batch in batches for index in batch[:, 0].tolist()]
    assert sorted(seen) == list(range(LENGTH - LENGTH % 7))
    assert num_workers > 1 or seen == sorted(seen)
    assert batches.batch_size() == 7
    assert loader.withdrawn == []
    if num_workers:
        with pytest.raises(ValueError, match="has workers"):
            loader.switch(0)


class Shares(IterableDataset):
    """Each worker reads its share, of which the first one's is short; one sample raises."""

    def __iter__(self):
        info = get_worker_info()
        which, num = (info.id, info.num_workers) if info else (0, 1)
        for index in range(which, 20 if which == 0 < num - 1 else LENGTH, num):
            if index == 31:
                raise KeyError("bad sample")
            yield index + torch.rand(1) / 2


@pytest.mark.parametrize(
    ("num_workers", "in_order", "persistent"), [(0, True, False), (2, True, True), (2, False, False)]
)
def test_an_iterable_dataset_is_read_as_torch_reads_it(num_workers, in_order, persistent):
    def seen_by(loop):
        torch.manual_seed(3)
        for _ in range(2):
            epoch, batches = [], iter(loop)
            while True:
                try:
                    epoch.append(next(batches).flatten().tolist())
                except KeyError as error:
                    epoch.append(type(error))
                except StopIteration:
                    break
            yield epoch if in_order else sorted(map(str, epoch)), torch.rand(1).item()

    loader = DataLoader(Shares(), 4, num_workers=num_workers, in_order=in_order, persistent_workers=persistent)
    without = list(seen_by(loader))
    loader._iterator = None
    switching = Switching(loader)
    assert list(seen_by(switching)) == without
    switching.close()


class Slow(IterableDataset):
    """Of two workers the first one's share is short, and it has ended when the other's last batch comes."""

    def __iter__(self):
        which = get_worker_info().id
        for index in range(which, 4 if which == 0 else 12, 2):
            time.sleep(0.2 if which else 0.0)
            yield torch.tensor(index)


def test_a_worker_that_ended_with_its_share_is_no_worker_that_died():
    before = set(active_children())
    batches = SwitchingIterator(DataLoader(Slow(), num_workers=2))
    seen = [int(next(batches))]
    workers = set(active_children()) - before
    assert sorted([*seen, *map(int, batches)]) == [0, 1, 2, 3, 5, 7, 9, 11]
    assert [worker.exitcode for worker in workers] == [0, 0]
