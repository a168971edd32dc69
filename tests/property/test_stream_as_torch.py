"""Whatever is switched and when: the loop sees what it would see with a plain DataLoader, and the random numbers of the
training process are as they would be."""

import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from loadtune.stream.switching import SwitchingLoader

LENGTH = 60
FEW = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))


class Rows(Dataset):
    """Each sample is its index and the epoch that the data set was set to; some raise."""

    def __init__(self, bad=()):
        self.bad, self.epoch = frozenset(bad), 0

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        torch.rand(1), random.random(), np.random.rand()  # as an augmentation does
        if index in self.bad:
            raise KeyError(f"bad sample {index}")
        return torch.tensor([index, self.epoch])


class CountedSampler(SequentialSampler):
    """Counts how often it was asked for an iterator."""

    num_iterators = 0

    def __iter__(self):
        self.num_iterators += 1
        return super().__iter__()


def made_loader(job):
    """A DataLoader as the example says, and the generator that it draws from."""
    generator = torch.Generator().manual_seed(7) if job["generator"] else None
    data = Rows(job["bad"])
    order = {
        "sequential": lambda: {"batch_size": 4},
        "shuffle": lambda: {"batch_size": 4, "shuffle": True},
        "drop_last": lambda: {"batch_size": 7, "shuffle": True, "drop_last": True},
        "replacement": lambda: {
            "batch_size": 4,
            "sampler": RandomSampler(
                data, replacement=True, num_samples=50, generator=torch.Generator().manual_seed(1)
            ),
        },
        "counted": lambda: {"batch_size": 5, "sampler": CountedSampler(data)},
        "batch_sampler": lambda: {"batch_sampler": BatchSampler(RandomSampler(data, generator=generator), 6, False)},
        "lists": lambda: {"batch_sampler": [[0, 1], [2], [3, 4, 5], [9, 8, 7, 6]] * 4},
        "no batches": lambda: {"batch_size": None, "sampler": SequentialSampler(data)},
    }[job["order"]]()
    workers = {}
    if job["num_workers"]:
        workers = {
            "persistent_workers": job["persistent"],
            "prefetch_factor": job["prefetch_factor"],
            "multiprocessing_context": job["method"],
        }
    return DataLoader(data, num_workers=job["num_workers"], generator=generator, **order, **workers), generator


def seen_by(loop, loader, generator, job, switch=lambda **changes: None):
    """What a loop of some epochs sees, errors included, and the state of the random numbers after each epoch."""
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    seen = []
    for epoch, num_batches in enumerate(job["epochs"]):
        # A switch under persistent workers starts some with the data set as it is then; torch's keep what they have.
        loader.dataset.epoch = 0 if job["persistent"] and job["switches"] else epoch
        batches = iter(loop)
        for step in range(num_batches):
            if (epoch, step) in job["switches"]:
                switch(**job["switches"][epoch, step])
            try:
                seen.append(next(batches).tolist())
            except StopIteration:
                seen.append("end of the epoch")
                break
            except KeyError as error:
                seen.append((type(error), str(error).splitlines()[-1]))
        del batches
        seen.append((torch.rand(1).item(), random.random(), np.random.rand()))
        if generator is not None:
            seen.append(torch.rand(1, generator=generator).item())
    seen.append(getattr(loader.sampler, "num_iterators", None))
    return seen


WHOLE = 1000
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "num_workers": st.integers(0, 3),
        "prefetch_factor": st.integers(1, 3),
    },
)


def without_what_depends_on_workers_in_torch(job):
    """Some samplers draw as they are asked, and how far ahead they are asked depends on the workers: the one with
    replacement for each batch, and a shuffled one from a generator that was given once more where its indices end."""
    shuffled = job["generator"] and job["order"] in ("shuffle", "drop_last", "batch_sampler")
    return job | {"epochs": [WHOLE for _ in job["epochs"]]} if shuffled or job["order"] == "replacement" else job


def jobs_with(switches):
    """Jobs of a loop over a loader; ``switches``: what changes meanwhile."""
    return st.fixed_dictionaries(
        {
            "generator": st.booleans(),
            "order": st.sampled_from(
                ["sequential", "shuffle", "drop_last", "replacement", "counted", "batch_sampler", "lists", "no batches"]
            ),
            "num_workers": st.sampled_from([0, 0, 1, 2]),
            "prefetch_factor": st.integers(1, 3),
            "persistent": st.booleans(),
            "method": st.just("fork"),
            "bad": st.sampled_from([(), (), (17,), (0, 30, 59)]),
            "epochs": st.lists(st.sampled_from([WHOLE, WHOLE, 1, 5]), min_size=1, max_size=3),
            "switches": switches,
        }
    ).map(without_what_depends_on_workers_in_torch)


JOBS = jobs_with(st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 12)), SETTINGS, min_size=1, max_size=4))


def both_see(job):
    """What the loop sees with switches, and without."""
    # Loading in the training process draws from its random numbers, and workers do not: none becomes the other.
    fewest, most = (0, 0) if job["num_workers"] == 0 else (1, 3)
    switches = {
        at: to | ({"num_workers": min(most, max(fewest, to["num_workers"]))} if "num_workers" in to else {})
        for at, to in job["switches"].items()
    }
    job = job | {"switches": switches}
    if job["order"] == "lists" and job["bad"]:
        job = job | {"bad": ()}
    plain, generator = made_loader(job)
    expected = seen_by(plain, plain, generator, job)
    own, generator = made_loader(job)
    switching = SwitchingLoader(own)
    seen = seen_by(switching, own, generator, job, switching.switch)
    switching.close()
    return seen, expected


JOB = {
    "generator": False, "order": "shuffle", "num_workers": 2, "prefetch_factor": 2, "persistent": False,
    "method": "fork", "bad": (), "epochs": [WHOLE, WHOLE], "switches": {(0, 2): {"num_workers": 3}},
}  # fmt: skip


@FEW
@given(JOBS)
@example(JOB | {"order": "counted", "switches": {(0, 1): {"num_workers": 1}}})
@example(JOB | {"generator": True, "epochs": [1, WHOLE], "switches": {(0, 0): {"num_workers": 1}}})
@example(JOB | {"persistent": True, "switches": {}})
@example(JOB | {"switches": {}})
def test_a_loop_sees_what_it_would_see_without_switches(job):
    seen, expected = both_see(job)
    assert seen == expected


@pytest.mark.parametrize(("method", "num_epochs"), [("forkserver", 2), ("spawn", 1)])
def test_other_start_methods(method, num_epochs):
    switches = {(0, 3): {"num_workers": 2}, (1, 2): {"num_workers": 1}}
    job = JOB | {"num_workers": 1, "method": method, "persistent": num_epochs > 1, "generator": True}
    job |= {"switches": switches, "epochs": [WHOLE] * num_epochs}
    seen, expected = both_see(job)
    assert seen == expected


class Plain(Rows):
    """The same without random numbers, so that the training process may load it as well as workers do."""

    def __getitem__(self, index):
        return torch.tensor(index)


@FEW
@given(
    num_workers=st.integers(0, 2),
    drop_last=st.booleans(),
    switches=st.dictionaries(
        st.integers(0, 15),
        st.fixed_dictionaries({}, optional={"num_workers": st.integers(0, 2), "in_order": st.booleans()}),
        min_size=1,
        max_size=4,
    ),
)
def test_any_change_of_workers_delivers_each_sample_once(num_workers, drop_last, switches):
    loader = SwitchingLoader(DataLoader(Plain(), batch_size=7, num_workers=num_workers, drop_last=drop_last))
    seen, batches, step = [], iter(loader), 0
    while True:
        if step in switches:
            change = switches[step]
            if num_workers and change.get("num_workers") == 0:
                with pytest.raises(ValueError, match="has workers"):
                    loader.switch(**change)
            else:
                loader.switch(**change)
        batch = next(batches, None)
        if batch is None:
            break
        seen += batch.tolist()
        step += 1
        assert len(batches) >= step
    assert len(batches) == step
    dropped = LENGTH - len(seen)
    assert dropped == (LENGTH % 7 if drop_last else 0)
    assert sorted(seen) == list(range(LENGTH - dropped))
    if all(each.get("in_order", True) for each in switches.values()):
        assert seen == sorted(seen)
    assert loader.counters.num_samples == len(seen)
    assert loader.withdrawn == []
