"""loadtune: finds the batch size, workers, pinning and precision that train the most samples a second here.

The public names load on first use, so that ``import loadtune`` stays cheap: no torch, no optuna, no terminal library.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from loadtune.adopt import answer_text as answer_text
    from loadtune.adopt import apply as apply
    from loadtune.adopt import best_loader_kwargs as best_loader_kwargs
    from loadtune.adopt import best_recipe as best_recipe
    from loadtune.errors import DeviceError as DeviceError
    from loadtune.errors import LoadtuneError as LoadtuneError
    from loadtune.errors import MachineMismatchError as MachineMismatchError
    from loadtune.errors import MachineMismatchWarning as MachineMismatchWarning
    from loadtune.errors import NothingFitsError as NothingFitsError
    from loadtune.errors import OutOfTimeError as OutOfTimeError
    from loadtune.errors import ResultError as ResultError
    from loadtune.errors import TrainingError as TrainingError
    from loadtune.errors import UsageError as UsageError
    from loadtune.errors import WorkloadError as WorkloadError
    from loadtune.footprint.trace import trace_memory as trace_memory
    from loadtune.inflight.account import stats as stats
    from loadtune.inflight.hook import install as install
    from loadtune.inflight.loader import DataLoader as DataLoader
    from loadtune.objects import Job as Job
    from loadtune.records.memory import MemoryCeiling as MemoryCeiling
    from loadtune.records.result import TuningResult as TuningResult
    from loadtune.report.compare import compare as compare
    from loadtune.report.forms import export as export
    from loadtune.report.store import load_result as load_result
    from loadtune.tuner import find_batch_size as find_batch_size
    from loadtune.tuner import tune as tune
    from loadtune.workload.adapters import from_lightning as from_lightning
    from loadtune.workload.adapters import from_trainer as from_trainer
    from loadtune.workload.adapters import lightning_loss as lightning_loss

_HOMES = {
    "adopt": "best_loader_kwargs best_recipe",
    "errors": "DeviceError LoadtuneError MachineMismatchError MachineMismatchWarning NothingFitsError OutOfTimeError"
    " ResultError TrainingError UsageError WorkloadError",
    "footprint.trace": "trace_memory",
    "inflight.account": "stats",
    "inflight.hook": "install",
    "inflight.loader": "DataLoader",
    "objects": "Job",
    "records.memory": "MemoryCeiling",
    "records.result": "TuningResult",
    "report.compare": "compare",
    "report.forms": "export",
    "report.store": "load_result",
    "tuner": "find_batch_size tune",
    "workload.adapters": "from_lightning from_trainer lightning_loss",
}
_HOME = {name: f"loadtune.{module}" for module, names in _HOMES.items() for name in names.split()}
"""Where a public name lives."""
__all__ = ["__version__", *_HOME]
_HOME |= dict.fromkeys(("answer_text", "apply"), "loadtune.adopt")  # for the methods of a result


if not TYPE_CHECKING:  # a type checker would take it for a promise that every name exists

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
