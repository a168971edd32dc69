"""How samples are loaded and made ready for training: what a change of the code changes. Needs torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import default_convert

from loadtune.changes.changed import Changed, How
from loadtune.workload.batches import Batch
from loadtune.workload.loaders import LoaderParts
from loadtune.workload.samples import fetch_samples, make_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Of one loader. The user's own dataset and loader stay as they are."""

    loader: LoaderParts
    indices: Sequence[Any]
    """Of samples, as an epoch draws them, or some of them."""
    num_samples: int = 0
    """Of the whole data set. 0: as many as there are indices."""
    on_device: tuple[Callable[[Batch], Batch], ...] = ()
    """What is done with a batch once it is on the device, before it is trained on."""
    on_gpu: bool = True
    """Whether the job trains on a GPU."""
    memory_bytes: int = 0
    """That may be kept in memory which all workers share."""
    has_loader: bool = True
    """Whether the user's code makes a DataLoader. False: a dataset that was named is read in random order."""

    def with_parts(self, **parts: Any) -> "Way":
        """The same with other parts of its loader."""
        return replace(self, loader=replace(self.loader, **parts))

    @property
    def users_dataset(self) -> Any:
        dataset = self.loader.dataset
        return dataset.dataset if isinstance(dataset, Changed) else dataset

    @property
    def how(self) -> How:
        """What is replaced while its samples load."""
        return self.loader.dataset.how if isinstance(self.loader.dataset, Changed) else How()

    def with_how(self, **how: Any) -> "Way":
        """The same with other replacements."""
        return self.with_parts(dataset=Changed(self.users_dataset, replace(self.how, **how)))

    def load(self, indices: Sequence[Any]) -> Batch:
        """A batch of these samples, as a worker makes it. Raises WorkloadError."""
        if self.loader.batched_fetch:
            return default_convert(self.loader.dataset[indices])  # type: ignore[no-untyped-call]
        return make_batch(self.loader, fetch_samples(self.loader, indices))
