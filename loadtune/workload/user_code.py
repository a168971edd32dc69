"""An exception out of the user's code, as text for its author: our own frames cut out, the sample's index found again.

Works on live exceptions and on the text that a DataLoader worker sends instead of one. Needs no torch.
"""

import multiprocessing
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

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

_INDEX_NOTE = "while reading sample index "
_CAUSE_NOTE = "loadtune: "
_NOTES = (_INDEX_NOTE, _CAUSE_NOTE)
_WORKER_ERROR = re.compile(r"^Caught (\w+) in .*?\.\nOriginal (Traceback .*)", re.DOTALL)
_FRAME = re.compile(r'^  File "(.+?)", line \d+')


def note_index(error: BaseException, index: object) -> None:
    """Write the sample's index onto the exception; as a note it survives the way out of a DataLoader worker."""
    error.add_note(f"{_INDEX_NOTE}{index}")


def sample_index(error: BaseException) -> int | None:
    """Index of the sample that was being read, as `note_index` left it. None: unknown, or no sample was."""
    found = re.search(rf"^{_INDEX_NOTE}(\d+)\s*$", _with_notes(error), re.MULTILINE)
    return int(found.group(1)) if found else None


def call_named(sentence: str, function: Callable[..., T], *given: Any) -> T:
    """Call this part of the user's code. What it raises is reported in this sentence, by all phases.

    ``sentence``: ``The loss function raised {}``, with ``{}`` for the error, and what follows from it.
    """
    try:
        return function(*given)
    except Exception as error:
        note_cause(error, sentence)
        raise


def note_cause(error: BaseException, sentence: str) -> None:
    """Write onto the exception which part of the user's code raised it. Survives as `note_index`'s does."""
    error.add_note(f"{_CAUSE_NOTE}{sentence}")


def cause(error: BaseException) -> str | None:
    """The sentence of the innermost part of the user's code that raised it, with the error. None: none is known."""
    found = re.search(rf"^{_CAUSE_NOTE}(.+)$", _with_notes(error), re.MULTILINE)
    if found:
        return found.group(1).replace("{}", last_line(error))
    index = sample_index(error)
    return None if index is None else f"dataset[{index}] raised {last_line(error)}"


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
        if not (is_plumbing or line.startswith(_NOTES)):
            kept.append(line)
    return "\n".join([*kept, ""]) if any(map(_FRAME.match, kept)) else None


def last_line(error: BaseException) -> str:
    """``ValueError: what it said``, on one line; for a worker's error the one that was raised in the worker."""
    worker = _WORKER_ERROR.match(_text_of(error))
    if worker:
        raised = [line for line in worker.group(2).splitlines() if re.match(r"^[\w.]+(:|$)", line)]
        named = [line for line in raised if line.split(":")[0].rpartition(".")[2] == worker.group(1)]
        return (named or raised or [worker.group(1)])[-1]
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first.rstrip('.')}" if first else type(error).__name__


def all_lines(error: BaseException) -> str:
    """``RuntimeError: all that it said``, on one line: for errors of libraries that put the cause last."""
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _with_notes(error: BaseException) -> str:
    return "\n".join([*getattr(error, "__notes__", ()), str(error)])


def _text_of(error: BaseException) -> str:
    # A KeyError shows the repr of its argument; the worker's text is the argument itself.
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
