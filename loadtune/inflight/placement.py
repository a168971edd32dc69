"""Where a launcher put this process: its rank, the ranks of its machine, and its cores. No torch."""

import os
import re
import socket
from contextlib import suppress

from loadtune.host.cpu import read_num_usable_cores


def rank() -> int:
    """Of this process, as its launcher says. 0: there is no launcher."""
    return _number("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID") or 0


def num_ranks() -> int:
    """Of the job, as its launcher says. 1: there is no launcher."""
    return max(1, _number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS") or 1)


def num_local_ranks(unknown: int = 1) -> int:
    """Processes that train on this machine and share what it has, as the launcher says; ``unknown`` where none does."""
    found = _number("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    if found is None and (tasks := os.environ.get("SLURM_STEP_TASKS_PER_NODE")):
        counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks)  # 2(x3),1: two tasks on three nodes, one on the next
        each = [int(count) for count, times in counts for _ in range(int(times or 1))]
        found = each[min(len(each) - 1, _number("SLURM_NODEID") or 0)] if each else None
    return max(1, unknown if found is None else found)


def equal_share(unknown: int = 1) -> float:
    """Usable cores of one rank. Where a launcher bound each rank to some, those of the launcher are shared out."""
    usable, ranks_here = float(read_num_usable_cores()), num_local_ranks(unknown)
    with suppress(OSError):
        of_launcher = len(os.sched_getaffinity(os.getppid()))
        if of_launcher > len(os.sched_getaffinity(0)):
            return min(usable, of_launcher / ranks_here)
    return usable / ranks_here


def own_cores() -> tuple[str, float]:
    """A name for the machine and the cores of this process, and how many of them may be used."""
    cores = sorted(os.sched_getaffinity(0))
    return f"{socket.gethostname()} {','.join(map(str, cores))}", float(read_num_usable_cores())


def _number(*names: str) -> int | None:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal()), None)
