"""One indexing call a batch instead of one a row: for datasets that can be indexed with a list."""

from dataclasses import replace
from typing import TYPE_CHECKING

from loadtune.records import Examined, TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation

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


class BatchedFetch(Remedy):
    title = "fetch a batch with one indexing call"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        facts = situation.facts
        return situation.config if facts.fixed_batch_size is None and facts.dataset_length is not None else None

    def apply(self, workload: "Workload") -> "Workload":
        from torch.utils.data import default_collate, default_convert

        from loadtune.remedies.transforms import owner_of
        from loadtune.workload import collate_samples, fetch_samples

        loader, owner = workload.loader, owner_of(workload.dataset)
        if loader.collate_fn not in (None, default_collate):
            raise NotApplicableError("its loader has a collate function of its own")
        if hasattr(owner, "__getitems__"):
            raise NotApplicableError("the dataset has __getitems__, so PyTorch already fetches a batch with one call")
        drawn = workload.epoch.indices
        indices = [drawn[at] for at in (2, 0, 1) if at < len(drawn)]  # as they are shuffled
        try:
            at_once = default_convert(workload.dataset[indices])  # type: ignore[no-untyped-call]
        except Exception as error:
            raise NotApplicableError("the dataset cannot be indexed with a list in any order") from error
        one_by_one = fetch_samples(workload.dataset, indices)
        if not _equal(at_once, collate_samples(one_by_one, indices, any_target=True, any_structure=True)):
            raise NotApplicableError("indexed with a list, the dataset returns other values than one by one")
        return replace(workload, loader=replace(loader, batched_fetch=True, collate_fn=None))

    def code(self, situation: Situation, seen: Examined) -> str:
        loader = situation.config.loader
        kept = ["**kept"] if seen.code == OWN else []
        others = {name: value for name, value in loader.kwargs().items() if name != "batch_size"}
        arguments = ", ".join([*(f"{name}={value!r}" for name, value in others.items()), *kept])
        return "\n".join(
            [
                seen.code or PLAIN,
                f"batches = BatchSampler(sampler, batch_size={loader.batch_size}, drop_last=drop_last)",
                f"loader = DataLoader(dataset, sampler=batches, batch_size=None, {arguments})",
            ]
        )

    def own_code(self, workload: "Workload") -> str:
        """How samples are drawn."""
        return OWN if workload.own_loader else PLAIN


def _equal(one: object, other: object) -> bool:
    """Whether both have the same tensors in the same places."""
    import torch

    from loadtune.workload import structure_text, tensors_of

    if structure_text(one) != structure_text(other):
        return False
    return all(torch.equal(a, b) for a, b in zip(tensors_of(one), tensors_of(other), strict=True))
