"""What a run found about a loader, for the next run of the same script: files in the folder that $LOADTUNE_CACHE names.

Each is the account of one loader, as in an inflight.json. Its name stands for the script, the loader, cores and ranks.
What cannot be read counts as not there, and what cannot be written is not kept. No torch.
"""

import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from loadtune.host.cpu import read_cpu_name, read_num_usable_cores
from loadtune.inflight import account as told
from loadtune.inflight.account import Account
from loadtune.inflight.placement import num_local_ranks, num_ranks
from loadtune.units import counted, number_text, percent_text

CACHE_VARIABLE = "LOADTUNE_CACHE"


def file_of(account: Account, launchers: str | None, *facts: object) -> Path | None:
    """Where the account of this loader is kept. ``facts``: what else makes it the same. None: no folder is named.

    A rank that is started again begins with what its node had found, in the folder of its launcher.
    """
    folder = os.environ.get(CACHE_VARIABLE)
    if folder is None and launchers is not None and num_ranks() > 1:
        folder = f"{launchers}/found"
    script = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0])
    same = (script, account.name, account.own_workers, read_num_usable_cores(), num_local_ranks(), *facts)
    return Path(folder) / f"{hashlib.sha256(repr(same).encode()).hexdigest()[:16]}.json" if folder else None


def read(path: Path, account: Account) -> Account | None:
    """What an earlier run found about it. None: nothing that can be used."""
    with suppress(OSError, ValueError, TypeError):
        (found,) = told.read(path)
        measured = (found.load_s, found.cpu_s, found.first_samples_per_s, found.num_workers)
        are_numbers = all(isinstance(each, int | float) and each > 0 for each in measured)
        sizes = (found.num_workers, found.batch_bytes, found.batch_tensors)
        same = (found.name, found.own_workers) == (account.name, account.own_workers)
        return found if same and are_numbers and all(isinstance(each, int) for each in sizes) else None
    return None


def write(path: Path, account: Account) -> None:
    machine = f"{read_cpu_name() or 'CPU'}, {counted(read_num_usable_cores(), 'core')}"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        told.write([account], path.parent, path.name, machine=machine, ranks=num_local_ranks())


def rows(folder: Path) -> list[tuple[str, ...]]:
    """One for each loader that is kept in a folder, as `COLUMNS` say; what cannot be read is left out."""
    found = []
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError, TypeError, KeyError, ZeroDivisionError):
            record, (each,) = json.loads(path.read_text()), told.read(path)
            rate, load_s = each.samples_per_s or 0.0, each.load_s or 0.0
            gain = rate / (each.first_samples_per_s or rate)
            workers = f"{each.own_workers} → {each.num_workers}"
            loading = f"{1000 * load_s:.0f} ms, {percent_text((each.cpu_s or 0.0) / load_s)} CPU"
            name, machine, ranks = each.name, str(record["machine"]), str(record["ranks"])
            found.append((name, machine, ranks, workers, f"{number_text(rate)} ({gain:.1f}×)", loading))
    return sorted(found)


COLUMNS = ("loader", "machine", "ranks on it", "workers", "samples/s of a rank", "one worker loads a batch in")
