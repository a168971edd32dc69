"""One indexing call a batch instead of one a row: for datasets that can be indexed with a list."""

from dataclasses import replace
from typing import TYPE_CHECKING

from loadtune.records import Examined, TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation

if TYPE_CHECKING:
    from loadtune.workload import Workload


class BatchedFetch(Remedy):
    title = "fetch a batch with one indexing call"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        facts = situation.facts
        return situation.config if facts.fixed_batch_size is None and facts.dataset_length is not None else None

    def apply(self, workload: "Workload") -> "Workload":
        from torch.utils.data import default_collate

        from loadtune.remedies.leaves import small_batch
        from loadtune.remedies.transforms import owner_of

        loader, owner = workload.loader, owner_of(workload.dataset)
        if loader.collate_fn not in (None, default_collate):
            raise NotApplicableError("its loader has a collate function of its own")
        if hasattr(owner, "__getitems__"):
            raise NotApplicableError("the dataset has __getitems__, so PyTorch already fetches a batch with one call")
        num = min(3, workload.dataset_length or 0)
        try:
            at_once = workload.dataset[list(range(num))]
        except Exception as error:
            raise NotApplicableError("the dataset cannot be indexed with a list") from error
        if not _equal(at_once, small_batch(workload, num)):
            raise NotApplicableError("indexed with a list, the dataset returns other values than one by one")
        return replace(workload, loader=replace(loader, batched_fetch=True, collate_fn=None))

    def code(self, situation: Situation, seen: Examined) -> str:
        loader = situation.config.loader
        others = {name: value for name, value in loader.kwargs().items() if name != "batch_size"}
        arguments = ", ".join(f"{name}={value!r}" for name, value in others.items())
        return "\n".join(
            [
                "from torch.utils.data import BatchSampler, DataLoader, RandomSampler",
                f"batches = BatchSampler(RandomSampler(dataset), batch_size={loader.batch_size}, drop_last=True)",
                f"loader = DataLoader(dataset, sampler=batches, batch_size=None, {arguments})",
            ]
        )


def _equal(one: object, other: object) -> bool:
    """Whether both have the same tensors in the same places."""
    import torch

    from loadtune.workload import structure_text, tensors_of

    if structure_text(_listed(one)) != structure_text(_listed(other)):
        return False
    return all(torch.equal(a, b) for a, b in zip(tensors_of(one), tensors_of(other), strict=True))


def _listed(batch: object) -> object:
    """default_collate makes lists of tuples."""
    return list(batch) if isinstance(batch, tuple) and not hasattr(batch, "_fields") else batch
