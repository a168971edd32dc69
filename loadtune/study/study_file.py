"""The file that a study is kept in: opened, looked at, and put aside where it cannot be gone on with.

In: a run's ``study.db``, in whatever state a crash left it. Out: a study of Optuna, or what is wrong in SQLite's words.
"""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import optuna

from loadtune.errors import ResultError

STUDY_NAME = "loadtune"

_ASIDE = ".damaged"
# SQLite would roll what is left of another file's transaction back into a new one.
_OF_A_DATABASE = ("", "-journal", "-wal", "-shm")
WAIT_S = 5.0
"""How long for another process that writes it."""

_IN_USE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def open_or_renew(file: Path, num_known: int) -> tuple[optuna.Study, str | None]:
    """The study in this file, and a note where it is a new one: without the `num_known` first trials it should have.

    What cannot be used lies beside it then, as ``study.db.damaged``. Raises ResultError where another process holds the
    file, or no new one can be made.
    """
    # Ctrl-C in the middle of a query makes SQLAlchemy log a traceback; without any handler Python prints it on stderr.
    logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())
    missing = not file.exists()
    found = _usable(file, num_known)
    if isinstance(found, str):
        _put_aside(file)
        renewed = _usable(file, 0)
        if isinstance(renewed, str):
            raise ResultError(
                f"{file} cannot be written: {renewed}. The folder must have free space. Free some, and run again."
            )
        return renewed, f"{file.name} could not be used ({found}) and was renamed to {file.name}{_ASIDE}."
    if num_known and not found.get_trials(deepcopy=False):
        return found, f"{file.name} was {'missing' if missing else 'empty'}."
    return found, None


def problem_of(file: Path, *, read_only: bool) -> str | None:
    """Why SQLite cannot read it. None: it is whole. Not `read_only`, what a crash left half-written is mended first."""
    try:
        with closing(connected(file, read_only=read_only)) as database:
            return next((said for (said,) in database.execute("PRAGMA quick_check") if said != "ok"), None)
    except sqlite3.Error as error:
        if _is_in_use(error):
            raise _in_use(file) from error
        return str(error)


def kept_in(file: Path, *, read_only: bool = False) -> optuna.storages.RDBStorage:
    """Optuna's storage in this file, to which it does not connect by itself.

    In a URL of its own a path with a brace or a question mark would be another path.
    """

    def connect() -> sqlite3.Connection:
        database = connected(file, read_only=read_only)
        if not read_only:
            # Optuna commits about 20 times a trial, and each commit would wait for the disk. Only the journal has to
            # survive a crash of the machine: a study that such a crash damaged is built anew from it.
            database.execute("PRAGMA synchronous=OFF")
        return database

    return optuna.storages.RDBStorage(
        "sqlite:///study.db", engine_kwargs={"creator": connect}, skip_table_creation=read_only
    )


def connected(file: Path, *, read_only: bool) -> sqlite3.Connection:
    """`read_only`: SQLite itself refuses to write, and makes no file beside it. SQLAlchemy hands it between threads."""
    address = f"{file.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    return sqlite3.connect(address, uri=True, check_same_thread=False, timeout=WAIT_S)


def _usable(file: Path, num_known: int) -> optuna.Study | str:
    """The study, or why this is not the file of one that was asked for so many trials."""
    problem = problem_of(file, read_only=False)
    if problem is not None:
        return problem
    try:
        study = optuna.create_study(
            study_name=STUDY_NAME, storage=kept_in(file), direction="maximize", load_if_exists=True
        )
        num_trials = len(study.get_trials(deepcopy=False))
    except Exception as error:  # tables of another Optuna, or of something else: many libraries have a say in it
        if _is_in_use(error):
            raise _in_use(file) from error
        return str(error).partition("\n")[0].rstrip(".")
    whole = num_trials == 0 or num_trials >= num_known
    return study if whole else f"it has {num_trials} of {num_known} trials"


def _put_aside(file: Path) -> None:
    try:
        for end in _OF_A_DATABASE:
            part = file.with_name(file.name + end)
            if part.exists():
                part.replace(file.with_name(file.name + _ASIDE + end))
    except OSError as error:
        raise ResultError(
            f"{file} is damaged and cannot be renamed ({error.strerror or error}). Move it out of the folder."
        ) from error


def _is_in_use(error: BaseException | None) -> bool:
    """Whether SQLite says so, or whatever was raised because of that."""
    while error is not None:
        for said in (error, getattr(error, "orig", None)):
            if getattr(said, "sqlite_errorcode", 0) & 0xFF in _IN_USE:
                return True
        error = error.__cause__
    return False


def _in_use(file: Path) -> ResultError:
    return ResultError(f"{file} is in use by another process. Wait until that ends.")
