"""Jobs as somebody would write them, with real workers: what a loop sees is the same with a tuner and without.

The samples of a batch sleep eleven times as long as a step, so that a tuner has a reason to act on any machine.
"""

import gc
import os
import random
import signal
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import cache
from types import ModuleType, SimpleNamespace

import inflight_jobs
import numpy
import pytest
import torch
import torch.utils.data.dataloader as torchs
from cli_rig import until
from switched import Switched
from torch.utils.data import DataLoader, IterableDataset, Sampler, get_worker_info

import loadtune
from loadtune.decide.inflight import Reading
from loadtune.inflight import account, hook, iterator, tuner, words
from loadtune.inflight.account import TEST_VARIABLE, Account, Options
from loadtune.stream import trust
from loadtune.stream.trust import WatchedSampler

GIVEN = SimpleNamespace(steps=64, sample=0.0007, step=0.001)


@pytest.fixture
def tuned(monkeypatch):
    """Loaders are tuned from when it is called; gives their accounts. Nobody else takes the cores."""
    monkeypatch.setenv(TEST_VARIABLE, "1")
    monkeypatch.setattr(torchs.DataLoader, "_get_iterator", torchs.DataLoader._get_iterator)
    for owner, name, value in (
        (hook, "_options", None), (account, "_by_process", {}), (words, "_said", set()),
        (tuner.Shared, "_of_process", {}), (tuner.Shared, "busy_s", lambda _: 0.0),
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
    assert account.accounts()[0].reason.startswith("--freeze names it")


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
    assert capsys.readouterr().err.count("; random augmentation differs") == said


class OwnNumbers(inflight_jobs.Samples):
    """As ``worker_init_fn``: seeds random numbers of its own, as MONAI does; or lets samples differ, or fail."""

    state, kind, info = numpy.random.RandomState(0), "", None

    def __call__(self, worker_id):
        OwnNumbers.info = get_worker_info()
        self.state.seed(self.info.seed % (1 << 32))
        if self.kind == "fails" and self.info.num_workers > 1:
            None * worker_id

    def __getitem__(self, index):
        raises = self.kind == "raises" and self.info.num_workers > 1
        others = {"draws": self.state.rand(), "differs": self.info.id, "no": 0, "raises": 0 / (not raises), "fails": 0}
        return super().__getitem__(index)[0] + others[self.kind]


@pytest.mark.parametrize("begins", [False, True])  # as where an epoch is too short for a change
@pytest.mark.parametrize(
    ("kind", "exact", "reason"),
    [("draws", True, "samples are random"), ("differs", True, "samples are random"), ("no", True, None),
     ("raises", True, "nothing shows that its worker_init_fn"), ("fails", False, "failed"), ("draws", False, None)],
)  # fmt: skip
def test_what_workers_on_trial_show_before_they_deliver(kind, exact, reason, begins, tuned, capsys):
    data = OwnNumbers(400 * 16, 0.0007)
    data.kind = kind
    loader = DataLoader(data, 16, num_workers=1, worker_init_fn=data)
    found = tuner.Tuner(Account(name="", own_workers=1, num_workers=1), loader, Options(exact=exact, max_workers=3))
    found.state, found.known = replace(found.state, target=3 if begins else None), [[0]] if begins else []
    torch.manual_seed(1)
    seen = []
    for batch in iterator.begun_by(found, loader):
        seen.append(batch.tolist())
        if found.account.state == "left alone" or (found.account.num_workers > 1 and kind != "fails"):
            break
    torch.manual_seed(1)
    assert (seen == [batch.tolist() for _, batch in zip(seen, loader, strict=False)]) == (kind != "draws" or exact)
    assert found.account.reason is reason or reason in found.account.reason
    assert found.account.draws_random == (reason == "samples are random" or kind == "draws")
    said = capsys.readouterr().err
    assert said.count("; random augmentation differs") == (kind == "draws" and not exact)
    assert said.count("TypeError: unsupported operand") == (kind == "fails")


class Stream(IterableDataset):
    """Each worker reads its share. It asks a sampler for a length that this does not have, as that of detectron2."""

    def __len__(self):
        return len(iter(self))

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


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sampler_is_asked_no_further_ahead_if_it_draws_as_it_goes(num_workers, tuned, capsys):
    def seen():
        torch.manual_seed(1)
        loader = DataLoader(inflight_jobs.Samples(100, 0.001), 16, sampler=Drawing(), num_workers=num_workers)
        return [(batch[1].tolist(), torch.rand(1).item()) for batch in loader]

    without = seen()
    accounts = tuned()
    assert seen() == without
    (found,) = accounts()
    assert all(one["num_workers"] == 2 for one in found.switches), "as many as the batches that one worker has ahead"
    assert num_workers or "draws random numbers for each batch" in found.reason
    assert capsys.readouterr().err.count("left at 0 workers") == 1 - num_workers


class Retried(Sampler):
    """Raises once, gives one list again and again, and plans in its length, which torch's loop never asks for."""

    def __init__(self):
        self.batches, self.held, self.num_lengths = iter(range(1, 20)), [0], 0

    def __len__(self):
        self.num_lengths += 1
        return 19 + int(0 * random.random())

    def __iter__(self):
        return self

    def __next__(self):
        self.held[0] = next(self.batches)
        if self.held[0] == 5:
            raise TimeoutError
        return self.held


def test_a_sampler_is_asked_again_after_an_exception(tuned):
    def seen():
        sampler, found = Retried(), []
        batches = iter(DataLoader(inflight_jobs.Samples(40, 0.0), batch_sampler=sampler))
        for _ in range(25):
            with suppress(TimeoutError, StopIteration):
                found.append(next(batches)[1].tolist())
        return found, sampler.num_lengths

    without = seen()
    assert len(without[0]) == 18
    tuned()
    assert seen() == without


class Resumed(DataLoader):
    """As SpeechBrain's: torch's iterator goes on where the loader says."""

    skip = None


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_toolkit_may_extend_torchs_iterators(num_workers, tuned, monkeypatch):
    base = torchs._BaseDataLoaderIter
    begin = base.__init__

    def begin_where_it_was_left(self, loader):
        begin(self, loader)
        for _ in range(getattr(loader, "skip", None) or 0):
            next(self._sampler_iter)
            self._num_yielded += 1
        loader.skip = None

    def reset(self, loader, first_iter=False):
        if not first_iter:
            self._sampler_iter, self._num_yielded = iter(self._index_sampler), 0

    monkeypatch.setattr(base, "__init__", begin_where_it_was_left)
    monkeypatch.setattr(base, "_reset", reset)

    def seen():
        loader = Resumed(inflight_jobs.Samples(40, 0.0), 4, num_workers=num_workers)
        loader.skip = 3
        batches = [iter(loader), iter(loader)]
        found = [(batch[1].tolist(), each._num_yielded) for each in batches for batch in each]
        return found, [each._num_yielded for each in batches], loader.skip

    without = seen()
    assert without[0][0] == ([12, 13, 14, 15], 4)
    accounts = tuned()
    assert seen() == without
    assert [each.state for each in accounts()] == ["watching"]


def test_what_torch_can_do_itself_is_no_reason(tuned, monkeypatch):
    own = type("Own", (DataLoader,), {"state_dict": dict})(range(4))
    assert "keeps a state of its own" in iterator.reason_against(own)
    monkeypatch.setattr(torchs.DataLoader, "state_dict", dict, raising=False)
    assert iterator.reason_against(DataLoader(range(4))) is None
    monkeypatch.setattr(torchs._BaseDataLoaderIter, "_next_index", lambda self: 1)
    assert "replaced" in iterator.reason_against(DataLoader(range(4)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_is_kept_no_longer_than_without(num_workers, tuned):
    accounts, alive = tuned(), []
    for length in (120, 140, 160):
        data = inflight_jobs.Samples(length, 0.0)
        alive.append(weakref.ref(data))
        for _ in DataLoader(data, 4, num_workers=num_workers):
            pass
        for _ in DataLoader(data, 4, num_workers=num_workers):
            break
        del data
    # Where cores are busy the end of the thread that looks, and has the dataset for names, is not waited for.
    until(lambda: all(thread.name != "loadtune-looks" for thread in threading.enumerate()))
    gc.collect()
    assert [each() for each in alive] == [None] * 3
    assert len(accounts()) == 6


def test_a_forked_process_has_nothing_of_its_parents(tuned, capsys):
    tuned()
    running = iter(DataLoader(inflight_jobs.Samples(40, 0.0), 4))
    next(running)
    words.say(None, "said")
    if (pid := os.fork()) == 0:
        words.say(None, "said")
        os._exit(len(tuner.Shared.here().tuners) + len(account.accounts()))
    assert os.waitpid(pid, 0)[1] == 0
    assert len(tuner.Shared.here().tuners) == 1


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}])
def test_a_stream_is_advised_about_and_stays_as_it_is(workers, tuned, monkeypatch):
    def seen():
        torch.manual_seed(1)
        loader = DataLoader(Stream(), 16, **workers)
        return [batch.tolist() for _ in range(2) for batch in loader], torch.rand(1)

    without = seen()
    monkeypatch.setattr(tuner.Shared, "cores", lambda _: 8.0)
    accounts = tuned()
    assert seen() == without
    (found,) = accounts()
    assert found.num_workers == found.own_workers
    assert found.switches == []
    assert "IterableDataset" in found.reason
    assert "num_workers=" in found.advice[0]


@pytest.mark.parametrize(
    ("shards", "cores", "wanted"),
    [({"num_shards": 3}, 8.0, 3), ({"pipeline": [SimpleNamespace(urls=["a", "b"])]}, 8.0, 2), ({}, 4.5, 4)],
)
def test_advice_for_a_stream_is_bound_by_shards_cores_and_the_wait(shards, cores, wanted, tuned, monkeypatch):
    monkeypatch.setattr(tuner.Shared, "cores", lambda _: cores)
    vars(stream := Stream()).update(shards)
    accounts = tuned(max_workers=64)
    for number, _ in enumerate(DataLoader(stream, 8, num_workers=1)):
        time.sleep(1.0 if number == 40 else 0.0005)  # a validation, in which nothing can be gained
    (found,) = accounts()
    assert found.advice == [f"num_workers={wanted}"]
    predicted = float(words.summary([found])[0].split("predicted gain ")[1].removesuffix("×"))
    assert 1 < predicted <= 1.01 / (1 - found.numbers()["blocked_fraction"])


class OfALibrary:
    settings = DataLoader(range(4))

    def __getattr__(self, name):
        return getattr(self.settings, name)


def test_a_library_that_builds_torchs_iterators_itself_is_named(tuned, monkeypatch):
    base, begun = torchs._BaseDataLoaderIter, []

    def patch():  # as SpeechBrain
        real = base.__init__
        monkeypatch.setattr(base, "__init__", lambda self, loader: begun.append(loader) or real(self, loader))

    for act in (patch, tuned, patch):
        act()
    assert len([*torchs._SingleProcessDataLoaderIter(OfALibrary()), *OfALibrary.settings]) == 8
    assert list(map(type, begun[:2])) == [OfALibrary] * 2
    named, watched = account.accounts()
    assert named.reason.endswith(".OfALibrary builds torch's iterators itself; set num_workers yourself")
    assert (watched.reason, watched.num_batches) == (None, 4)


@pytest.mark.parametrize(
    ("changes", "max_workers", "begins"),
    [({}, 3, 3), ({}, 2, 2), ({"batch_bytes": 1 << 60}, 3, None),
     ({"num_workers": "3"}, 3, None), ({"load_s": None}, 3, None), (None, 3, None)],
)  # fmt: skip
def test_what_an_earlier_run_found(changes, max_workers, begins, tuned, monkeypatch, tmp_path):
    monkeypatch.setenv("LOADTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(iterator, "place_of", lambda _: "here")
    tuned(max_workers=max_workers)
    data = inflight_jobs.Samples(16 * 8, 0.0)
    iter(DataLoader(data, 8, num_workers=1))
    file = tuner.Shared.here().tuners[0].learnt_file
    assert not file.exists()
    if changes is None:
        file.parent.mkdir()
        file.write_text('{"loaders": [')
    else:
        earlier = {"name": "Samples at here", "own_workers": 1, "num_workers": 3, "load_s": 0.01, "cpu_s": 0.0001}
        earlier |= {"batch_bytes": 384, "batch_tensors": 2, "first_blocked_fraction": 0.9}
        account.write_learnt(file, Account(**earlier | changes))
    monkeypatch.setattr(tuner.Shared, "_of_process", {})
    batches = DataLoader(data, 8, num_workers=1)
    assert [index for _, indices in batches for index in indices.tolist()] == list(range(16 * 8))
    found = account.accounts()[1]
    assert found.first_blocked_fraction == (0.9 if begins else None)
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
    found = Account(name="", own_workers=1, num_workers=1)
    switched = Switched(found, loader, Options())
    switched.switches = {(0, 20): 2}
    for number, _ in enumerate(iterator.begun_by(switched, loader)):
        time.sleep(0.0 if number < 20 else 0.03)  # first the loop waits, then the workers
    assert found.num_workers == 2
    assert found.numbers()["blocked_fraction"] < found.first_blocked_fraction


@pytest.mark.parametrize("phases", [((),), ((0.0084, 0.0085), (0.0351, 0.0349), (0.0084, 0.0085))])
def test_a_gain_of_whole_epochs_comes_with_their_rate_and_that_of_a_comparison_with_its_own(phases):
    loader = DataLoader(inflight_jobs.Samples(50 * 8, 0.0), 8, num_workers=1)
    found = Account(name="", own_workers=1, num_workers=4, kept_workers=4, batch_size=8, samples_per_s=949.0)
    kept = tuner.Tuner(found, loader, Options())
    first = Reading(
        num_workers=1, num_steps=50, total_s=0.035, blocked_s=0.03, step_s=0.005, blocks=(0.0351, 0.0349) * 4
    )
    kept.state = replace(kept.state, stage="resting", target=4, phases=phases, first=first, predicted_s=0.0115)
    kept.epoch_then, found.num_batches, found.total_s, found.epochs_s = (4, 0, 0.0), 50, 0.575, [0.57, 0.58]
    kept._whole_epoch()
    assert found.samples_per_s / found.gain == pytest.approx(8 / 0.035, rel=0.02)


def test_epochs_begin_with_the_users_workers_once_those_that_were_kept_failed():
    loader = DataLoader(inflight_jobs.Samples(8 * 4, 0.02), 4, num_workers=1)
    found = Account(name="", own_workers=1, num_workers=1)
    kept = tuner.Tuner(found, loader, Options())
    kept.state = replace(kept.state, stage="resting", target=2)
    batches = iterator.begun_by(kept, loader)
    next(batches)
    assert found.num_workers == 2
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    assert len(list(batches)) == 7
    assert found.state == "left alone"
    assert len(list(iterator.begun_by(kept, loader))) == 8
    assert (found.num_workers, found.kept_workers) == (1, None)


SHARED = {"level": 0}


def test_the_deep_look_sees_what_changes():
    data = inflight_jobs.Samples(3, 0.0)
    data.inner, data.list, data.tensor = SimpleNamespace(level=1.5), [1, [2]], torch.zeros(2)
    data.array, data.long = numpy.zeros(5000), list(range(5000))
    data.read = lambda: SHARED["level"]
    changes = (
        lambda: data.long.__setitem__(2500, 0),
        lambda: SHARED.update(level=SHARED["level"] + 1),
        lambda: setattr(data, "length", 4),
        lambda: setattr(data, "new", None),
        lambda: setattr(data.inner, "level", 2.5),
        lambda: data.list[1].append(3),
        lambda: data.tensor.add_(1),
        lambda: data.array.__setitem__(2500, 7),
    )
    for change in changes:
        look = trust.Unchanged(data, len)
        assert look.changed() is None
        data.inner.level = float(str(data.inner.level))  # the same value, another object
        assert look.changed() is None
        change()
        assert look.changed() is not None


def test_spawned_workers_cannot_import_what_a_notebook_defines(monkeypatch):
    monkeypatch.setattr(trust.private, "start_method", lambda context: "spawn")
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setattr(Augmented, "__module__", "__main__")
    loader = DataLoader(Augmented(8, 0.0))
    assert "notebook" in trust.Trust(loader, WatchedSampler(loader)).reason_against()


def test_a_handle_is_found_wherever_the_dataset_keeps_it(tmp_path):
    data = inflight_jobs.Samples(3, 0.0)
    assert trust.shared_handle(data) is None
    data.parts = [{"file": open(tmp_path / "data", "w+")}]  # noqa: SIM115
    assert "open file" in trust.shared_handle(data)
    data.parts[0]["file"].close()
    sqlite3 = pytest.importorskip("sqlite3")
    data.parts = [sqlite3.connect(":memory:")]
    assert "sqlite3.Connection" in trust.shared_handle(data)
