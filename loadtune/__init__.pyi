"""The public names and their modules: for type checkers, and for ``__init__.py``, which reads the lines below."""

from loadtune.api.adopt import TuningResult as TuningResult
from loadtune.api.adopt import best_loader_kwargs as best_loader_kwargs
from loadtune.api.adopt import best_recipe as best_recipe
from loadtune.api.adopt import export as export
from loadtune.api.adopt import load_result as load_result
from loadtune.api.given import Job as Job
from loadtune.api.tune import find_batch_size as find_batch_size
from loadtune.api.tune import tune as tune
from loadtune.api.tune import tune_command as tune_command
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
from loadtune.records.memory import MemoryCeiling as MemoryCeiling

__version__: str
