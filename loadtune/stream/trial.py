"""Reading batches again in workers of their own, to see whether workers read what the training process reads."""

import threading
import time
from collections.abc import Iterable
from typing import Any

from loadtune.stream.batches import IndexStream
from loadtune.stream.counters import Counters, queue_depth
from loadtune.stream.pool import Pool, PoolFailedError
from loadtune.stream.sample_table import SampleTable
from loadtune.stream.settings import Settings

_START_LIMIT_S, _BATCH_LIMIT_S = 60.0, 30.0


class Trial:
    """Loads these index batches in a few workers. The training loop goes on meanwhile, and asks now and then."""

    def __init__(self, loader: Any, settings: Settings, table: SampleTable, batches: Iterable[Any]) -> None:
        """``loader``: a DataLoader or a `torch_private.LoaderView`. Starts no worker yet."""
        batches = list(batches)
        self.num_left = len(batches)
        stream = IndexStream(lambda: iter(batches), Counters())
        self._pool = Pool(loader, settings, stream, 0, table, on_trial=True, deferred=True, hang_s=_BATCH_LIMIT_S)
        self._waits_since_s: float | None = None

    def poll(self) -> list[Any]:
        """What was loaded since the last call, in order. Raises PoolFailedError: the workers did not load it."""
        pool, found = self._pool, list[Any]()
        if self._waits_since_s is None:
            if not pool.is_ready(_START_LIMIT_S):
                return found
            pool.feed()
            self._waits_since_s = time.monotonic()
        late = time.monotonic() - self._waits_since_s > _BATCH_LIMIT_S
        # In order: the newest to come is waited for where another one stands ready.
        while self.num_left and (late or not all(each.is_alive() for each in pool._workers) or self._is_ready()):
            try:
                found.append(next(pool))
            except StopIteration:
                raise PoolFailedError("its workers gave too few batches") from None
            self.num_left -= 1
        return found

    def _is_ready(self) -> bool:
        depth = queue_depth(self._pool)
        return depth is not None and depth.ready > 0

    def close(self) -> None:
        """In a thread: the loop does not wait for the workers' end."""
        threading.Thread(target=self._pool.kill, name="loadtune-end-workers", daemon=True).start()
