"""A loader with switching iterators as a training has them: torch's own ``iter(loader)`` asks for them."""

import time
import weakref

import torch
from torch.utils.data import Dataset

from loadtune.stream.switching import SwitchingIterator
from loadtune.stream.torch_private import LoaderView


class Numbers(Dataset):
    """Sample i is i, in a tensor of some kilobytes."""

    def __init__(self, size, sample_s=0.0):
        self.size, self.sample_s = size, sample_s

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if self.sample_s:
            time.sleep(self.sample_s)
        return torch.full((256,), index)


def numbers(batches):
    return [int(sample[0]) for batch in batches for sample in batch]


class Switching:
    """Iterates like the DataLoader that it is given. `switch` changes its workers in the running epoch, or the next."""

    def __init__(self, loader, **given):
        self.loader, self.withdrawn, self.asked = loader, [], loader.num_workers
        self._given, self._current = given, lambda: None

    def _begun(self):
        view = LoaderView(self.loader, self.loader._index_sampler)
        begun = SwitchingIterator(view, self.num_workers, **self._given)
        self.withdrawn.extend(begun.withdrawn)
        begun.withdrawn = self.withdrawn
        self._current = weakref.ref(begun)
        return begun

    def __iter__(self):
        self.loader._get_iterator = self._begun
        try:
            return iter(self.loader)
        finally:
            del self.loader._get_iterator

    @property
    def num_workers(self):
        """With which the next epoch begins."""
        failed = any(each.num_workers == self.asked for each in self.withdrawn)
        return self.loader.num_workers if failed else self.asked

    def switch(self, num_workers):
        if (current := self._current()) is not None:
            current.switch(num_workers)
        self.asked = num_workers

    def took_over(self):
        """Whether those that were asked for last deliver."""
        current = self._current()
        if current.is_switching or current.num_delivering != self.asked:
            return False
        return current.delivering() is not None and current.delivering().num_delivered > 0

    def is_starting(self):
        return self._current().is_switching

    def close(self):
        if self._current() is not None:
            self._current()._shutdown_workers()
        self.loader._iterator = None
