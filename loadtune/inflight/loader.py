"""The DataLoader that tunes itself."""

import sys
from typing import Any

import torch.utils.data

from loadtune.inflight import hook
from loadtune.inflight.account import Account


class DataLoader(torch.utils.data.DataLoader[Any]):
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
