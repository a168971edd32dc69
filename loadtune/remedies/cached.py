"""Keep samples in RAM: where they fit, and loading the same sample twice gives the same tensors."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loadtune.records import Examined, TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation

if TYPE_CHECKING:
    from loadtune.workload import Workload

OF_RAM = 0.5
"""Share of the available RAM that the cache may take."""

NUM_TRIED = 1024
"""Samples that are loaded for a trial, at the most, and for at most so many seconds."""
TRIED_S = 1.0

NUM_COMPARED = 16
"""Samples that are loaded twice: a random flip leaves every second sample as it was."""

CODE = """\
samples = [dataset[index] for index in range(len(dataset))]  # once, before the workers start
loader = DataLoader(samples, ...)"""


class Cached(Remedy):
    title = "keep samples in RAM"
    changes = "RAM for the whole dataset; random augmentation would be frozen"
    loads = True
    only_predicted = True
    same_samples = False

    def offer(self, situation: Situation) -> TrialConfig | None:
        facts = situation.facts
        if facts.dataset_length is None or facts.fixed_batch_size is not None:
            return None
        if facts.start_method != "fork" or {"start_method", "worker_threads"} & set(situation.config.remedies):
            return None  # each worker would have a copy of its own
        if "batched_fetch" in situation.config.remedies:
            return None  # the whole table is in RAM already
        fits = facts.dataset_length * facts.sample_bytes <= OF_RAM * situation.ram_bytes
        return situation.config if fits else None

    def apply(self, workload: "Workload") -> "Workload":
        import time

        import torch
        from torch.utils.data import default_convert

        from loadtune.workload import fetch_samples, tensors_of

        dataset, drawn = workload.dataset, workload.epoch.indices
        compared = [drawn[at % len(drawn)] for at in range(NUM_COMPARED)]
        once, again = (list(tensors_of(default_convert(fetch_samples(dataset, compared)))) for _ in range(2))  # type: ignore[no-untyped-call]
        if not all(torch.equal(one, other) for one, other in zip(once, again, strict=True)):
            raise NotApplicableError("a sample is another one each time that it is loaded (augmentation)")
        kept, until = [], time.monotonic() + TRIED_S
        for index in drawn[:NUM_TRIED]:
            kept.append(fetch_samples(dataset, [index])[0])
            if time.monotonic() > until:
                break
        return replace(workload, loader=replace(workload.loader, dataset=Kept(kept, len(drawn))))

    def code(self, situation: Situation, seen: Examined) -> str:
        return CODE


@dataclass(frozen=True, slots=True)
class Kept:
    """A dataset of this length, of which only the first samples were loaded; they stand for the others."""

    samples: Sequence[Any]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Hashable) -> Any:
        return self.samples[hash(index) % len(self.samples)]
