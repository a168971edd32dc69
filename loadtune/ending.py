"""What a command prints, and how it ends: its exit code, one message, no traceback of ours.

In: what rich renders, whatever a command raised, or a signal. Out: lines on a stream and a `typer.Exit`. Apart from the
`cli` modules, which are about what is asked; no others print or exit. rich is loaded on first use.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from types import FrameType
from typing import TYPE_CHECKING, TextIO

import typer

from loadtune.errors import LoadtuneError, WorkloadError
from loadtune.records.result import TuningResult

if TYPE_CHECKING:
    from rich.console import RenderableType

NO_ANSWER, USER_CAN_MEND, READER_GONE = 1, 2, 128 + signal.SIGPIPE
TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)
"""What a job scheduler, ``docker stop`` or a terminal that closes sends."""


def exit_code(result: TuningResult) -> int:
    """Of a run that left a result: an interruption outweighs what was confirmed before it."""
    if result.interrupted_by is not None:
        return interruption_code(result.interrupted_by)
    return 0 if result.best is not None else NO_ANSWER


@contextmanager
def told_plainly(verbose: bool) -> Iterator[None]:
    """What a user can mend, or did on purpose, ends in a message and an exit code, never in a traceback."""
    try:
        yield
        sys.stdout.flush()  # here, where a reader that went away can still be met
    except BrokenPipeError:
        to_nowhere(sys.stdout)
        raise typer.Exit(READER_GONE) from None
    except KeyboardInterrupt as interruption:
        typer.echo("Interrupted. No result was written.", err=True)
        raise typer.Exit(interruption_code(str(interruption))) from None
    except LoadtuneError as error:
        _show(error, verbose)
        raise typer.Exit(USER_CAN_MEND) from None


@contextmanager
def termination_as_interruption() -> Iterator[None]:
    """`TERMINATIONS` end a run as Ctrl-C does: what was measured is kept. What nohup ignores stays ignored.

    Python drops an interruption that falls into a finalizer; it is raised again.
    """
    unraisable = sys.unraisablehook
    heard = {n: before for n in TERMINATIONS if (before := signal.getsignal(n)) is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, _interrupt)

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


def _show(error: LoadtuneError, verbose: bool) -> None:
    if verbose:
        traceback.print_exception(error)
    if isinstance(error, WorkloadError) and error.user_traceback:
        typer.echo(error.user_traceback.rstrip("\n"), err=True)
    typer.echo(f"error: {error}", err=True)


def show(content: "RenderableType", stream: TextIO) -> None:
    """Tables keep to the stream's width; code, which does not wrap, runs over it rather than being cut."""
    from rich.console import Console

    console = Console(file=stream, highlight=False)
    with console.capture() as capture:  # written by us: rich would end the process itself where the reader went away
        console.print(content, crop=False)
    stream.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())  # tables are padded with spaces
    stream.flush()


class LastingStream(TextIOWrapper):
    """Once its disk is full or its reader is gone, what is written goes nowhere. Not for a buffered file."""

    lost: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self.lost = error
            to_nowhere(self)
            return len(text)


def to_nowhere(stream: TextIO) -> None:
    """Python flushes its streams once more on its way out; into nothing, that is quiet."""
    with suppress(OSError):  # a stream without a file descriptor has nothing to complain of
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
