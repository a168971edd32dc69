"""Command lines, by argparse: help by panel, the table of options, and errors that are told as all others are."""

import argparse
import inspect
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from loadtune.cli.ending import told_plainly
from loadtune.errors import UsageError

if TYPE_CHECKING:
    from loadtune.api.options import Row

Option = tuple[tuple[str, ...], str, dict[str, Any]]
"""Its flags, or the name of an argument; the panel that shows it in help; and what argparse knows of it."""

_NAMES = 26
"""Columns of help for the names of options."""


def option(*flags: str, help: str, value: str | None = None, panel: str = "Options", **how: Any) -> Option:
    """``value`` stands for its value in help. None: it takes none."""
    takes = {"action": "store_true"} if value is None else {"metavar": value}
    return flags, panel, {"help": help.replace("%", "%%"), **takes, **how}


JSON = option("--json", help="JSON on stdout, all else on stderr.", panel="Output")
QUIET = option("-q", "--quiet", help="Only warnings, no progress.", panel="Output")
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
    from loadtune.api.options import parsed

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
