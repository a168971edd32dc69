"""What a user of `loadtune exec` or `loadtune.install` may choose, and how it reaches the processes of the script."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

EXEC_VARIABLE = "LOADTUNE_EXEC"
"""Set by `loadtune exec` for the script: the options as JSON."""
TEST_VARIABLE = "LOADTUNE_RAISE"
"""Set in tests: an error of the tuner ends the script instead of the tuner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How loaders are tuned in flight."""

    folder: str | None = None
    """Where each process writes its account. None: nothing is written; the process prints it when it ends."""
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
    replay: str | None = None
    """A result whose switches are repeated at the same batches. None: tune."""

    def as_variable(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> "Options | None":
        """Of `loadtune exec`. None: the script runs without it."""
        return cls(**json.loads(os.environ[EXEC_VARIABLE])) if EXEC_VARIABLE in os.environ else None
