"""`loadtune.DataLoader`: tuned without `loadtune.install`."""

import sys
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from loadtune.inflight import hook
from loadtune.inflight.account import Account


class DataLoader(TorchDataLoader[Any]):
    """`torch.utils.data.DataLoader` whose number of workers is tuned while a loop iterates it.

    Takes the same arguments. Samples and their order are the same; `num_workers` is where it begins. Where the loader
    cannot be tuned, it is torch's own, and `tuning` says why.
    """

    tuning: Account | None = None
    """What was found and done so far. None: nothing iterated it yet."""

    def _get_iterator(self) -> Any:
        made = hook.iterator_of(self, sys._getframe(1))
        if made is None:
            return super()._get_iterator()
        self.tuning = made._tuner.account
        return made
