"""loadtune: finds the batch size, workers, pinning and precision that train the most samples a second here.

The public names load on first use, so that ``import loadtune`` stays cheap: no torch, no optuna, no terminal library.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from loadtune.adopt import best_loader_kwargs, best_recipe
    from loadtune.batch_size import find_batch_size
    from loadtune.checking import check_baseline
    from loadtune.errors import (
        DeviceError,
        LoadtuneError,
        MachineMismatchError,
        MachineMismatchWarning,
        NothingFitsError,
        OutOfTimeError,
        ResultError,
        TrainingError,
        UsageError,
        WorkloadError,
    )
    from loadtune.footprint.trace import trace_memory
    from loadtune.inflight.account import stats
    from loadtune.inflight.hook import install
    from loadtune.inflight.iterator import DataLoader
    from loadtune.objects import Job
    from loadtune.records.config import TuneConfig, WorkloadSpec, YourSettings
    from loadtune.records.memory import MemoryCeiling
    from loadtune.records.result import TuningResult
    from loadtune.report.compare import compare
    from loadtune.report.forms import export
    from loadtune.report.store import load_result
    from loadtune.tuner import tune
    from loadtune.workload.adapters import from_lightning, from_trainer, lightning_loss

# fmt: off
__all__ = [
    "DataLoader",
    "DeviceError",
    "Job",
    "LoadtuneError",
    "MachineMismatchError",
    "MachineMismatchWarning",
    "MemoryCeiling",
    "NothingFitsError",
    "OutOfTimeError",
    "ResultError",
    "TrainingError",
    "TuneConfig",
    "TuningResult",
    "UsageError",
    "WorkloadError",
    "WorkloadSpec",
    "YourSettings",
    "__version__",
    "best_loader_kwargs",
    "best_recipe",
    "check_baseline",
    "compare",
    "export",
    "find_batch_size",
    "from_lightning",
    "from_trainer",
    "install",
    "lightning_loss",
    "load_result",
    "stats",
    "trace_memory",
    "tune",
]
# fmt: on

_HOMES = {
    "adopt": ("best_loader_kwargs", "best_recipe"),
    "batch_size": ("find_batch_size",),
    "checking": ("check_baseline",),
    "footprint.trace": ("trace_memory",),
    "inflight.account": ("stats",),
    "inflight.hook": ("install",),
    "inflight.iterator": ("DataLoader",),
    "objects": ("Job",),
    "records.config": ("TuneConfig", "WorkloadSpec", "YourSettings"),
    "records.memory": ("MemoryCeiling",),
    "records.result": ("TuningResult",),
    "report.compare": ("compare",),
    "report.forms": ("export",),
    "report.store": ("load_result",),
    "tuner": ("tune",),
    "workload.adapters": ("from_lightning", "from_trainer", "lightning_loss"),
}
_HOME = {name: f"loadtune.{module}" for module, names in _HOMES.items() for name in names}
"""Where a public name lives; those not listed are errors."""


if not TYPE_CHECKING:  # a type checker would take it for a promise that every name exists

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOME.get(name, "loadtune.errors")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
