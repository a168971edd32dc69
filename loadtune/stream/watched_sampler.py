"""A loader's sampler, watched for what makes it unfit to be asked further ahead of the loop."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from types import FrameType
from typing import Any

import torch

from loadtune.stream.unchanged import ATOMS, DATA, Unchanged, names_read
from loadtune.stream.worker_rows import read_states, same_states, write_states

_WATCHED = 8
"""First batches of an epoch whose draws are looked at."""
_MOST_PARTS = 16


class WatchedSampler:
    """Gives the index batches of a loader's own sampler, and looks at how it makes the first of them. It may be asked
    further ahead of the loop unless it draws random numbers, changes attributes or reads attributes for each batch.
    """

    def __init__(self, loader: Any, is_known: bool = False, reason: str | None = None) -> None:
        """``is_known``, ``reason``: as an earlier epoch left them."""
        self._sampler = loader._index_sampler
        self._parts = list(_sampler_parts(loader))
        generators = (getattr(owner, "generator", None) for owner in (loader, *self._parts))
        self._generators = [each for each in generators if isinstance(each, torch.Generator)]
        self._others = [each for each in self._parts if not type(each).__module__.startswith("torch.utils.data")]
        self._not_its_own = loader.dataset
        self.reason = reason
        """Why it may not be asked ahead, as a clause. None: nothing was seen."""
        self.is_known = is_known or not self._others
        """Whether enough of its batches were looked at, or all of it is torch's."""
        self._length: int | None = None

    def may_ask_ahead(self) -> bool:
        return self.is_known and self.reason is None

    def __len__(self) -> int:
        if self._length is None:  # torch's loop asks for it never, so once, and without a trace
            states, self._length = read_states(), len(self._sampler)
            write_states(states)
        return self._length

    def __iter__(self) -> Iterator[Any]:
        self._number, self._last, self._length = -1, None, None
        # Torch's own begins here, and not with the first index. It is asked again after an exception, as torch does.
        return map(partial(self._draw, iter(self._sampler)), repeat(None))

    def _draw(self, indices: Iterator[Any], _: None) -> Any:
        self._number += 1
        if self._number > _WATCHED or self.reason is not None or (self.is_known and self._others):
            self.is_known = True
            return next(indices)
        states, kept = self._states(), Unchanged(*self._others, without=self._not_its_own)
        names = set[str]().union(*map(_data_names, self._others if self._number == 1 else ()))
        with _reading(names) as read:
            drawn = next(indices)
        if drawn is self._last and not isinstance(drawn, ATOMS):
            read.append("the same list")
        if self._number:
            self.reason = self._seen(states, kept, read)
        self._last = drawn
        return drawn

    def _seen(self, states: tuple[list[bytes], Any], kept: "Unchanged", read: list[str]) -> str | None:
        own, after = self._states()
        name = type((self._others or self._parts)[-1]).__name__
        if own != states[0] or not same_states(states[1], after):
            return f"its sampler ({name}) draws random numbers for each batch"
        if kept.changed() is not None:
            return f"its sampler ({name}) changes its attributes with each batch"
        if read:
            return f"its sampler ({name}) uses {read[0]}, which the loop may change, for each batch"
        return None

    def _states(self) -> tuple[list[bytes], Any]:
        return [each.get_state().numpy().tobytes() for each in self._generators], read_states()


def _sampler_parts(loader: Any) -> Iterator[Any]:
    """A loader's samplers, and those that they were made from."""
    waiting, seen = [loader.batch_sampler, loader.sampler], list[Any]()
    while waiting:
        each = waiting.pop(0)
        if each is None or any(each is other for other in seen) or len(seen) > _MOST_PARTS:
            continue
        seen.append(each)
        yield each
        waiting += [getattr(each, name, None) for name in ("batch_sampler", "sampler")]


def _data_names(sampler: Any) -> set[str]:
    """Of its attributes that are no methods, its classes' own included."""
    owners = [getattr(sampler, "__dict__", {}), *(vars(kind) for kind in type(sampler).__mro__[:-1])]
    found = ((name, type(each)) for owner in owners for name, each in owner.items() if name[:2] != "__")
    return {name for name, kind in found if issubclass(kind, DATA)}


@contextmanager
def _reading(names: set[str]) -> Iterator[list[str]]:
    """Those of these names that code reads as attributes meanwhile; torch's own samplers do not count."""
    read, left = list[str](), iter(range(10_000))

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if "/torch/utils/data/" in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if next(left, None) is None:  # a batch that takes long to make: what was not seen counts as seen
            sys.settrace(None)
            read.extend(names)
            return None
        if event == "opcode" and (name := names_read(frame.f_code, "LOAD_ATTR").get(frame.f_lasti, "")) in names:
            read.append(name)
        return trace

    if not names or sys.gettrace() is not None:  # with a debugger nothing can be seen, and counts as seen
        yield [*names]
        return
    sys.settrace(trace)
    try:
        yield read
    finally:
        sys.settrace(None)
