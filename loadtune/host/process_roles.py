"""Who is who among the bench's processes: itself, its loader's workers, the rest.

In: a tree of processes, its root first. Out: each with its role. PyTorch names a worker's main thread
``pt_data_worker``, however it was started, and on Linux that is the process's name.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

Role = Literal["main", "worker", "other"]

WORKER_NAME = "pt_data_worker"


def roles(tree: Sequence[Any]) -> list[tuple[Any, Role]]:
    """The root, then the workers in order of their start, as the loader numbers them, then the rest."""
    named = [(process, _name(process)) for process in tree[1:]]
    workers = [process for process, name in named if name == WORKER_NAME]
    others = [process for process, name in named if name != WORKER_NAME]
    return [*_as(tree[:1], "main"), *_as(sorted(workers, key=_start), "worker"), *_as(others, "other")]


def _as(processes: Iterable[Any], role: Role) -> list[tuple[Any, Role]]:
    return [(process, role) for process in processes]


def _name(process: Any) -> str | None:
    """None: it ended, or is not ours to read."""
    import psutil

    try:
        return str(process.name())
    except psutil.Error:
        return None


def _start(process: Any) -> tuple[float, int]:
    """Workers are forked one by one, and several within a tick of the clock: then their ids tell."""
    return process.create_time(), process.pid
