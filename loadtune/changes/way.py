"""How samples are loaded and made ready for training: what a change of the code changes.

Most changes do not need the user's code: attributes of modules and classes are replaced around ``dataset[index]`` and
put back after it, in a process of our own. The user's objects stay as they are, and datasets that open their images
themselves are covered, too. Needs torch.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from torch.utils.data import Dataset, default_convert

from loadtune.workload.batches import Batch
from loadtune.workload.loaders import LoaderParts, fetch_samples, make_batch

Replacement = tuple[Any, str, Any]
"""A module or class, the name of its attribute, and what stands there meanwhile."""


class Replacing(Protocol):
    def replacements(self) -> list[Replacement]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Samples load with these replacements, all at once."""

    reduced_size: int | None = None
    """JPEG files are decoded at a reduced size, of which height and width are at least so many pixels."""
    tensors: bool = False
    """Images are decoded to uint8 tensors, and torchvision's transforms work on these."""
    as_bytes: bool = False
    """No floats are made of bytes, and bytes are not normalised: the device is to do both."""
    others: tuple[Replacing, ...] = ()
    """That do not only concern torchvision."""
    stand_ins: Sequence[Any] | None = None
    """Indices of the samples that are loaded in place of all: what is kept of them is kept from the start. None: all
    are loaded."""

    def replacements(self) -> list[Replacement]:
        made = [each for others in self.others for each in others.replacements()]
        if self.tensors or self.as_bytes or self.reduced_size is not None:
            from loadtune.changes import replaced  # needs torchvision

            made += replaced.replacements(self, {(id(owner), name): value for owner, name, value in made})
        return made


class Changed(Dataset[Any]):
    """A dataset whose samples load with replacements. It has all that the dataset has."""

    def __init__(self, dataset: Any, how: How) -> None:
        self.dataset, self.how, self._made = dataset, how, list[Replacement]()

    def __getitem__(self, index: Any) -> Any:
        with self._replaced():
            return self.dataset[self._stand_in(index)]

    def __getattr__(self, name: str) -> Any:
        if name in ("dataset", "how", "_made") or (name.startswith("__") and name != "__getitems__"):
            raise AttributeError(name)
        found = getattr(self.dataset, name)
        return partial(self._all_at_once, found) if name == "__getitems__" else found

    def __len__(self) -> int:
        return len(self.dataset)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": []}

    def _all_at_once(self, read: Callable[[Any], Any], indices: Any) -> Any:
        with self._replaced():
            return read([*map(self._stand_in, indices)])

    def _stand_in(self, index: Any) -> Any:
        of = self.how.stand_ins
        return index if of is None or isinstance(index, list) or index in of else of[hash(index) % len(of)]

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        if not self._made:
            self._made = self.how.replacements()
        before = [(owner, name, vars(owner)[name]) for owner, name, _ in self._made]
        try:
            for owner, name, made in self._made:
                setattr(owner, name, made)
            yield
        finally:
            for owner, name, made in before:
                setattr(owner, name, made)


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
    within: Callable[[], AbstractContextManager[None]] = nullcontext
    """Samples are loaded within this, as a worker does that began with the loader's ``worker_init_fn``."""
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

    def prepared(self, batch: Batch) -> Batch:
        """A batch that is on the device, as it is trained on."""
        for change in self.on_device:
            batch = change(batch)
        return batch

    def load(self, indices: Sequence[Any]) -> Batch:
        """A batch of these samples, as a worker makes it. Raises WorkloadError."""
        with self.within():
            if self.loader.batched_fetch:
                return default_convert(self.loader.dataset[indices])  # type: ignore[no-untyped-call]
            return make_batch(self.loader, fetch_samples(self.loader, indices), are_kept=False)


def few_of(indices: Sequence[Any], most: int) -> list[Any]:
    """At most so many, spread over all: always the same ones."""
    few = random.Random(0).sample(range(len(indices)), min(most, len(indices)))
    return [indices[at] for at in few]
