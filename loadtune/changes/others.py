"""Changes of what other libraries than torchvision do while a sample loads: rows of a table, tokens, kept images.

Each object is of one trial. What it keeps is of the samples that stand in for all. Needs no library before it is used.
"""

import io
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from loadtune.changes.way import Replacement

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
