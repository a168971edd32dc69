"""How a command ends: its exit code, one message, no traceback of ours.

In: whatever a command raised, or a signal. Out: a line on stderr and a `typer.Exit`. Apart from `cli`, which is about
what is asked; the two are the only modules that print or exit.
"""

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TextIO

import typer

from loadtune.errors import LoadtuneError, WorkloadError
from loadtune.records import TuningResult

NO_ANSWER, USER_CAN_MEND = 1, 2
INTERRUPTED, READER_GONE, TERMINATED = (128 + number for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM))
"""As a shell reports these signals."""


def exit_code(result: TuningResult) -> int:
    """Of a run that left a result: an interruption outweighs what was confirmed before it."""
    if result.cut_short is not None and any(word in result.cut_short for word in ("interrupted", "Ctrl-C")):
        return interruption_code(result.cut_short)
    return 0 if result.best is not None else NO_ANSWER


@contextmanager
def told_plainly(debug: bool) -> Iterator[None]:
    """What a user can mend, or did on purpose, ends in a message and an exit code, never in a traceback."""
    try:
        yield
        sys.stdout.flush()  # here, where a reader that went away can still be met
    except BrokenPipeError:
        _silence(sys.stdout)
        raise typer.Exit(READER_GONE) from None
    except KeyboardInterrupt as interruption:
        typer.echo("Interrupted. No result was written.", err=True)
        raise typer.Exit(interruption_code(str(interruption))) from None
    except LoadtuneError as error:
        _show(error, debug)
        raise typer.Exit(USER_CAN_MEND) from None


@contextmanager
def termination_as_interruption() -> Iterator[None]:
    """SIGTERM, which a job scheduler or ``docker stop`` sends, ends a run as Ctrl-C does: what was measured is kept."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def interruption_code(reason: str) -> int:
    return TERMINATED if signal.SIGTERM.name in reason else INTERRUPTED


def _show(error: LoadtuneError, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    if isinstance(error, WorkloadError) and error.user_traceback:
        typer.echo(error.user_traceback.rstrip("\n"), err=True)
    typer.echo(f"error: {error}", err=True)


def _silence(stream: TextIO) -> None:
    """Python flushes stdout once more on its way out; into nothing, that is quiet."""
    with suppress(OSError):  # a stream without a file descriptor has nothing to complain of
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
