"""What can go wrong in a way a user can mend. Every message says what was found, what is allowed, what to do next.

LoadtuneError
├── UsageError            an option or argument has a value that cannot be used
├── DeviceError           the device asked for is not there, or cannot be used
├── WorkloadError         the dataset, model or factory is missing, raises, or does not fit together
│   └── NothingFitsError  not even the smallest batch trains in the memory that is free
├── BenchError            the training process could not be started, or keeps dying
├── OutOfTimeError        the time budget ended before what was asked for was done
└── ResultError           a result file is missing, damaged, or of a newer version
    └── MachineMismatchError   the result came from another machine and ``strict=True`` was given

MachineMismatchWarning (UserWarning)   the same, without ``strict``
"""


class LoadtuneError(Exception):
    """Base of all errors loadtune raises on purpose; the command line prints the message and exits with code 2."""


class UsageError(LoadtuneError):
    """An option or argument has a value that cannot be used."""


class DeviceError(LoadtuneError):
    """The device asked for is not there, or cannot be used."""


class WorkloadError(LoadtuneError):
    """The dataset, model or factory is missing, raises, or does not fit together.

    ``user_traceback`` is the traceback of the user's own code as text, or None where none of it was running.
    """

    def __init__(self, message: str, user_traceback: str | None = None) -> None:
        super().__init__(message)
        self.user_traceback = user_traceback


class NothingFitsError(WorkloadError):
    """Not even the smallest batch trains in the memory that is free."""


class BenchError(LoadtuneError):
    """The training process could not be started, or keeps dying."""


class OutOfTimeError(LoadtuneError):
    """The time budget ended before what was asked for was done.

    ``phase`` is what the training process was doing, or None where it was not asked any more. ``stuck`` names the
    samples that it was waiting for, in a sentence without a full stop, or is None where it waited for none.
    """

    def __init__(self, message: str, *, phase: str | None = None, stuck: str | None = None) -> None:
        super().__init__(message)
        self.phase, self.stuck = phase, stuck


class ResultError(LoadtuneError):
    """A result file is missing, damaged, or of a newer version."""


class MachineMismatchError(ResultError):
    """The result came from another machine and ``strict=True`` was given."""


class MachineMismatchWarning(UserWarning):
    """The result came from another machine: GPU, usable cores or torch differ."""
