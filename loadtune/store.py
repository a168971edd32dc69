"""Results on disk: a folder of its own for every run, one JSON file in it, and reading it back.

What reads a file of another version, or a damaged one, says so before anything uses it.
"""

import fcntl
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TypeVar

import msgspec

from loadtune.errors import LoadtuneError, OutOfTimeError, ResultError, UsageError
from loadtune.records.config import TuneConfig
from loadtune.records.result import SCHEMA_VERSION, Result
from loadtune.units import CONTROL, bytes_text

T = TypeVar("T")

RESULT_FILE = "result.json"
RUN_FILE = "run.json"
STUDY_FILE = "study.db"
LOG_FILE = "training.log"
"""What the training process and its workers write."""
_LOCK_FILE = "run.lock"
_RUN_NAME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ)(?:-(\d+))?")


class _Head(msgspec.Struct):
    """The one field whose meaning no version may change."""

    schema_version: int


@contextmanager
def run_folder(given: Path | None, out: Path, label: str, *, keep_log: bool = False) -> Iterator[Path]:
    """The folder of a run: the one that is given, or a new one.

    A new one is removed where the run ends in an error before its run.json is there, unless the error names its log.
    """
    made = [parent for parent in (out, *out.parents) if not parent.exists()]
    folder = new_run_folder(out, label) if given is None else given
    with suppress(OSError):  # the first file says what is wrong
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except (LoadtuneError, KeyboardInterrupt) as error:
        keep_log |= isinstance(error, OutOfTimeError) and error.stuck is not None
        with suppress(OSError):
            if given is None and not keep_log and {path.name for path in folder.iterdir()} <= {LOG_FILE}:
                (folder / LOG_FILE).unlink(missing_ok=True)
                for empty in (folder, folder.parent, *made):
                    empty.rmdir()  # where it holds another run it refuses, and that is right
        raise


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Keep every other run out of the folder. The kernel releases the lock, however this process ends.

    Raises UsageError where another run has it, ResultError where nothing can be written there.
    """
    path = folder / _LOCK_FILE
    try:
        file = path.open("a+")
    except OSError as error:
        raise not_written(path, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UsageError(
                f"{folder} is in use by another run ({file.read()}). A folder takes one run at a time. Wait "
                "until that run ends, or run without --resume."
            ) from None
        except OSError:  # a file system without locks: no other run is noticed
            pass
        for name in (RESULT_FILE, STUDY_FILE, RUN_FILE, "report.html"):  # of an owner that was killed
            for half_written in folder.glob(f".{name}.????????"):
                half_written.unlink(missing_ok=True)
        owner = f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now(UTC):%F %T} UTC"
        with suppress(OSError):  # a full disk: run.json says so
            file.truncate(0)
            os.write(file.fileno(), owner.encode())
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()


def new_run_folder(out: Path, label: str, now: datetime | None = None) -> Path:
    """Make ``<out>/<label>/<UTC time>``, which nobody else has; two runs in one second get ``-2``, ``-3``, …"""
    name, number = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H-%M-%SZ"), 1
    folder = out / label / name
    while True:
        try:
            folder.mkdir(parents=True)  # exclusive: the loser of a race takes the next number
            return folder
        except FileExistsError:
            number += 1
            folder = folder.with_name(f"{name}-{number}")
        except OSError as error:
            raise UsageError(
                f"--out is {out}, where no folder can be made ({error.strerror or error}). It must be a folder that "
                "this user may write to. Choose another one."
            ) from error


def as_json(record: object) -> str:
    """A record, or a dict of records, as indented JSON that ends in a newline. Control characters are escaped."""
    text = msgspec.json.format(msgspec.json.encode(record), indent=2).decode()
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def write_result(result: Result, folder: Path) -> Path:
    """Write ``result.json`` whole or not at all."""
    return write_whole(folder / RESULT_FILE, as_json(result).encode(), resumable=True)


def write_whole(path: Path, content: bytes, *, resumable: bool = False) -> Path:
    """A reader, or a crash in between, never sees half of the file. Raises ResultError where it cannot be written."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:  # also where Ctrl-C comes in between
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise not_written(path, error, len(content), resumable=resumable) from error
    return path


def not_written(path: Path, error: OSError, num_bytes: int = 0, *, resumable: bool = False) -> ResultError:
    """Of a file that could not be written: what it needs, and what there is. `resumable`: run.json has it all."""
    free = ""
    with suppress(OSError):
        free = f" and {bytes_text(shutil.disk_usage(path.parent).free)} are free"
    resumed = f"run `loadtune run --resume {quote(str(path.parent))}`, which goes on with what was measured"
    return ResultError(
        f"{path} could not be written ({error.strerror or error}). It needs {bytes_text(num_bytes)}{free}. The folder "
        f"must be writable. Free some space, then {resumed if resumable else 'try again, or choose another folder'}."
    )


def load_result(path: str | os.PathLike[str] | None = None) -> Result:
    """Of a ``result.json``, a run's folder, or the newest run below a folder. None is ``./loadtune-results``."""
    file = result_files(Path(TuneConfig().out if path is None else path))[-1]
    return read_record(file, Result, "result", or_else="run `loadtune run` again")


def result_files(path: Path) -> list[Path]:
    """Each ``result.json`` that `files_below` finds."""
    return files_below(
        path,
        RESULT_FILE,
        "result",
        "Give a result.json, or a folder with one. `loadtune run` writes them; `loadtune run --resume` continues a run "
        "that was killed before it had one.",
    )


def files_below(path: Path, name: str, kind: str, todo: str) -> list[Path]:
    """`path` itself where it is a file; else those of this name in the folder, or one folder below, or two.

    The newest run comes last, by the time in its folder's name; a renamed folder counts as older than any. Raises
    ResultError where there is none: a `kind`, and what to do.
    """

    def age(file: Path) -> tuple[str, int, str]:
        match = _RUN_NAME.fullmatch(file.parent.name)  # …Z-10 comes after …Z-2
        return (match[1], int(match[2] or 1), "") if match else ("", 0, file.parent.name)

    if path.is_file():
        return [path]
    for pattern in (name, f"*/{name}", f"*/*/{name}"):
        if found := sorted(path.glob(pattern), key=age):
            return found
    why = f"there is no {name} in it or up to two folders below" if path.exists() else "it does not exist"
    raise ResultError(f"{path} holds no {kind}: {why}. {todo}")


def read_record(file: Path, kind: type[T], name: str, *, or_else: str, to_import: bool = False) -> T:
    """A stored record. Raises ResultError where it is not there, damaged, or newer than this version.

    `to_import`: also where another user could have written it, because the code that it names is imported and run; or
    where it names none.
    """
    try:
        with file.open("rb") as opened:
            about = os.fstat(opened.fileno())
            if to_import and (about.st_uid not in (os.geteuid(), 0) or about.st_mode & stat.S_IWOTH):
                raise ResultError(
                    f"{file} belongs to user {about.st_uid} and has mode {stat.filemode(about.st_mode)}. The code that "
                    "it names would be imported and run as you, so it must belong to you or root, and others may not "
                    f"write it. Look at it, then use a copy: cp -r {quote(str(file.parent))} COPY."
                )
            content = opened.read()
        version = msgspec.json.decode(content, type=_Head).schema_version
        if version != SCHEMA_VERSION:
            raise ResultError(
                f"{file} has schema_version {version}, and this loadtune reads {SCHEMA_VERSION} alone: use the version"
                f" that wrote it, or {or_else}."
            )
        record = msgspec.json.decode(content, type=kind)
        named = getattr(record, "config", TuneConfig()).workload.objects if to_import else ()
        if named:
            raise ResultError(
                f"The {' and the '.join(named)} of this run came to loadtune.tune as Python objects, which are not "
                "stored. Name a run whose parts have names. Or resume this run by a call of loadtune.tune with folder, "
                f"resume=True and the same {', '.join(named)}."
            )
        return record
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
    except msgspec.ValidationError as error:  # before DecodeError, its base
        what = f"is not a {name} of loadtune: {error}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = f"is damaged: {error}"
    raise ResultError(
        f"{file} {what}. It must be an unchanged {name}.json of schema_version {SCHEMA_VERSION} that this user may "
        f"read. Give the folder of another run, or {or_else}."
    )
