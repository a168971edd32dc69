"""A loader with switching iterators as a training has them: torch's own ``iter(loader)`` asks for them."""

import weakref

from loadtune.stream.switching import SwitchingIterator
from loadtune.stream.torch_private import LoaderView


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
        if current._coming or current.num_delivering != self.asked:
            return False
        return current.delivering() is not None and current.delivering().num_delivered > 0

    def is_starting(self):
        return bool(self._current()._coming)

    def close(self):
        if self._current() is not None:
            self._current()._shutdown_workers()
        self.loader._iterator = None
