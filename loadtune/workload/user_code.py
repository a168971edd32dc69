"""The user's code: functions and objects found by import path and called, or sent as bytes from the caller's process
(`pack_parts`) to the training process (`unpack_parts`); and its exceptions as text for its author, also those that a
DataLoader worker sends as text.
"""

import difflib
import functools
import importlib
import io
import multiprocessing
import operator
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import nn

from loadtune.errors import WorkloadError
from loadtune.records.config import LiveObjects
from loadtune.units import cut

T = TypeVar("T")

_PACKAGE = str(Path(__file__).resolve().parents[1])
# Plumbing between our call and the user's code, which tells its author nothing.
_PLUMBING = (
    _PACKAGE,
    str(Path(multiprocessing.__file__).parent),
    "torch/utils/data/",
    "torch/nn/modules/module.py",
    "<frozen importlib",
    "importlib/__init__.py",
)

_LIBRARIES = [
    Path(folder).resolve()
    for folder in (*map(sysconfig.get_path, ("stdlib", "platstdlib")), os.path.dirname(torch.__file__), _PACKAGE)
]
_INSTALLED = {"site-packages", "dist-packages"}
_CAUSE_NOTE = "loadtune: "
_WORKER_ERROR = re.compile(r"^Caught (\w+) in .*?\.\nOriginal (Traceback .*)", re.DOTALL)
_FRAME = re.compile(r'^  File "(.+?)", line \d+')


@functools.cache
def is_users_file(filename: str) -> bool:
    """Neither of the standard library nor installed, nor of torch or loadtune. It may be a link, or in a folder that is
    one. Of generated code only what is typed at a prompt has lines to show."""
    if filename.startswith("<"):
        return filename.startswith(("<stdin", "<ipython"))
    return all(
        _INSTALLED.isdisjoint(path.parts) and not any(path.is_relative_to(library) for library in _LIBRARIES)
        for path in (Path(filename), Path(filename).resolve())
    )


def note_index(error: BaseException, index: object) -> None:
    """Write onto the exception which sample was read, where its index is a number."""
    if str(index).isdecimal():
        note_cause(error, f"dataset[{index}] raised {{}}")


def call_named(sentence: str, function: Callable[..., T], *given: Any) -> T:
    """Call this part of the user's code. What it raises is reported in this sentence, by all phases.

    ``sentence``: ``The loss function raised {}``, with ``{}`` for the error, and what follows from it.
    """
    try:
        return function(*given)
    except Exception as error:
        note_cause(error, sentence)
        raise


@contextmanager
def reported(sentence: str, *, traced: bool = True) -> Iterator[None]:
    """What is raised within it becomes a WorkloadError that says this, with ``{}`` for the error.

    ``traced``: with the traceback, which tells the author of the code where. False: it is a library's.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # a script without a main guard parses its arguments and exits
        trace = user_traceback(error) if traced else None
        raise WorkloadError(sentence.replace("{}", last_line(error), 1), trace) from error


def note_cause(error: BaseException, sentence: str) -> None:
    """Write onto the exception which part of the user's code raised it; a note survives the way out of a worker."""
    error.add_note(f"{_CAUSE_NOTE}{sentence}")


def cause(error: BaseException) -> str | None:
    """The sentence of the innermost part of the user's code that raised it, with the error. None: none is known."""
    text = "\n".join([*getattr(error, "__notes__", ()), str(error)])
    noted = re.search(rf"^{_CAUSE_NOTE}(.+)$", text, re.MULTILINE)
    return noted.group(1).replace("{}", last_line(error)) if noted else None


def user_traceback(error: BaseException) -> str | None:
    """The traceback without our frames and the loader's. None: no other code was running."""
    worker = _WORKER_ERROR.match(_text_of(error))
    text = worker.group(2) if worker else "".join(traceback.format_exception(error))
    kept: list[str] = []
    is_plumbing = False
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame:
            is_plumbing = any(part in frame.group(1) for part in _PLUMBING)
        elif not line.startswith("    "):
            is_plumbing = False
        if not (is_plumbing or line.startswith(_CAUSE_NOTE)):
            kept.append(line)
    return cut("\n".join([*kept, ""])) if any(map(_FRAME.match, kept)) else None


def last_line(error: BaseException) -> str:
    """``ValueError: what it said``, on one line; for a worker's error the one that was raised in the worker."""
    worker = _WORKER_ERROR.match(_text_of(error))
    if worker:
        raised = [line for line in worker.group(2).splitlines() if re.match(r"^[\w.]+(:|$)", line)]
        named = [line for line in raised if line.split(":")[0].rpartition(".")[2] == worker.group(1)]
        return cut((named or raised or [worker.group(1)])[-1])
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return cut(f"{type(error).__name__}: {first.rstrip('.')}" if first else type(error).__name__)


def _text_of(error: BaseException) -> str:
    # A KeyError shows the repr of its argument; the worker's text is the argument itself.
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


def torchvision_for(kind: str, name: str) -> Any:
    """torchvision, which a dataset or model is named of. Raises WorkloadError where it cannot be imported."""
    with reported(  # also where it was made for another torch
        f"The {kind} {name} is taken from torchvision, which cannot be imported ({{}}). Run "
        f"`pip install '.[vision]'` in the checkout of loadtune, or write a function that returns the {kind} and "
        f"name it: --{kind} FILE.py:factory.",
        traced=False,
    ):
        return importlib.import_module("torchvision")


def made_by(own: Any, name: str, option: str, kind: type | tuple[type, ...] = ()) -> Any:
    """What this class or function returns without arguments; or the object itself, where it is of this kind or cannot
    be called. Raises WorkloadError."""
    if isinstance(own, kind) or not callable(own):
        return own
    with reported(
        f"The {option} {name} could not be made: the factory raised {{}}. It is called without arguments and has to "
        f"return the {option}. Call it in Python to see the same error."
    ):
        return own()


def unknown_name(option: str, name: str, allowed: Iterable[str], registry: str) -> WorkloadError:
    """The error for a name that a registry does not hold, with the nearest ones it does."""
    if name.endswith(".py"):
        return WorkloadError(
            f"The {option} {name!r} is a file. Add the name of a function or class in it: {name}:NAME."
        )
    names = {candidate.lower(): candidate for candidate in allowed}
    near = [names[match] for match in difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return WorkloadError(
        f"The {option} {name!r} is not in {registry}.{hint} Give a name from there, or the import path "
        f"of a class or function of yours that returns the {option}: `FILE.py:name` or `pkg.mod:name`."
    )


def module_of(path: str) -> str:
    """Name of the module that an import path names: ``job`` of ``code/job.py:fn``."""
    name = path.rpartition(":")[0]
    return Path(name).stem if name.endswith(".py") else name


def find(path: str, option: str) -> Any:
    """What an import path names, of a spec that was checked. Raises WorkloadError."""
    name, _, attribute = path.rpartition(":")
    file = Path(os.path.abspath(Path(name).expanduser())) if name.endswith(".py") else None
    if file is not None and not file.is_file():
        raise WorkloadError(f"The {option} {path} was not found: there is no file {file}. Correct the path.")
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)  # a script beside the user is importable however Python was started
    if file is not None:  # imported by its name: workers that are spawned import it by that name, too
        sys.path[:] = [str(file.parent), *(other for other in sys.path if other != str(file.parent))]
    module = _imported(module_of(path), path, option)
    found = getattr(module, "__file__", None) or ""
    if file is not None and not (os.path.exists(found) and os.path.samefile(found, file)):
        raise WorkloadError(
            f"The {option} {path} cannot be imported: another module is called {file.stem!r}, "
            f"{found or 'without a file'}. Rename the file."
        )
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError:
        public = [name for name, value in vars(module).items() if name[0] != "_" and callable(value)]
        has = ", ".join(difflib.get_close_matches(attribute, public, 12, 0.0)) or "none"
        raise WorkloadError(
            f"No {option} {path}: {found or module_of(path)} has no {attribute!r}; it has {has}."
        ) from None


def _imported(name: str, path: str, option: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        advice = f"Correct the module: `python -c 'import {name}'` shows the same error."
        if isinstance(error, SystemExit):  # argparse has said why in the log, not here
            advice = (
                "Its module is imported without arguments on the command line. Put what belongs to a script, such as "
                'parse_args() and the training, under `if __name__ == "__main__":`.'
            )
        elif isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            advice = f"Run loadtune in the folder that holds it (this is {os.getcwd()}), install it, or set PYTHONPATH."
        raise WorkloadError(
            f"The {option} {path} could not be imported: {last_line(error)}. {advice}", user_traceback(error)
        ) from error


def pack_parts(parts: Mapping[str, Any]) -> LiveObjects:
    """Parts of the caller's `Job` as bytes, by name; what its ``__main__`` defines travels by value. ``input_shape`` of
    one sample: random ones take the dataset's place. Raises WorkloadError for a part that cannot be pickled."""
    try:
        pickled = _pickled(parts)
    except Exception:
        for name, part in parts.items():  # one by one, to tell which
            with reported(
                f"The {name} ({type(part).__name__}) cannot be sent to the training process, because it cannot be "
                "pickled: {}. Pass its import path, `pkg.mod:factory`, or for a model, dataset or loader a function "
                "without arguments that returns it. Otherwise remove references to open files, locks, threads and "
                "connections.",
                traced=False,
            ):
                _pickled(part)
        raise
    # Absolute: '' stands for the folder a script or a prompt was started in.
    return LiveObjects(pickled=pickled, search_path=tuple(os.path.abspath(folder) for folder in sys.path))


def _pickled(value: Any) -> bytes:
    import cloudpickle  # late: a script under exec is never pickled, and its own interpreter may lack it

    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=cloudpickle, pickle_protocol=cloudpickle.DEFAULT_PROTOCOL)
    return buffer.getvalue()


def unpack_parts(objects: LiveObjects, device: torch.device) -> dict[str, Any]:
    """The parts again, on the CPU, importing what they need from where the caller would; a loss with tensors goes to
    the device. Raises WorkloadError."""
    ForkingPickler.reducer_override = _by_value  # type: ignore[method-assign, assignment]
    sys.path[:] = [*objects.search_path, *(folder for folder in sys.path if folder not in objects.search_path)]
    with reported(
        "The job's objects could not be loaded in the training process: {}. The modules that define them have to be "
        "importable there. Install them, add their folder to PYTHONPATH, or pass import paths such as "
        "`pkg.mod:factory`."
    ):
        parts: dict[str, Any] = torch.load(io.BytesIO(objects.pickled), map_location="cpu", weights_only=False)
    if isinstance(parts.get("loss"), nn.Module):
        parts["loss"].to(device)
    return parts


# Neither the training process nor a worker can import what the caller's ``__main__`` defines. So they send one another
# its classes and functions by value: a dataset to spawned workers, a batch that is a named tuple from any worker.


@functools.cache
def _bytes_of(value: Any) -> bytes:
    import cloudpickle

    content: bytes = cloudpickle.dumps(value)
    return content


@functools.cache
def _defined(content: bytes) -> Any:
    import cloudpickle

    ForkingPickler.reducer_override = _by_value  # type: ignore[method-assign, assignment]  # in a spawned worker, too
    return cloudpickle.loads(content)


def _by_value(pickler: ForkingPickler, value: object) -> Any:
    if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
        return _defined, (_bytes_of(value),)
    return NotImplemented
