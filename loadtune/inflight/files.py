"""Accounts as files: for the launcher, for people, and for the next run of the same script. Needs no torch."""

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from loadtune.host.cpu import read_num_usable_cores
from loadtune.inflight.account import Account, accounts
from loadtune.inflight.environment import num_local_ranks, num_ranks, rank

RESULT_FILE = "inflight.json"
CACHE_VARIABLE = "LOADTUNE_CACHE"
_HALF_WRITTEN_S = 60.0
"""Age of a file from which on nobody writes it any more."""


def write(found: Sequence[Account], folder: Path, name: str = RESULT_FILE) -> None:
    """The file is whole or as it was. Raises OSError."""
    record = {"loaders": [asdict(each) for each in found]}
    for old in folder.glob(f".{name}.????????"):  # of a writer that was killed
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > _HALF_WRITTEN_S:
                old.unlink()
    part = folder / f".{name}.{os.urandom(4).hex()}"
    part.write_text(json.dumps(record, indent=1))
    part.replace(folder / name)


def write_own(folder: str | None) -> None:
    """This process's, for the launcher, which may be gone. None: there is no launcher."""
    if folder is not None and accounts():  # else it is a launcher, or the server that forks a rank's workers
        with suppress(OSError):
            name = f"rank-{rank()}" if num_ranks() > 1 else str(os.getpid())  # a rank started again takes its place
            write(accounts(), Path(folder), f"{name}.json")


def read(path: Path) -> list[Account]:
    """Raises ValueError where the file is no such result of this version, OSError where it cannot be read."""
    try:
        return [Account(**each) for each in json.loads(path.read_text())["loaders"]]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no result of loadtune exec, or of another version: {error}") from None


# For the next run of the same script: a file for each loader, in the folder that $LOADTUNE_CACHE names


def learnt_file(account: Account, launchers: str | None, *facts: object) -> Path | None:
    """Where the account of this loader is kept. ``facts``: what else makes it the same. None: no folder is named.

    ``launchers``: folder of the launcher, for ranks that are started again.
    """
    import hashlib

    folder = os.environ.get(CACHE_VARIABLE)
    if folder is None and launchers is not None and num_ranks() > 1:
        folder = f"{launchers}/found"
    script = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0])
    same = (script, account.name, account.own_workers, read_num_usable_cores(), num_local_ranks(), *facts)
    return Path(folder) / f"{hashlib.sha256(repr(same).encode()).hexdigest()[:16]}.json" if folder else None


def read_learnt(path: Path) -> Account | None:
    """What an earlier run found about a loader. None: nothing that can be used."""
    with suppress(OSError, ValueError, TypeError):
        (found,) = read(path)
        measured = (found.load_s, found.cpu_s, found.num_workers)
        are_numbers = all(isinstance(each, int | float) and each > 0 for each in measured)
        sizes = (found.num_workers, found.batch_bytes, found.batch_tensors)
        return found if are_numbers and all(isinstance(each, int) for each in sizes) else None
    return None


def write_learnt(path: Path, account: Account) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write([account], path.parent, path.name)
