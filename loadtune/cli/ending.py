"""What a command prints, and how it ends: its exit code, one message, no traceback of ours. It loads little."""

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO, TextIOWrapper
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TextIO

from loadtune.errors import LoadtuneError, WorkloadError
from loadtune.units import plain

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from loadtune.report.tables import View

NO_ANSWER, USER_CAN_MEND, READER_GONE = 1, 2, 128 + signal.SIGPIPE
TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)
"""What a job scheduler, ``docker stop`` or a terminal that closes sends."""


@contextmanager
def told_plainly(verbose: bool) -> Iterator[None]:
    """What a user can mend, or did on purpose, ends in a message and an exit code, never in a traceback."""
    try:
        yield
        sys.stdout.flush()  # here, where a reader that went away can still be met
    except KeyboardInterrupt as interruption:
        print("Interrupted. No result was written.", file=sys.stderr)
        raise SystemExit(interruption_code(str(interruption))) from None
    except LoadtuneError as error:
        if verbose:
            traceback.print_exception(error)
        if isinstance(error, WorkloadError) and error.user_traceback:
            print(plain(error.user_traceback.rstrip("\n")), file=sys.stderr)
        print(f"error: {plain(str(error))}", file=sys.stderr)
        raise SystemExit(USER_CAN_MEND) from None
    lost: OSError | None = getattr(getattr(sys.stdout, "buffer", None), "lost", None)
    if isinstance(lost, BrokenPipeError):
        raise SystemExit(READER_GONE)
    if lost is not None and lost.errno != errno.EIO:
        print(f"error: The output could not be written ({lost.strerror}). Free some space.", file=sys.stderr)
        raise SystemExit(USER_CAN_MEND)


def end_as(code: int) -> NoReturn:
    """Exit with this code; below 0 by the signal that ended the command."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else 128 - code)


@contextmanager
def termination_as_interruption() -> Iterator[None]:
    """`TERMINATIONS` end a run as Ctrl-C does: what was measured is kept. What nohup ignores stays ignored. Python
    drops an interruption that falls into a finalizer; it is raised again."""
    unraisable = sys.unraisablehook
    heard = {n: signal.signal(n, _interrupt) for n in TERMINATIONS if signal.getsignal(n) is not signal.SIG_IGN}

    def dropped(lost: "sys.UnraisableHookArgs") -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt):
            number = interruption_code(str(lost.exc_value)) - 128
            if number in heard:
                signal.signal(number, _interrupt)
            # Once the finalizer is left; a signal ends a wait, too.
            threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, number)).start()
        else:
            unraisable(lost)

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = unraisable
        for number, before in heard.items():
            signal.signal(number, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a terminal that closes sends it twice, and the run is ending
    raise KeyboardInterrupt(signal.Signals(number).name)


def interruption_code(name: str) -> int:
    """Of this signal; of Ctrl-C where it is none of `TERMINATIONS`."""
    return 128 + next((number for number in TERMINATIONS if number.name == name), signal.SIGINT)


def show(view: "View", record: object = None, *, json: bool = False) -> None:
    """On stdout, as JSON or in words. Tables keep to its width; code, which does not wrap, runs over it."""
    from rich.console import Console

    from loadtune.report.tables import view_text
    from loadtune.store import as_json

    if json:
        sys.stdout.write(as_json(record))
        return
    console = Console(file=sys.stdout, highlight=False, color_system=None)
    with console.capture() as capture:  # written by us: rich would end the process itself where the reader went away
        console.print(view_text(view), crop=False)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())  # tables are padded with spaces
    sys.stdout.flush()


class LastingFile(FileIO):
    """Once its disk is full, or its reader or terminal is gone, what is written goes nowhere; `lost` is why."""

    lost: OSError | None = None

    def __init__(self, number: int, before: TextIO) -> None:
        """``before`` is kept, because it may close the file descriptor when it goes."""
        super().__init__(number, "w", closefd=False)
        self._before = before

    def write(self, content: "ReadableBuffer") -> int:
        left = memoryview(content)
        try:
            while left:
                left = left[super().write(left) or 0 :]  # None of a pipe that does not block, and is full
        except OSError as error:
            self.lost = self.lost or error
        return len(memoryview(content))


class PlainStream(TextIOWrapper):
    """Control characters in what is written are written out: no style is ever asked for here."""

    def write(self, text: str) -> int:
        super().write(plain(text))
        return len(text)


def lasting_streams() -> None:
    """A standard stream that is closed is opened on the null device: the next file would take its number. stdout and
    stderr outlive their disk, their reader and their terminal."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    if type(sys.stdout) is TextIOWrapper:  # a locale may lack our signs
        stdout, encoding = LastingFile(1, sys.stdout), sys.stdout.encoding
        sys.stdout = PlainStream(stdout, encoding, errors="replace", line_buffering=os.isatty(1))
    stderr, encoding = LastingFile(2, sys.stderr), sys.stderr.encoding
    sys.stderr = TextIOWrapper(stderr, encoding, errors="replace", write_through=True)
