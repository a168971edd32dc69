"""Imported by Python's forkserver alone, after numpy: random numbers of that begin anew in each process which it forks,
as where each imports numpy itself.
"""

import os
import sys

_server = os.getpid()


def _reseed() -> None:
    if os.getppid() == _server:
        sys.modules["numpy"].random.seed()


if "numpy" in sys.modules:
    os.register_at_fork(after_in_child=_reseed)
