"""Errors that a user can correct. Every message says what was found, what is allowed, what to do next.

LoadtuneError
├── UsageError
├── DeviceError
├── WorkloadError
│   └── NothingFitsError
├── TrainingError
├── OutOfTimeError
└── ResultError
    └── MachineMismatchError
"""

import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

W = TypeVar("W", bound=str)


class LoadtuneError(Exception):
    """Base of all errors loadtune raises on purpose; the command line prints the message and exits with code 2."""


class UsageError(LoadtuneError):
    """An option or argument has a value that cannot be used."""


class DeviceError(LoadtuneError):
    """The requested device does not exist, or cannot be used."""


class WorkloadError(LoadtuneError):
    """The dataset, the model or the loss is missing, raises, or does not fit the others.

    ``user_traceback``: the traceback of the user's own code, as text. None: the error was not raised in it.
    """

    def __init__(self, message: str, user_traceback: str | None = None) -> None:
        super().__init__(message)
        self.user_traceback = user_traceback


class NothingFitsError(WorkloadError):
    """The free memory is too small even for the smallest batch."""


class TrainingError(LoadtuneError):
    """The training process could not be started, or ends again and again."""


class ScriptEndedError(Exception):
    """The user's script came to its end by itself, while steps of it were asked for. It is started again."""


class OutOfTimeError(LoadtuneError):
    """The time budget ended before the request was done.

    ``phase`` is what the training process was doing, or None where it was not asked any more. ``stuck`` names the
    samples that it was waiting for, in a sentence without a full stop, or is None where it waited for none.
    """

    def __init__(self, message: str, *, phase: str | None = None, stuck: str | None = None) -> None:
        super().__init__(message)
        self.phase, self.stuck = phase, stuck


class ResultError(LoadtuneError):
    """A result file is missing, damaged, or of a newer version."""


class MachineMismatchError(ResultError):
    """The result was measured on another machine, and ``strict=True`` was given."""


class MachineMismatchWarning(UserWarning):
    """The result was measured on another machine: GPU, usable cores or the torch version differ."""


def raised_by_handler(error: BaseException) -> bool:
    """Whether the handler of a signal raised it, in whatever code ran just then: the loop is to get it."""
    acts: list[Any] = [getattr(act, "func", act) for act in map(signal.getsignal, signal.valid_signals())]
    codes = {getattr(act, "__code__", None) or getattr(act.__call__, "__code__", None) for act in acts if callable(act)}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


@contextmanager
def harmless() -> Iterator[None]:
    """Drop what loadtune raises in here, in the middle of a user's training; what a handler raised is the loop's."""
    try:
        yield
    except Exception as error:
        if raised_by_handler(error):
            raise


def one_of(flag: str, word: str, allowed: Sequence[W]) -> W:
    """The allowed word that this is."""
    for each in allowed:
        if each == word:
            return each
    raise UsageError(
        f"{flag} is {word!r}; it must be {' or '.join(filter(None, (', '.join(allowed[:-1]), allowed[-1])))}."
    )
