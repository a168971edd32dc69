"""Errors that are nobody's but the sampler's, the loop's or another loader's; and what goes on after them."""

import time

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from loadtune.stream import torch_private
from loadtune.stream.sample_table import SampleTable
from loadtune.stream.switching import SwitchingLoader

LENGTH = 40


class Numbers(Dataset):
    interrupted_at = None

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        if index == self.interrupted_at:
            self.interrupted_at = None
            raise KeyboardInterrupt
        return index


class Slow(Numbers):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.002)
        return super().__getitem__(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(12))


class Breaks(Sampler):
    """Raises in the middle of the second epoch's first batches."""

    num_epochs = 0

    def __len__(self):
        return LENGTH

    def __iter__(self):
        self.num_epochs += 1
        for index in range(LENGTH):
            if self.num_epochs > 1 and index == 6:
                raise LookupError("no such index")
            yield index


def numbers(batches):
    return [index for batch in batches for index in batch.tolist()]


@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_of_the_sampler_reaches_the_loop_and_blames_no_workers(persistent):
    loader = DataLoader(Numbers(), 4, sampler=Breaks(), num_workers=1, persistent_workers=persistent)
    switching = SwitchingLoader(loader)
    batches = iter(switching)
    switching.switch(num_workers=2)
    assert numbers(batches) == list(range(LENGTH))
    with pytest.raises(LookupError, match="no such index"):
        numbers(switching)
    assert switching.withdrawn == []
    switching.close()


def test_after_ctrl_c_in_the_training_process_a_switch_loses_and_reorders_nothing():
    data = Slow()
    data.interrupted_at = 9
    switching = SwitchingLoader(DataLoader(data, 4))
    batches = iter(switching)
    seen = numbers([next(batches), next(batches)])
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    switch = switching.switch(num_workers=2)
    while switch.delivers_s is None and len(seen) < 4000:
        seen += next(batches).tolist()
    assert switch.delivers_s is not None
    seen += numbers([next(batches) for _ in range(9)])
    assert seen == [*range(8), *range(12, len(seen) + 4)], "the batch that was interrupted is gone, as in torch"


def test_a_pool_that_cannot_be_made_is_withdrawn_and_leaves_no_row():
    class Full(SampleTable):
        def reserve(self, num_workers):
            if num_workers > 2:
                raise ValueError("no room")
            return super().reserve(num_workers)

    table = Full()
    switching = SwitchingLoader(DataLoader(Numbers(), 4, num_workers=1), table=table)
    batches = iter(switching)
    switching.switch(num_workers=3)
    assert numbers(batches) == list(range(LENGTH))
    assert [str(each.error) for each in switching.withdrawn] == ["no room"]
    assert table.reserve(2).start == 0, "all rows are free again"


def test_an_iterable_dataset_gives_all_of_every_epoch_also_without_workers():
    switching = SwitchingLoader(DataLoader(Stream(), 4, num_workers=1, persistent_workers=True))
    first = numbers(switching)
    switching.switch(num_workers=2)
    assert [numbers(switching) for _ in range(3)] == [first] * 3
    switching.close()


def test_the_death_of_another_loaders_worker_withdraws_nothing(monkeypatch):
    switching = SwitchingLoader(DataLoader(Slow(), 1))
    batches = iter(switching)
    switch = switching.switch(num_workers=1)
    while switch.delivers_s is None:
        next(batches)

    def others():
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    with monkeypatch.context() as patch:
        patch.setattr(torch_private, "error_if_any_worker_fails", others)
        with pytest.raises(RuntimeError, match="pid 7"):
            next(batches)
    next(batches)
    assert switching.withdrawn == []
    switching.close()


def test_a_loader_that_was_closed_in_mid_epoch_says_so():
    switching = SwitchingLoader(DataLoader(Numbers(), 4))
    batches = iter(switching)
    next(batches)
    switching.close()
    with pytest.raises(RuntimeError, match="closed in the middle of an epoch"):
        next(batches)
    assert numbers(switching) == list(range(LENGTH))


def test_minutes_in_which_the_loop_does_something_else_count_against_no_workers(monkeypatch):
    switching = SwitchingLoader(DataLoader(Numbers(), 4))
    batches = iter(switching)
    switching.switch(num_workers=2)
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 1000.0)  # validation, say
    assert numbers(batches) == list(range(LENGTH))
    assert switching.withdrawn == []
