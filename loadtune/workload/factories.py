"""``pkg.mod:factory`` or ``FILE.py:factory`` → what the factory returns, or a `WorkloadError` that says what to change.

Importing executes the user's code. Needs no torch.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from loadtune.errors import WorkloadError
from loadtune.workload.user_code import last_line, user_traceback


def is_import_path(name: str) -> bool:
    """True for ``pkg.mod:factory``: torchvision's names have no colon, and timm's begin with ``timm:``."""
    return ":" in name and not name.startswith("timm:")


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
    names = {candidate.lower(): candidate for candidate in allowed}
    near = [names[match] for match in difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return WorkloadError(
        f"The {option} {name!r} is not in {registry}.{hint} Give a name from there, or the import path of a class or "
        f"function of yours that returns the {option}: `pkg.mod:factory`."
    )


def module_of(path: str) -> str:
    """Name of the module that an import path names: ``job`` of ``code/job.py:fn``."""
    name = path.rpartition(":")[0]
    return Path(name).stem if name.endswith(".py") else name


def find_function(path: str, option: str) -> Callable[..., Any]:
    """The function or class that an import path names. Raises WorkloadError."""
    name, _, attribute = path.rpartition(":")
    if not name or not attribute:
        raise WorkloadError(
            f"The {option} {path!r} is not an import path. Write `pkg.mod:factory` or `FILE.py:factory`: a module, a "
            "colon, and a class or function in it."
        )
    module = _import(_named_file(name, path, option) if name.endswith(".py") else name, path, option)
    try:
        factory = getattr(module, attribute)
    except AttributeError:
        module_name = module_of(path)
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        near = difflib.get_close_matches(attribute, public, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise WorkloadError(
            f"The {option} {path} was not found: the module {module_name} has no {attribute!r}.{hint}"
        ) from None
    if not callable(factory):
        raise WorkloadError(f"The {option} {path} is a {type(factory).__name__}. It has to be a function or class.")
    return factory  # type: ignore[no-any-return]  # callable() is all that can be known of it


def _named_file(name: str, path: str, option: str) -> str:
    """The module's name, with its folder where imports are looked for: workers that are spawned import it, too."""
    file = Path(name).expanduser().absolute()
    if not file.is_file():
        raise WorkloadError(f"The {option} {path} was not found: there is no file {file}. Correct the path.")
    if not file.stem.isidentifier():
        raise WorkloadError(f"The {option} {path} cannot be imported: {file.stem!r} is no name of a module. Rename it.")
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) not in (None, str(file)):
        raise WorkloadError(
            f"The {option} {path} cannot be imported: another module is called {file.stem!r}, "
            f"{getattr(known, '__file__', '')}. Rename the file."
        )
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    return file.stem


def _import(module_name: str, path: str, option: str) -> Any:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # a script beside the user is importable however Python was started
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
    return WorkloadError(
        f"The {option} {path} was not found: importing its module raised {last_line(error)}. Correct the module: "
        f"`python -c 'import {module_of(path)}'` shows the same error.",
        user_traceback(error),
    )
