"""loadtune: finds the batch size, workers, pinning and precision that train the most samples a second here.

The public names load on first use, so that ``import loadtune`` stays cheap: no torch, no optuna, no terminal library.
"""

import importlib

__version__ = "0.3.0"

# A line is "from module import name as name". The loader reads it where the package lies, also in a zip archive.
_STUB = __spec__.loader.get_data(f"{__file__.rpartition('.')[0]}.pyi").decode()
_HOME = {line.split()[-1]: line.split()[1] for line in _STUB.splitlines() if line.startswith("from ")}
"""Where a public name lives."""
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
