"""Jobs as somebody would write them, with real workers: what a loop sees is the same with a tuner and without.

The samples of a batch sleep eleven times as long as a step, so that a tuner has a reason to act on any machine.
"""

import random
import sys
import time
from functools import cache
from types import ModuleType, SimpleNamespace

import inflight_jobs
import numpy
import pytest
import torch
import torch.utils.data.dataloader as torchs
from torch.utils.data import DataLoader, IterableDataset, Sampler, get_worker_info

import loadtune
from loadtune.inflight import account, gates, hook, iterator, tuner
from loadtune.inflight.account import Account
from loadtune.inflight.environment import TEST_VARIABLE, Options

GIVEN = SimpleNamespace(steps=64, sample=0.0007, step=0.001)


@pytest.fixture
def tuned(monkeypatch):
    """Loaders are tuned from when it is called; gives their accounts."""
    monkeypatch.setenv(TEST_VARIABLE, "1")
    monkeypatch.setattr(torchs.DataLoader, "_get_iterator", torchs.DataLoader._get_iterator)
    for owner, name, value in (
        (hook, "_options", None), (iterator, "_known", {}), (account, "_by_process", {}), (account, "_said", set()),
        (tuner.Shared, "tuners", []), (tuner.Shared, "trying", None),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, value)
    monkeypatch.setattr(hook.atexit, "register", lambda *_: None)

    def begin(**options):
        hook.install(**{"max_workers": 3} | options)
        return account.accounts

    return begin


def seen_by(job, given=GIVEN):
    """Samples in their order and losses, and the random state afterwards."""
    torch.set_num_threads(1)
    random.seed(1)
    run = inflight_jobs.Training(given)
    inflight_jobs.JOBS[job](run)
    return run.seen.hexdigest(), torch.rand(1).item(), random.random()


def as_without(job, tuned, given=GIVEN, **options):
    """Runs a job both ways; the accounts of its loaders."""
    without = seen_by(job, given)
    accounts = tuned(**options)
    assert seen_by(job, given) == without
    return accounts()


def has_acted(found):
    """Whether other workers load, or are starting on a machine that is slow."""
    return found.state == "starting" or any(one["num_workers"] > found.own_workers for one in found.switches)


@pytest.mark.parametrize(
    ("job", "package"),
    [("plain", "torch"), ("no_workers", "torch"), ("infinite", "torch"), ("lightning_persistent", "lightning"),
     ("accelerate_dispatch", "accelerate"), ("trainer", "transformers")],
)  # fmt: skip
def test_a_loop_that_waits_gets_workers(job, package, tuned):
    pytest.importorskip(package)
    longer = SimpleNamespace(steps=100, sample=0.0007, step=0.001)  # a long first step is a gap that 64 steps explain
    found = as_without(job, tuned, longer, max_workers=2)[0]
    assert has_acted(found)
    assert all(one["num_workers"] <= 2 for one in found.switches)


@pytest.mark.parametrize(
    ("job", "num_loaders"), [("persistent", 1), ("two_loaders", 2), ("new_loaders", 2), ("oversubscribed", 1)]
)
@pytest.mark.filterwarnings("ignore")  # more workers than cores
def test_several_epochs_and_loaders(job, num_loaders, tuned):
    accounts = as_without(job, tuned)
    assert len(accounts) == num_loaders, "a loader made anew is the same"
    assert not any(each.reason and "failed" in each.reason for each in accounts)


@pytest.mark.parametrize(("job", "reason"), [("zip_file", "open file"), ("handle", "open file"), ("stage", "changes")])
def test_what_workers_would_break_is_left_alone(job, reason, tuned):
    (found,) = as_without(job, tuned)
    assert found.num_workers == found.own_workers
    assert found.state == "left alone" or (job == "stage" and found.state in ("watching", "starting"))
    assert found.state != "left alone" or reason in found.reason


def test_a_dry_run_advises(tuned, capsys):
    (found,) = as_without("plain", tuned, dry_run=True)
    assert found.switches == []
    assert "num_workers=" in found.advice[0]
    assert "num_workers=" in capsys.readouterr().err


def test_a_frozen_loader_is_torchs_own(tuned):
    tuned(freeze=("Samples",))
    made = iter(DataLoader(inflight_jobs.Samples(4, 0.0)))
    assert type(made) is torchs._SingleProcessDataLoaderIter
    assert account.accounts()[0].reason == "--freeze names it"


class Augmented(inflight_jobs.Samples):
    def __getitem__(self, index):
        return super().__getitem__(index)[0] * self.factor()

    def factor(self):
        return torch.rand(1)


class DrawsOnce(Augmented):
    factor = cache(Augmented.factor)


@pytest.mark.parametrize(
    ("kind", "num_workers", "exact", "acts", "said"),
    [(Augmented, 0, False, True, 1), (Augmented, 1, False, True, 1), (Augmented, 1, True, False, 0),
     (DrawsOnce, 0, True, True, 0)],
)  # fmt: skip
def test_random_samples(kind, num_workers, exact, acts, said, tuned, capsys):
    accounts = tuned(exact=exact)
    for _ in DataLoader(kind(64 * 16, 0.0007), 16, num_workers=num_workers):
        pass
    (found,) = accounts()
    assert has_acted(found) == acts
    assert acts or "random" in found.reason
    assert capsys.readouterr().err.count("random augmentation draws ") == said


class Stream(IterableDataset):
    """Each worker reads its share."""

    def __iter__(self):
        info = get_worker_info()
        for index in range(info.id if info else 0, 48 * 16, info.num_workers if info else 1):
            time.sleep(0.0007)
            yield index


class Drawing(Sampler):
    """Draws as it goes: what it gives depends on what the loop draws meanwhile."""

    def __len__(self):
        return 84 * 16

    def __iter__(self):
        return (int(torch.randint(100, ())) for _ in range(len(self)))


def test_loaders_whose_order_would_change_are_left_alone(tuned, capsys):
    accounts = tuned()
    for _ in DataLoader(inflight_jobs.Samples(100, 0.001), 16, sampler=Drawing(), num_workers=1):
        pass
    assert "draws random numbers as it goes" in accounts()[0].reason
    assert capsys.readouterr().err.count("left at 1 worker") == 1


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}])
def test_a_stream_is_advised_about_and_stays_as_it_is(workers, tuned):
    def seen():
        torch.manual_seed(1)
        loader = DataLoader(Stream(), 16, **workers)
        return [batch.tolist() for _ in range(2) for batch in loader], torch.rand(1)

    without = seen()
    accounts = tuned()
    assert seen() == without
    (found,) = accounts()
    assert found.num_workers == found.own_workers
    assert found.switches == []
    assert "IterableDataset" in found.reason
    assert "num_workers=" in found.advice[0]


@pytest.mark.parametrize(
    ("changes", "max_workers", "begins"),
    [({}, 3, 3), ({}, 2, 2), ({"batch_bytes": 1 << 60}, 3, None), ({"name": "Other at x.py:1"}, 3, None),
     ({"num_workers": "3"}, 3, None), ({"load_s": None}, 3, None), (None, 3, None)],
)  # fmt: skip
def test_what_an_earlier_run_found(changes, max_workers, begins, tuned, monkeypatch, tmp_path):
    monkeypatch.setenv("LOADTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(iterator, "_place", lambda _: "here")
    tuned(max_workers=max_workers)
    data = inflight_jobs.Samples(16 * 8, 0.0)
    iter(DataLoader(data, 8, num_workers=1))
    file = tuner.Shared.tuners[0].learnt_file
    assert not file.exists()
    if changes is None:
        file.parent.mkdir()
        file.write_text('{"schema_version": 1, "loaders": [')
    else:
        earlier = {"name": "Samples at here", "own_workers": 1, "num_workers": 3, "load_s": 0.01, "cpu_s": 0.0001}
        earlier |= {"batch_bytes": 384, "batch_tensors": 2, "first_samples_per_s": 9.0}
        account.write_learnt(file, Account(**earlier | changes))
    monkeypatch.setattr(iterator, "_known", {})
    batches = DataLoader(data, 8, num_workers=1)
    assert [index for _, indices in batches for index in indices.tolist()] == list(range(16 * 8))
    found = account.accounts()[1]
    assert found.first_samples_per_s == (9.0 if begins else None)
    at_once = [one["num_workers"] for one in found.switches if (one["epoch"], one["batch"]) == (0, 0)]
    assert at_once == ([begins] if begins else [])


def test_a_loader_of_ours_and_its_numbers(tuned):
    loader = loadtune.DataLoader(inflight_jobs.Samples(64 * 16, 0.0007), 16, num_workers=1)
    assert loader.tuning is None
    assert len(list(loader)) == len(loader) == 64
    found = loader.tuning
    assert found.num_batches == 64
    assert has_acted(found)
    numbers = loadtune.stats()
    assert numbers[f"loadtune/{found.name}/num_workers"] == found.num_workers
    assert 0 < numbers[f"loadtune/{found.name}/blocked_fraction"] <= 1
    assert all(isinstance(each, float) for each in numbers.values())


def test_the_share_of_time_blocked_is_that_since_the_present_workers_deliver():
    loader = DataLoader(inflight_jobs.Samples(40 * 4, 0.004), 4, num_workers=1)
    switches = [{"epoch": 0, "batch": 20, "num_workers": 2}]
    found, replayed = (Account(name="", own_workers=1, num_workers=1, switches=each) for each in ([], switches))
    for number, _ in enumerate(iterator.begun_by(tuner.Tuner(found, loader, Options(), replayed), loader)):
        if number == 15:
            assert found.numbers()["blocked_fraction"] == found.blocked_s / found.total_s
        time.sleep(0.0 if number < 20 else 0.03)  # first the loop waits, then the workers
    assert found.num_workers == 2
    assert found.numbers()["blocked_fraction"] < found.blocked_s / found.total_s


def test_the_deep_look_sees_what_changes():
    data = inflight_jobs.Samples(3, 0.0)
    data.inner, data.list, data.tensor = SimpleNamespace(level=1.5), [1, [2]], torch.zeros(2)
    data.array = numpy.zeros(3)
    changes = (
        lambda: setattr(data, "length", 4),
        lambda: setattr(data, "new", None),
        lambda: setattr(data.inner, "level", 2.5),
        lambda: data.list[1].append(3),
        lambda: data.tensor.add_(1),
        lambda: data.array.__setitem__(1, 7),
    )
    for change in changes:
        look = gates.Unchanged(data, len)
        assert look.changed() is None
        data.inner.level = float(str(data.inner.level))  # the same value, another object
        assert look.changed() is None
        change()
        assert look.changed() is not None


def test_spawned_workers_cannot_import_what_a_notebook_defines(monkeypatch):
    monkeypatch.setattr(gates.private, "start_method", lambda context: "spawn")
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setattr(Augmented, "__module__", "__main__")
    loader = DataLoader(Augmented(8, 0.0))
    assert "notebook" in gates.Trust(loader, gates.WatchedSampler(loader)).reason_against()


def test_a_handle_is_found_wherever_the_dataset_keeps_it(tmp_path):
    data = inflight_jobs.Samples(3, 0.0)
    assert gates.shared_handle(data) is None
    data.parts = [{"file": open(tmp_path / "data", "w+")}]  # noqa: SIM115
    assert "open file" in gates.shared_handle(data)
    data.parts[0]["file"].close()
    sqlite3 = pytest.importorskip("sqlite3")
    data.parts = [sqlite3.connect(":memory:")]
    assert "sqlite3.Connection" in gates.shared_handle(data)
