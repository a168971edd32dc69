"""Puts the tuned iterator in the place of torch's, with the options that `loadtune exec` hands to the script. Imports
no torch: under `loadtune exec` it comes before torch.
"""

import atexit
import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, cast

from loadtune.errors import raised_by_handler
from loadtune.host.usable import rank
from loadtune.inflight import words
from loadtune.inflight.account import TEST_VARIABLE, Account, Options, accounts, write_own
from loadtune.stream.shm_cleanup import is_alive

EXEC_VARIABLE = "LOADTUNE_EXEC"
"""Set by `loadtune exec` for the script: the options as JSON."""

INJECTED = Path(__file__).parents[1] / "inject"


def hooked(environment: Mapping[str, str], variable: str, given: object) -> dict[str, str]:
    """This environment, in which Python processes begin with our `sitecustomize`, and what it is given as JSON."""
    before = environment.get("PYTHONPATH")
    path = f"{INJECTED}{os.pathsep}{before}" if before else str(INJECTED)
    return {**environment, "PYTHONPATH": path, variable: json.dumps(given)}


_options: Options | None = None


def install(
    *, max_workers: int | None = None, freeze: tuple[str, ...] = (), exact: bool = False, dry_run: bool = False
) -> None:
    """Tune every `torch.utils.data.DataLoader` of this process whose iterator begins from now on.

    ``max_workers``: of one loader; None: as many as cores, memory and descriptors allow. ``freeze``: loaders that are
    left alone, by the class name of their dataset or as ``FILE:LINE``. ``exact``: leave loaders alone whose samples are
    random. ``dry_run``: measure and advise only. Under `loadtune exec` its options count, and nothing changes.
    """
    import torch.utils.data.dataloader as module

    _begin(Options(max_workers=max_workers, freeze=freeze, exact=exact, dry_run=dry_run))
    patched, base = cast(Any, (module.DataLoader, module._BaseDataLoaderIter))
    real, make = patched._get_iterator, base.__new__

    def _get_iterator(self: Any) -> Any:
        made = iterator_of(self, sys._getframe(1))
        return real(self) if made is None else made

    def __new__(cls: Any, *args: Any, **named: Any) -> Any:  # notes a library's own loaders; toolkits patch `__init__`
        for loader in (*args, *named.values())[:1]:
            if not isinstance(loader, patched) and not type(loader).__module__.startswith("loadtune."):
                iterator_of(loader, sys._getframe(1))
        return make(cls) if make is object.__new__ else make(cls, *args, **named)

    if real.__module__ == module.__name__:  # in place: subclasses that call it, and loaders that a library makes anew
        patched._get_iterator = _get_iterator
        base.__new__ = __new__


def _begin(chosen: Options) -> Options:
    """The options of this process: those of `loadtune exec`, or else the first that are chosen."""
    global _options
    if _options is None:
        given = os.environ.get(EXEC_VARIABLE)
        _options = chosen if given is None else Options(**json.loads(given))
        atexit.register(_at_exit, _options)
    return _options


def iterator_of(loader: Any, frame: FrameType | None) -> Any:
    """The tuned iterator. None: torch's own is to be used. An error of ours is said once, and raised in tests."""
    try:
        if is_worker():
            return None
        from loadtune.inflight.iterator import tuned_iterator

        return tuned_iterator(loader, frame, _begin(Options()))
    except Exception as error:  # what is the user's own torch's iterator raises again
        if os.environ.get(TEST_VARIABLE) or raised_by_handler(error):
            raise
        name, number = type(getattr(loader, "dataset", loader)).__name__, getattr(loader, "num_workers", 0)
        why = f"loadtune failed ({type(error).__name__}: {error})"
        words.leave_alone(Account(name=name, rank=rank(), own_workers=number, num_workers=number), why)
        return None


def is_worker() -> bool:
    """Workers and other daemons load for somebody else. A rank that mp.spawn started is neither."""
    from multiprocessing import current_process

    from torch.utils.data import get_worker_info

    return get_worker_info() is not None or current_process().daemon is True


def _at_exit(options: Options) -> None:
    if is_worker():
        return
    with words.ending():
        write_own(options.folder)
        machine, pid = options.launcher or (None, 0)
        is_orphan = machine == socket.gethostname() and not is_alive(int(pid))
        for line in words.summary(accounts()) if (options.folder is None or is_orphan) and rank() == 0 else ():
            words.print_line(line)
        if is_orphan and options.folder is not None:
            shutil.rmtree(options.folder, ignore_errors=True)
