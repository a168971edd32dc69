"""Whether other workers read what the user's settings read: found out before anything is switched.

Three things can go wrong without an error. Workers share the offset of an open file. They have a copy of what the loop
changes in the dataset. A sampler is asked further ahead of the loop, although the two act on each other.
"""

import fcntl
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from loadtune.stream import torch_private as private
from loadtune.stream.unchanged import Unchanged, shared_handle
from loadtune.stream.watched_sampler import WatchedSampler

_YOURSELF = "if your training allows that, set num_workers yourself"


class Trust:
    """Of one iterator. What its questions answer is a reason against other workers; None: none is known."""

    def __init__(self, view: Any, sampler: WatchedSampler) -> None:
        self.view, self.sampler, self._method = view, sampler, private.start_method(view.multiprocessing_context)
        self._roots = view.dataset, view.collate_fn
        self.in_process = view.num_workers == 0
        self._unchanged = Unchanged(*self._roots)
        self._shares_files = self._method == "fork" and view.num_workers <= 1
        self._offsets = _read_offsets() if self._shares_files else {}

    def changed(self) -> str | None:
        """Whether the dataset is another one than its copies in workers."""
        what = self._unchanged.changed()
        return what and f"the loop, or reading it, changes the dataset ({what}), and workers have a copy; {_YOURSELF}"

    def reason_against(self) -> str | None:
        """What is known without starting a worker."""
        if self.in_process and self.sampler.reason is not None:
            return f"{self.sampler.reason}; workers ask it ahead of the loop, so it may give other batches; {_YOURSELF}"
        if (changed := self.changed()) is not None:
            return changed
        if self._shares_files:
            moved = (key[0] for key, at in _read_offsets().items() if self._offsets.get(key, at) != at)
            what = next((f"an open file ({path})" for path in moved), None) or shared_handle(*self._roots)
            if what is not None:
                return f"the dataset reads through {what}, which workers would share; open it in each worker"
        if not self.in_process or self._method == "fork":
            return None
        if not hasattr(sys.modules["__main__"], "__file__") and "__main__" in (
            getattr(each, "__module__", None) for each in self._roots
        ):
            return f"a worker started by {self._method} cannot import what a notebook defines; put it in a module"
        if not _main_can_be_imported():
            return 'the script has no `if __name__ == "__main__":`, so workers would run it again; add it'
        return None


def _main_can_be_imported() -> bool:
    """Whether workers that are spawned can import the script without running it again."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is None or getattr(main, "__spec__", None) is not None:
        return True  # ``python -m``: imported under its name; or no script
    with suppress(OSError):
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        return "__name__" in text and "__main__" in text
    return False


def _read_offsets() -> dict[tuple[str, int], int]:
    """Of the regular files that this process has open for reading. A forked worker that reads one moves it."""
    offsets = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            number, path = int(name), os.readlink(f"/proc/self/fd/{name}")
            readable = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
            is_file = path.startswith("/") and stat.S_ISREG(os.fstat(number).st_mode)
            if readable and is_file and not path.startswith(("/memfd:", "/dev/shm/", "/proc/")):
                offsets[path, number] = os.lseek(number, 0, os.SEEK_CUR)
    return offsets


def same_batch(one: Any, other: Any, *, values: bool) -> bool:
    """Of other workers and of the training process. ``values``: not the structure alone."""
    (leaves, spec), (others, other_spec) = tree_flatten(one), tree_flatten(other)
    return spec == other_spec and all(_same_leaf(a, b, values) for a, b in zip(leaves, others, strict=True))


def _same_leaf(one: Any, other: Any, values: bool) -> bool:
    if type(one) is not type(other) or getattr(one, "dtype", None) != getattr(other, "dtype", None):
        return False
    if not values:
        return True
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())  # NaN
    same = one == other
    return bool(same.all()) if hasattr(same, "all") else bool(same)
