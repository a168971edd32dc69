"""How samples are loaded and made ready for training: what a change of the code changes.

Most changes do not need the user's code: attributes of modules and classes are replaced around ``dataset[index]`` and
put back after it, in a process of our own. The user's objects stay as they are, and datasets that open their images
themselves are covered, too. Needs torch.
"""

import io
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset, default_convert

from loadtune.workload.batches import Batch
from loadtune.workload.loaders import LoaderParts, fetch_samples, make_batch

Replacement = tuple[Any, str, Any]
"""A module or class, the name of its attribute, and what stands there meanwhile."""


class Replacing(Protocol):
    def replacements(self) -> list[Replacement]: ...


def _nothing(how: "How", others: Mapping[tuple[int, str], Any]) -> list[Replacement]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Samples load with these replacements, all at once."""

    reduced_size: int | None = None
    """JPEG files are decoded at a reduced size, of which height and width are at least so many pixels."""
    tensors: bool = False
    """Images are decoded to uint8 tensors, and torchvision's transforms work on these."""
    as_bytes: bool = False
    """No floats are made of bytes, and bytes are not normalised: the device is to do both."""
    of_images: Callable[["How", Mapping[tuple[int, str], Any]], list[Replacement]] = _nothing
    """What the three above replace, given what others do already: all that needs torchvision."""
    others: tuple[Replacing, ...] = ()
    """That do not only concern torchvision."""
    stand_ins: Sequence[Any] | None = None
    """Indices of the samples that are loaded in place of all: what is kept of them is kept from the start. None: all
    are loaded."""

    def replacements(self) -> list[Replacement]:
        made = [each for others in self.others for each in others.replacements()]
        return made + self.of_images(self, {(id(owner), name): value for owner, name, value in made})


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


# Of other libraries than torchvision: rows of a table, tokens, kept images. Each object is of one trial, and what it
# keeps is of the samples that stand in for all. None needs its library before it is used.

_MOST_BYTES = 1 << 30
"""Of the arrays that are made of a table for a trial."""


_Table = tuple[dict[str, int], Callable[[int], Any]]
"""Position of each column; number of a row → its values."""


class _Keeping:
    """What was kept stays in this process."""

    def __init__(self) -> None:
        self.num_read = 0
        self.kept: dict[Any, Any] = {}
        """Of samples, by what tells them apart."""

    def num_bytes(self) -> int:
        return sum(map(_num_bytes, self.kept.values()))

    def __reduce__(self) -> Any:
        return type(self), ()


class Rows(_Keeping):
    """``df.iloc[row]`` and ``df.loc[row]`` of a pandas table, from arrays that are made once."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[int, tuple[Any, _Table | None]] = {}

    def replacements(self) -> list[Replacement]:
        if (pandas := sys.modules.get("pandas")) is None:
            return []
        kinds: list[Any] = [type(pandas.DataFrame().iloc), type(pandas.DataFrame().loc)]
        owner = next(each for each in kinds[0].__mro__ if "__getitem__" in vars(each))
        before = owner.__getitem__

        def read(indexer: Any, key: Any) -> Any:
            frame = indexer.obj
            is_row = isinstance(key, (int, np.integer)) and type(frame) is pandas.DataFrame and 0 <= key < len(frame)
            by_number = isinstance(indexer, kinds[0]) or type(frame.index) is pandas.RangeIndex
            found = self._table(frame) if is_row and by_number and type(indexer) in kinds else None
            if found is None:
                return before(indexer, key)
            self.num_read += 1
            names, row = found
            return _Row(names, row(key), lambda: before(indexer, key))

        return [(owner, "__getitem__", read)]

    def _table(self, frame: Any) -> _Table | None:
        """None: its rows hold something else than numbers and plain objects."""
        if self._tables.get(id(frame), (None, None))[0] is not frame:
            is_plain = all(
                str(each) == "str" or (isinstance(each, np.dtype) and each.kind in "biufO") for each in frame.dtypes
            )
            names = {name: at for at, name in enumerate(frame.columns)}
            found = None
            if is_plain and len(names) == frame.shape[1] and frame.memory_usage().sum() <= _MOST_BYTES:
                rows = frame.to_numpy()  # of the type that a row has
                columns = [frame[name].to_numpy() for name in names]
                are_numbers = rows.dtype.kind in "biuf"
                found = names, rows.__getitem__ if are_numbers else lambda at: [each[at] for each in columns]
            self._tables[id(frame)] = frame, found
        return self._tables[id(frame)][1]


class _Row:
    """Stands for a Series; whatever it does not have is the Series' own."""

    def __init__(self, names: Mapping[Any, int], values: Any, real: Callable[[], Any]) -> None:
        self._names, self._values, self._real = names, values, real

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list) and all(name in self._names for name in key):
            return self._part(key, lambda: self._real()[key])
        place = self._names.get(key) if isinstance(key, str) else None
        return self._real()[key] if place is None else self._values[place]

    def __getattr__(self, name: str) -> Any:
        is_column = name in self._names and not hasattr(sys.modules["pandas"].Series, name)
        return self[name] if is_column else getattr(self._real(), name)

    def _part(self, names: Sequence[Any], real: Callable[[], Any]) -> "_Row":
        at = [self._names[name] for name in names]
        is_array = isinstance(self._values, np.ndarray)
        values = self._values[at] if is_array else [self._values[each] for each in at]
        return _Row({name: at for at, name in enumerate(names)}, values, real)

    def drop(self, labels: Any, **others: Any) -> Any:
        gone = [labels] if isinstance(labels, str) else labels
        if others or not isinstance(gone, list):
            return self._real().drop(labels, **others)
        return self._part([name for name in self._names if name not in gone], lambda: self._real().drop(labels))

    @property
    def values(self) -> Any:
        return self._values.copy() if isinstance(self._values, np.ndarray) else np.array(self._values, object)

    def astype(self, dtype: Any) -> "_Row":
        return _Row(self._names, self.values.astype(dtype), lambda: self._real().astype(dtype))

    def to_numpy(self, dtype: Any = None) -> Any:
        return self.values if dtype is None else self.values.astype(dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.to_numpy(dtype)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Any:
        return iter(self.values)


class Tokens(_Keeping):
    """What a tokenizer of transformers made of a text, kept by its arguments."""

    def replacements(self) -> list[Replacement]:
        owner: Any = getattr(sys.modules.get("transformers"), "PreTrainedTokenizerBase", None)
        names = [name for name in ("__call__", "encode") if owner is not None]
        return [(owner, name, self._keeping(name, vars(owner)[name])) for name in names]

    def _keeping(self, name: str, before: Callable[..., Any]) -> Callable[..., Any]:
        def encode(tokenizer: Any, *given: Any, **named: Any) -> Any:
            key = pickle.dumps((id(tokenizer), name, given, named))
            if key in self.kept:
                self.num_read += 1
            else:
                self.kept[key] = before(tokenizer, *given, **named)
            return _copied(self.kept[key])

        return encode


def _copied(value: Any) -> Any:
    """That whoever gets it may change."""
    if isinstance(value, list):
        return [_copied(each) for each in value] if value and isinstance(value[0], list) else value[:]
    if hasattr(value, "data") and hasattr(value, "items"):  # a BatchEncoding
        made = copy(value)
        made.data = {name: _copied(each) for name, each in value.items()}
        return made
    return value.clone() if hasattr(value, "clone") else copy(value)


def _num_bytes(value: Any) -> int:
    if hasattr(value, "items"):
        return sum(_num_bytes(each) for each in value.values())
    if isinstance(value, list):
        return sum(_num_bytes(each) if isinstance(each, list) else 4 for each in value)
    return int(getattr(value, "nbytes", 0))


class Images(_Keeping):
    """Decoded RGB images, kept by path. Pillow copies one before it writes to it."""

    def replacements(self) -> list[Replacement]:
        pillow: Any = sys.modules.get("PIL.Image")
        return [] if pillow is None else [(pillow, "open", partial(self._open, pillow, pillow.open))]

    def _open(self, pillow: Any, before: Callable[..., Any], source: Any, *given: Any, **named: Any) -> Any:
        key = _key_of(source)
        if (pixels := self.kept.get(key)) is not None:
            self.num_read += 1
            return pillow.frombuffer("RGB", pixels.shape[1::-1], pixels, "raw", "RGB", 0, 1)
        image = before(source, *given, **named)
        if key is not None and image.mode == "RGB":
            self.kept[key] = np.array(image)
        return image


class Opens:
    """Counts what Pillow opens."""

    num = 0

    def replacements(self) -> list[Replacement]:
        pillow: Any = sys.modules.get("PIL.Image")
        return [] if pillow is None else [(pillow, "open", partial(self._open, pillow.open))]

    def _open(self, before: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.num += 1
        return before(*given, **named)


def _key_of(source: Any) -> Any:
    """None: nothing tells that it is the same image when it comes again, as of a member of an archive."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source), 0
    return (source.name, source.tell()) if isinstance(getattr(source, "raw", None), io.FileIO) else None


ROWS_CODE = """\
# in __init__ of the dataset, once: all rows, of the type that df.iloc[index] has
self.rows, self.at = df.to_numpy(), {name: at for at, name in enumerate(df.columns)}
# in __getitem__, in place of row = df.iloc[index], row["x"] and row[names].to_numpy()
row = self.rows[index]
x, numbers = row[self.at["x"]], row[[self.at[name] for name in names]]"""

TOKENS_CODE = """\
# in __init__ of the dataset, once
self.encoded = [tokenizer(text) for text in texts]  # with the arguments that yours has
# in __getitem__, in place of tokenizer(texts[index])
encoded = self.encoded[index]"""
