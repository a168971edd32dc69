"""Which GPUs ``CUDA_VISIBLE_DEVICES`` lets a process see, and in which order. Pure.

In: the variable's text and the UUIDs the driver lists. Out: UUIDs in CUDA's order. A module of its own because NVML
knows nothing of the variable: without this, a tuner would measure a GPU that the training will never run on.
"""

import re
from collections.abc import Sequence


def visible_uuids(variable: str | None, installed: Sequence[str]) -> tuple[str, ...]:
    """UUIDs in the order CUDA numbers them; ``variable`` None is "not set": all of them.

    As CUDA reads it: an empty text hides all; an entry it cannot resolve (-1 among them) ends the list; a GPU named
    twice empties it. Entries are indices, UUIDs or prefixes of one. ``MIG-…`` entries are handed on as they are.
    Indices are NVML's, in PCI order: CUDA's too with CUDA_DEVICE_ORDER=PCI_BUS_ID, or where all GPUs are of one model.
    """
    if variable is None:
        return tuple(installed)
    visible: list[str] = []
    for entry in variable.split(","):
        uuid = _resolve(entry.strip(), installed)
        if uuid is None:
            break
        if uuid in visible:
            return ()
        visible.append(uuid)
    return tuple(visible)


def _resolve(entry: str, installed: Sequence[str]) -> str | None:
    if entry.startswith("MIG-"):
        return entry
    if re.fullmatch(r"\+?\d+", entry):
        index = int(entry)
        return installed[index] if index < len(installed) else None
    named = matching(entry, installed) if entry.startswith("GPU-") else []
    return named[0] if len(named) == 1 else None


def matching(prefix: str, uuids: Sequence[str]) -> list[str]:
    """The UUIDs that begin with ``prefix``, whatever its case; one that equals it stands alone."""
    wanted = prefix.lower()
    exact = [uuid for uuid in uuids if uuid.lower() == wanted]
    return exact or [uuid for uuid in uuids if uuid.lower().startswith(wanted)]
