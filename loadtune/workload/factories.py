"""``pkg.mod:factory`` → what the factory returns, or a `WorkloadError` that says what to change. Needs no torch."""

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from loadtune.errors import WorkloadError
from loadtune.workload.user_code import last_line, user_traceback


def is_import_path(name: str) -> bool:
    """True for ``pkg.mod:factory``; names in a registry hold no colon."""
    return ":" in name


def call_factory(path: str, option: str) -> Any:
    """Import the module, call the factory without arguments and hand back what it made."""
    return call(_find_factory(path, option), path, option)


def call(factory: Callable[[], Any], name: str, option: str) -> Any:
    """What this factory makes. Raises WorkloadError where it raises."""
    try:
        return factory()
    except (Exception, SystemExit) as error:  # a script without a main guard parses its arguments and exits
        raise WorkloadError(
            f"{option} {name}: the factory raised {last_line(error)}. It is called without arguments and has to "
            f"return the {option}; call it by itself to see the same error.",
            user_traceback(error),
        ) from error


def unknown_name(option: str, name: str, allowed: Iterable[str], registry: str) -> WorkloadError:
    """The error for a name that a registry does not hold, with the nearest ones it does."""
    names = {candidate.lower(): candidate for candidate in allowed}
    near = [names[match] for match in difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return WorkloadError(
        f"{option} {name!r} is not in {registry}.{hint} Give a name from there, or an import path `pkg.mod:factory`."
    )


def _find_factory(path: str, option: str) -> Callable[[], Any]:
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise WorkloadError(f"{option} {path!r} is not an import path; it reads `pkg.mod:factory`.")
    module = _import(module_name, path, option)
    try:
        factory = getattr(module, attribute)
    except AttributeError:
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        near = difflib.get_close_matches(attribute, public, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise WorkloadError(f"{option} {path}: module {module_name} has no {attribute!r}.{hint}") from None
    if not callable(factory):
        raise WorkloadError(
            f"{option} {path} is a {type(factory).__name__}; it has to be a function or class that is called without "
            f"arguments and returns the {option}."
        )
    return factory  # type: ignore[no-any-return]  # callable() is all that can be known of it


def _import(module_name: str, path: str, option: str) -> Any:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # a script beside the user is importable however Python was started
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise WorkloadError(
                f"{option} {path}: there is no module {error.name!r} in {folder} or among the installed packages. "
                "Run from the folder that holds it, install it, or add its folder to PYTHONPATH."
            ) from None
        raise _import_failed(error, path, option) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(error, path, option) from error


def _import_failed(error: BaseException, path: str, option: str) -> WorkloadError:
    return WorkloadError(
        f"{option} {path}: importing the module raised {last_line(error)}. Mend the module; `python -c 'import "
        f"{path.partition(':')[0]}'` shows the same error.",
        user_traceback(error),
    )
