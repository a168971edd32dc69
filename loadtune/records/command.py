"""The command line of a training script, as typed: where the script stands in it."""

from collections.abc import Sequence
from pathlib import PurePath

_LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "accelerate.commands.launch",
)
"""Programs and modules that start a script or, after ``-m``, a module."""


def script_at(command: Sequence[str]) -> int:
    """Index of the script: a ``.py`` file, or the module after ``-m``. 0, the program's, where there is neither."""
    can_run_modules = False
    for at, word in enumerate(command):
        name = PurePath(word).name
        is_module = can_run_modules and command[at - 1] == "-m" and name not in _LAUNCHERS
        if word.endswith(".py") or is_module:
            return at
        can_run_modules |= name.startswith("python") or name in _LAUNCHERS
    return 0


def script_name(command: Sequence[str]) -> str:
    """``train.py``, ``package.train`` or the program's name."""
    return PurePath(command[script_at(command)]).name
