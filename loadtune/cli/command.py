"""A command. How its words are read: by argparse, with help by panel and the table of options. What it prints, and how
it ends: its exit code, one message, no traceback of ours. It loads little.
"""

import argparse
import errno
import inspect
import os
import shutil
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from io import FileIO, TextIOWrapper
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from loadtune.errors import LoadtuneError, UsageError, WorkloadError
from loadtune.units import plain

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from loadtune.api.given import Row
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


# Its words

Option = tuple[tuple[str, ...], str, dict[str, Any]]
"""Its flags, or the name of an argument; the panel that shows it in help; and what argparse knows of it."""

_NAMES = 26
"""Columns of help for the names of options."""


def option(*flags: str, help: str, value: str | None = None, panel: str = "Options", **how: Any) -> Option:
    """``value`` stands for its value in help. None: it takes none."""
    takes = {"action": "store_true"} if value is None else {"metavar": value}
    return flags, panel, {"help": help.replace("%", "%%"), **takes, **how}


JSON = option("--json", help="JSON on stdout, all else on stderr.", panel="Output")
QUIET = option("-q", "--quiet", help="Only notes, no progress.", panel="Output")
VERBOSE = option("-v", "--verbose", help="Show Python tracebacks; keep a failed run's log.", panel="Output")
_HELP = option("-h", "--help", help="Show this message and exit.", panel="Output")
_HELP_ALL = option("--help-all", help="Show every option.", panel="Output")


def of_row(row: "Row") -> Option:
    """A row of the table of options. Its value stays the words that were given."""
    usual = row.default or {None: "", (): "none"}.get(row.usual, str(row.usual).removesuffix(".0"))
    how: dict[str, Any] = {"help": f"{row.help} [default: {usual}]" if usual else row.help}
    how |= {"panel": row.panel, "dest": row.name, "default": None}
    if row.kind is bool:
        how |= {} if row.flags else {"action": argparse.BooleanOptionalAction}
    else:
        value = row.value or {int: "N", float: "SECONDS"}.get(row.kind, "NAME")
        how |= {"value": "|".join(row.allowed) or value, "action": "append" if row.kind is tuple else "store"}
    return option(*(row.flags or (row.flag,)), **how)


def settings(rows: Iterable["Row"], words: Mapping[str, Any]) -> dict[str, Any]:
    """What was given of these rows."""
    from loadtune.api.given import parsed

    return {row.name: parsed(row, words[row.name]) for row in rows if words.get(row.name) is not None}


class _Help(argparse.RawDescriptionHelpFormatter):
    """``shown``: names of those that it shows. None: every one."""

    def __init__(self, prog: str, shown: Collection[str] | None = None) -> None:
        super().__init__(prog, max_help_position=_NAMES, width=_width())
        self._shown = shown

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, prefix or "Usage: ")

    def add_argument(self, action: argparse.Action) -> None:
        if self._shown is None or action.dest in self._shown:
            super().add_argument(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """``-o, --out FOLDER``, ``--pin-memory / --no-pin-memory``, ``RESULT``."""
        between = " / " if isinstance(action, argparse.BooleanOptionalAction) else ", "
        return f"{between.join(action.option_strings)} {action.metavar or ''}".strip()


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 80) - 2


def _wrapped(text: str) -> str:
    """Paragraph by paragraph; one with lines that are indented stays as it is."""
    paragraphs = (each if "\n  " in f"\n{each}" else textwrap.fill(each, _width() - 2) for each in text.split("\n\n"))
    return textwrap.indent("\n\n".join(paragraphs), "  ")


class Parser(argparse.ArgumentParser):
    """A command: a function whose docstring is its help. It returns the exit code; None is 0."""

    def __init__(
        self,
        run: Callable[..., int | None],
        *options: Option,
        takes: str = "",
        common: Sequence[str] = (),
        after: str = "",
        hint: str = "",
    ) -> None:
        """``takes``: what stands behind the options. ``common``: names of those that ``--help`` shows, and then
        ``--help-all`` shows every one; empty: all. ``after`` ends the help. ``hint``: for whoever gives an option that
        it has not."""
        name = f"loadtune {run.__name__.rstrip('_')}"
        super().__init__(name, f"{name} [OPTIONS] {takes}", add_help=False, allow_abbrev=False)
        self.run, self._after, self._hint = run, after, hint or f"`{name} --help` lists the options."
        self._common = {*common, "help", "help_all"} if common else None
        self._takes = {how["nargs"]: flags[0] for flags, _, how in options if "nargs" in how}
        panels = dict[str, Any]()
        for flags, panel, how in (*options, *((_HELP_ALL,) if common else ()), _HELP):
            panels[panel] = panels.get(panel) or self.add_argument_group(panel)
            panels[panel].add_argument(*flags, **how)

    def __call__(self, words: Sequence[str]) -> int:
        """Run it with these words. Returns the exit code, or ends the process with that of an error."""
        code: int | None = 0
        with told_plainly(verbose=False):
            given = self.read(words)
            shows, shows_all = given.pop("help"), given.pop("help_all", False)
            if shows or shows_all:
                self.formatter_class = partial(_Help, shown=None if shows_all else self._common)
                self.description, self.epilog = _wrapped(inspect.getdoc(self.run) or ""), _wrapped(self._after)
                self.print_help()
        if not (shows or shows_all):
            with told_plainly(given["verbose"]):
                code = self.run(**given)
        return code or 0

    @property
    def summary(self) -> str:
        """Its help in one line."""
        return (inspect.getdoc(self.run) or "").partition("\n")[0]

    def read(self, words: Sequence[str]) -> dict[str, Any]:
        """The arguments of its function. Raises UsageError."""
        words, many = list(words), self._takes.get("*")
        at = words.index("--") if many and "--" in words else len(words)  # argparse would read options behind it
        is_rest = argparse.REMAINDER in self._takes
        found, unknown = (self.parse_known_args if is_rest else self.parse_known_intermixed_args)(words[:at])
        if many:
            setattr(found, many, [*(getattr(found, many) or ()), *words[at + 1 :]])
        if unknown:
            from difflib import get_close_matches  # late: it is seldom needed

            flag = unknown[0].partition("=")[0]
            near = get_close_matches(flag, self._option_string_actions, 1)
            what, todo = "option" if flag[:1] == "-" else "argument", f"Did you mean {near[0]}?" if near else self._hint
            raise UsageError(f"`{self.prog}` has no {what} {flag or repr(unknown[0])}. {todo}")
        return vars(found)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')}. {self._hint}")
