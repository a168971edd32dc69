"""Whether other workers read what the user's settings read: found out before anything is switched."""

from typing import Any

from loadtune.inflight import gates
from loadtune.stream.pool import PoolFailedError
from loadtune.stream.random_states import read_states, same_states
from loadtune.stream.sample_table import SampleTable
from loadtune.stream.settings import Settings
from loadtune.stream.trial import Trial

_COPY = "workers have a copy of the dataset; set num_workers yourself where that is no problem"


class Trust:
    """Of one iterator. What its questions answer is a reason against other workers; None: none is known."""

    def __init__(self, view: Any, sampler: gates.WatchedSampler, own: Settings, method: str) -> None:
        """``method``: how workers start."""
        self._view, self._sampler, self._own, self._method = view, sampler, own, method
        self._roots = view.dataset, view.collate_fn
        self.in_process = own.num_workers == 0
        # Where the training process loads, a change counts from the first batch on; else since workers have a copy.
        self._unchanged = None if self.in_process else gates.Unchanged(*self._roots)
        self._shares_files = method == "fork" and own.num_workers <= 1
        self._offsets = gates.read_offsets() if self._shares_files else {}
        self._copies: list[Any] = []
        self._states: Any = None
        self._num_seen = self._num_compared = 0
        self.draws_random = False
        """The training process drew random numbers as it loaded."""
        self._trial: Trial | None = None
        self.has_read_again = not self.in_process

    def before_batch(self) -> None:
        """The training process is about to load a batch, if the user has no workers."""
        if self._unchanged is None:
            self._unchanged = gates.Unchanged(*self._roots)
        watched = 0 < self._num_seen <= gates.WatchedSampler.WATCHED and not self.draws_random
        self._states = read_states() if watched else None

    def after_batch(self, batch: Any) -> None:
        if self._states is not None and not same_states(self._states, read_states()):
            self.draws_random = True
        self._num_seen += 1
        if not self.has_read_again and len(self._copies) < self._sampler.KEPT:
            self._copies.append(gates.kept_copy(batch))

    def changed(self) -> str | None:
        """Whether the dataset is another one than its copies in workers."""
        what = None if self._unchanged is None else self._unchanged.changed()
        return None if what is None else f"the loop, or reading it, changes the dataset ({what}); {_COPY}"

    def reason_against(self) -> str | None:
        """What is known without starting a worker."""
        if self._sampler.draws:
            return "its sampler draws random numbers as it goes, so the order depends on the number of workers"
        if (changed := self.changed()) is not None:
            return changed
        if self._shares_files:
            moved = gates.moved_file(self._offsets)
            what = f"an open file ({moved})" if moved else gates.shared_handle(*self._roots)
            if what is not None:
                return f"the dataset reads through {what}, which several workers would share"
        if self.in_process and self._method != "fork" and not gates.main_can_be_imported():
            return 'the script has no `if __name__ == "__main__":`, so workers would run it again'
        return None

    def read_again(self, table: SampleTable) -> None:
        """Let two workers read the first batches, too; `compare` says what came of it."""
        batches = self._sampler.first[: len(self._copies)]
        self._trial = Trial(self._view, self._own.changed(num_workers=2), table, batches)

    def compare(self) -> str | None:
        """A step further. `has_read_again`: all were the same."""
        assert self._trial is not None
        try:
            for batch in self._trial.poll():
                if not gates.same_batch(batch, self._copies[self._num_compared], values=not self.draws_random):
                    return "a worker read other samples than the training process"
                self._num_compared += 1
        except PoolFailedError as failure:
            cause = str(failure.__cause__ or "").strip().splitlines()
            return f"workers cannot read it: {failure}" + (f" ({cause[-1]})" if cause else "")
        self.has_read_again = self._trial.num_left == 0
        return None

    def close(self) -> None:
        if self._trial is not None:
            self._trial.close()
        self._trial, self._copies = None, []
