"""What its environment tells a process: options of `loadtune exec`, its rank in the job, its cores. No torch."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from loadtune.host.usable import read_num_usable_cores

EXEC_VARIABLE = "LOADTUNE_EXEC"
"""Set by `loadtune exec` for the script: the options as JSON."""
TEST_VARIABLE = "LOADTUNE_RAISE"
"""Set in tests: an error of the tuner ends the script instead of the tuner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How loaders are tuned in flight."""

    folder: str | None = None
    """Where each process writes its account. None: nothing is written; the process prints it when it ends."""
    launcher: Sequence[str | int] = ()
    """Machine and process id of `loadtune exec`, which removes the folder. Empty: there is none."""
    max_workers: int | None = None
    """Most workers of one loader. None: cores, memory and descriptors decide."""
    freeze: Sequence[str] = ()
    """Loaders that are left alone: class names of datasets, or ``FILE:LINE``."""
    exact: bool = False
    """Leave loaders alone whose samples are random, since other workers draw other random numbers."""
    dry_run: bool = False
    """Measure and advise; switch nothing."""
    until_tuned: bool = False
    """End the script, exit code 0, once the loaders that train have settled."""
    advice: bool = False
    """Try changes of the code in a process beside the loop."""


INJECTED = Path(__file__).parent / "inject"


def hooked(environment: Mapping[str, str], variable: str, given: object) -> dict[str, str]:
    """This environment, in which Python processes begin with our `sitecustomize`, and what it is given as JSON."""
    before = environment.get("PYTHONPATH")
    path = f"{INJECTED}{os.pathsep}{before}" if before else str(INJECTED)
    return {**environment, "PYTHONPATH": path, variable: json.dumps(given)}


# Where a launcher put it


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
        node = _number("SLURM_NODEID") or 0
        for count, times in re.findall(r"(\d{1,6})(?:\(x(\d{1,6})\))?", tasks):  # 2(x3),1: two on three nodes, then one
            found, node = int(count), node - int(times or 1)
            if node < 0:
                break
    return max(1, unknown if found is None else found)


def equal_share(unknown: int = 1) -> float:
    """Usable cores of one rank. Where a launcher bound each rank to some, those of the launcher are shared out."""
    usable, ranks_here = float(read_num_usable_cores()), num_local_ranks(unknown)
    with suppress(OSError):
        of_launcher = len(os.sched_getaffinity(os.getppid()))
        if of_launcher > len(os.sched_getaffinity(0)):
            return min(usable, of_launcher / ranks_here)
    return usable / ranks_here


def _number(*names: str) -> int | None:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal() and len(value) < 7), None)
