"""Samples fetched in another way: a batch with one indexing call, or from RAM."""

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loadtune.changes.base import NotApplicableError, Remedy, Situation
from loadtune.records.config import TrialConfig
from loadtune.records.result import Examined

if TYPE_CHECKING:
    from loadtune.workload import Workload

PLAIN = """\
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
sampler, drop_last = RandomSampler(dataset), True"""

OWN = """\
from torch.utils.data import BatchSampler, DataLoader
own = loader.batch_sampler  # of your loader as it is: the samples stay in its order
sampler, drop_last = own.sampler, own.drop_last
kept = {"generator": loader.generator, "worker_init_fn": loader.worker_init_fn}"""

OF_RAM = 0.5
"""Share of the available RAM that the cache may take."""

NUM_TRIED = 1024
"""Samples that are loaded for a trial, at the most, and for at most so many seconds."""
TRIED_S = 1.0

NUM_COMPARED = 16
"""Samples that are loaded twice: a random flip leaves every second sample as it was."""

CACHED = """\
samples = [dataset[index] for index in range(len(dataset))]  # once, before the workers start
loader = DataLoader(samples, ...)"""


class BatchedFetch(Remedy):
    """One indexing call a batch instead of one a row: for datasets that can be indexed with a list."""

    name = "batched_fetch"
    title = "fetch a batch with one indexing call"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        facts = situation.facts
        return situation.config if facts.fixed_batch_size is None and facts.dataset_length is not None else None

    def apply(self, workload: "Workload") -> "Workload":
        from torch.utils.data import default_collate

        from loadtune.changes.datasets import batch_of, equal, owner_of

        if workload.loader.collate_fn not in (None, default_collate):
            raise NotApplicableError("its loader has a collate function of its own")
        if hasattr(owner_of(workload.dataset), "__getitems__"):
            raise NotApplicableError("the dataset has __getitems__, so PyTorch already fetches a batch with one call")
        drawn = workload.epoch.indices
        indices = [drawn[at] for at in (2, 0, 1) if at < len(drawn)]  # as they are shuffled
        changed = replace(workload, loader=replace(workload.loader, batched_fetch=True, collate_fn=None))
        try:
            at_once = batch_of(changed, indices)
        except Exception as error:
            raise NotApplicableError("the dataset cannot be indexed with a list in any order") from error
        if not equal(at_once, batch_of(workload, indices)):
            raise NotApplicableError("indexed with a list, the dataset returns other values than one by one")
        return changed

    def own_code(self, workload: "Workload") -> str:
        """How samples are drawn."""
        return OWN if workload.own_loader else PLAIN

    def code(self, situation: Situation, seen: Examined) -> str:
        loader = situation.config.loader
        kept = ["**kept"] if seen.code == OWN else []
        others = {name: value for name, value in loader.kwargs().items() if name != "batch_size"}
        arguments = ", ".join([*(f"{name}={value!r}" for name, value in others.items()), *kept])
        batches = f"batches = BatchSampler(sampler, batch_size={loader.batch_size}, drop_last=drop_last)"
        made = f"loader = DataLoader(dataset, sampler=batches, batch_size=None, {arguments})"
        return "\n".join([seen.code or PLAIN, batches, made])


class Cached(Remedy):
    """Where they fit, and loading the same sample twice gives the same tensors."""

    name = "cached"
    title = "keep samples in RAM"
    changes = "RAM for the whole dataset; random augmentation would be frozen"
    lines = CACHED
    loads = True
    only_predicted = True
    same_samples = False

    def offer(self, situation: Situation) -> TrialConfig | None:
        facts = situation.facts
        if facts.dataset_length is None or facts.fixed_batch_size is not None:
            return None
        if facts.start_method != "fork":
            return None  # each worker would have a copy of its own
        if situation.has("batched_fetch"):
            return None  # the whole table is in RAM already
        fits = facts.dataset_length * facts.sample_bytes <= OF_RAM * situation.ram_bytes
        return situation.config if fits else None

    def apply(self, workload: "Workload") -> "Workload":
        from torch.utils.data import default_convert

        from loadtune.changes.datasets import equal
        from loadtune.workload import fetch_samples

        dataset, drawn = workload.dataset, workload.epoch.indices
        compared = [drawn[at % len(drawn)] for at in range(NUM_COMPARED)]
        once, again = (default_convert(fetch_samples(dataset, compared)) for _ in range(2))  # type: ignore[no-untyped-call]
        if not equal(once, again):
            raise NotApplicableError("a sample is another one each time that it is loaded (augmentation)")
        kept, until = [], time.monotonic() + TRIED_S
        for index in drawn[:NUM_TRIED]:
            kept.append(fetch_samples(dataset, [index])[0])
            if time.monotonic() > until:
                break
        return replace(workload, loader=replace(workload.loader, dataset=Kept(kept, len(drawn))))


@dataclass(frozen=True, slots=True)
class Kept:
    """A dataset of this length, of which only the first samples were loaded; they stand for the others."""

    samples: Sequence[Any]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Hashable) -> Any:
        return self.samples[hash(index) % len(self.samples)]
