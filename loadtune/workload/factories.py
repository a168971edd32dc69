"""``pkg.mod:factory`` or ``FILE.py:factory`` → what the factory returns, or a `WorkloadError` that says what to change.

Importing executes the user's code. Needs no torch.
"""

import difflib
import importlib
import operator
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from loadtune.errors import WorkloadError
from loadtune.records.config import is_import_path
from loadtune.workload.user_code import last_line, user_traceback


def call_factory(path: str, option: str) -> Any:
    """Import the module, call the factory without arguments, return the result. Raises WorkloadError."""
    return call(find_function(path, option), path, option)


def call(factory: Callable[[], Any], name: str, option: str) -> Any:
    """Call the factory without arguments. Raises WorkloadError if it raises."""
    try:
        return factory()
    except (Exception, SystemExit) as error:  # a script without a main guard parses its arguments and exits
        raise WorkloadError(
            f"The {option} {name} could not be made: the factory raised {last_line(error)}. It is called without "
            f"arguments and has to return the {option}. Call it in Python to see the same error.",
            user_traceback(error),
        ) from error


def unknown_name(option: str, name: str, allowed: Iterable[str], registry: str) -> WorkloadError:
    """The error for a name that a registry does not hold, with the nearest ones it does."""
    if name.endswith(".py"):
        return WorkloadError(
            f"The {option} {name!r} is a file. Add the name of a function or class in it: {name}:NAME."
        )
    return WorkloadError(
        f"The {option} {name!r} is not in {registry}.{_hint(name, allowed)} Give a name from there, or the import path "
        f"of a class or function of yours that returns the {option}: `FILE.py:name` or `pkg.mod:name`."
    )


def _hint(name: str, allowed: Iterable[str]) -> str:
    names = {candidate.lower(): candidate for candidate in allowed}
    near = [names[match] for match in difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)]
    return f" Did you mean {' or '.join(near)}?" if near else ""


def module_of(path: str) -> str:
    """Name of the module that an import path names: ``job`` of ``code/job.py:fn``."""
    name = path.rpartition(":")[0]
    return Path(name).stem if name.endswith(".py") else name


def find_function(path: str, option: str) -> Callable[..., Any]:
    """The function or class that an import path names. Raises WorkloadError."""
    if not is_import_path(path):
        raise WorkloadError(
            f"The {option} {path!r} is not an import path. Write `pkg.mod:factory` or `FILE.py:factory`: a module, a "
            "colon, and a class or function in it."
        )
    name, _, attribute = path.rpartition(":")
    module = _import_file(name, path, option) if name.endswith(".py") else _import(name, path, option)
    try:
        factory = operator.attrgetter(attribute)(module)
    except AttributeError:
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise WorkloadError(
            f"The {option} {path} was not found: the module {module_of(path)} has no {attribute!r}."
            f"{_hint(attribute, public)}"
        ) from None
    if not callable(factory):
        raise WorkloadError(f"The {option} {path} is a {type(factory).__name__}. It has to be a function or class.")
    return factory  # type: ignore[no-any-return]  # callable() is all that can be known of it


def _import_file(name: str, path: str, option: str) -> Any:
    """The module of this file, by its name: workers that are spawned import it by that name, too."""
    file = Path(os.path.abspath(Path(name).expanduser()))
    if not file.is_file():
        raise WorkloadError(f"The {option} {path} was not found: there is no file {file}. Correct the path.")
    if not file.stem.isidentifier():
        raise WorkloadError(
            f"The {option} {path} cannot be imported: {file.stem!r} is not a valid module name. Rename the file, for "
            "example to my_job.py."
        )
    module = _import(file.stem, path, option, first=str(file.parent))
    found = getattr(module, "__file__", None)
    if found is None or not (os.path.exists(found) and os.path.samefile(found, file)):
        raise WorkloadError(
            f"The {option} {path} cannot be imported: another module is called {file.stem!r}, "
            f"{found or 'without a file'}. Rename the file."
        )
    return module


def _import(module_name: str, path: str, option: str, *, first: str | None = None) -> Any:
    """``first``: the folder that comes before all others in ``sys.path`` from now on."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # a script beside the user is importable however Python was started
    if first is not None:
        sys.path[:] = [first, *(other for other in sys.path if other != first)]
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise WorkloadError(
                f"The {option} {path} was not found: there is no module {error.name!r} in {folder} or among "
                "the installed packages. Run loadtune in the folder that holds it, install it, or add it to PYTHONPATH."
            ) from None
        raise _import_failed(error, path, option) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(error, path, option) from error


def _import_failed(error: BaseException, path: str, option: str) -> WorkloadError:
    if isinstance(error, SystemExit):  # argparse has said why in the log, not here
        return WorkloadError(
            f"The {option} {path} could not be imported: {last_line(error)}. Its module is imported without arguments "
            "on the command line. Put what belongs to a script, such as parse_args() and the training, under `if "
            '__name__ == "__main__":`.',
            user_traceback(error),
        )
    return WorkloadError(
        f"The {option} {path} could not be imported: {last_line(error)}. Correct the module: "
        f"`python -c 'import {module_of(path)}'` shows the same error.",
        user_traceback(error),
    )
