"""The command line of a training script, as typed: where the script stands in it; whether it starts several ranks."""

import re
from collections.abc import Sequence
from pathlib import PurePath

_TORCHRUN = ("--nproc-per-node", "--nnodes")
_MPI = ("-n", "-np", "--np")
_LAUNCHERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), _TORCHRUN),
    **dict.fromkeys(("accelerate", "accelerate.commands.launch"), ("--num-processes", "--num-machines", "--multi-gpu")),
    "srun": ("-n", "--ntasks", "--ntasks-per-node", "-N", "--nodes"),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun"), _MPI),
    "deepspeed": ("--num-gpus", "--num-nodes"),
}
"""Programs and modules that start ranks, and their options that say how many: with dashes, where either is allowed."""
_ALL_BY_DEFAULT = ("mpirun", "mpiexec", "orterun", "deepspeed")
"""Start a rank on each slot or GPU where no option says how many."""


def script_at(command: Sequence[str]) -> int:
    """Index of the script: a ``.py`` file, or the module after ``-m``. 0, the program's, where there is neither."""
    can_run_modules = False
    for at, word in enumerate(command):
        name = PurePath(word).name
        is_module = can_run_modules and at > 0 and command[at - 1] == "-m" and name not in _LAUNCHERS
        if word.endswith(".py") or is_module:
            return at
        can_run_modules |= name.startswith("python") or name in _LAUNCHERS
    return 0


def script_name(command: Sequence[str]) -> str:
    """``train.py``, ``package.train`` or the program's name."""
    return PurePath(command[script_at(command)]).name


def several_ranks(command: Sequence[str]) -> str | None:
    """The words that start several ranks. None: it starts one, as far as its launcher says."""
    launcher, is_counted = "", True
    for at, word in enumerate(command[: script_at(command) or len(command)]):
        if PurePath(word).name in _LAUNCHERS:
            launcher = PurePath(word).name
            is_counted = launcher not in _ALL_BY_DEFAULT
        flag, equals, value = word.partition("=")
        if glued := re.fullmatch(r"(-\w)(\d+)", flag):
            flag, value = glued.groups()
        option = flag.replace("_", "-")
        if option not in _LAUNCHERS.get(launcher, ()):
            continue
        if option == "--multi-gpu":
            return word
        is_apart = not (equals or glued)
        value = "".join(command[at + 1 : at + 2]) if is_apart else value
        if value not in ("1", "1:1"):
            return f"{word} {value}" if is_apart else word
        is_counted = True
    return None if is_counted else launcher
