"""The answer of a run in some 30 lines of a terminal: what to set, what it gains, what limits it, where the rest is.

In: a `TuningResult` and the run's folder. Out: an `Answer`, plain data that `text` renders. The details are in
`loadtune.report.view.summary`, which ``--verbose`` and the page show.
"""

import textwrap
from dataclasses import dataclass
from pathlib import Path

from loadtune.records import TuningResult
from loadtune.records.chosen import loader_kwargs
from loadtune.report.bottleneck import short_lines
from loadtune.report.export import has_own_loader
from loadtune.report.figures import Table, answer_table
from loadtune.report.remedies import RemediesView, remedies_answer
from loadtune.report.view import batch_caution, kept, seen_once, warning
from loadtune.units import counted

_WIDTH = 78


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """In the order it is read."""

    title: str
    warning: str | None
    """The run was cut short, or confirmed nothing."""
    table: Table | None
    """None: nothing was confirmed."""
    lines: tuple[str, ...]
    """The bottleneck, what to beware of; where there is no table, what was measured instead."""
    code: tuple[str, ...]
    """``DataLoader(…)`` with the chosen arguments. Empty: nothing was confirmed."""
    remedies: RemediesView | None
    """What changes of the code bring on top of that. None: there is nothing to say."""
    files: tuple[str, ...]
    """Where everything else is."""


def answer(result: TuningResult, folder: Path, *, has_page: bool, resume_command: str | None = None) -> Answer:
    """`resume_command` is set where the run was cut short and can go on."""
    return Answer(
        title=f"{result.config.workload.title} on {result.device.name}",
        warning=warning(result),
        table=answer_table(result),
        lines=(*kept(result), *seen_once(result), *short_lines(result), *batch_caution(result), *_reasons(result)),
        code=_code(result),
        remedies=remedies_answer(result),
        files=_files(result, folder, has_page=has_page, resume_command=resume_command),
    )


def _reasons(result: TuningResult) -> tuple[str, ...]:
    """Why there is no answer; of an answer the notes are on the page."""
    return () if result.best is not None else result.notes


def _code(result: TuningResult) -> tuple[str, ...]:
    if result.best is None:
        return ()
    settings = [f"{name}={value!r}" for name, value in loader_kwargs(result, result.best.config).items()]
    others = ["..."] if has_own_loader(result) else ["shuffle=True", "drop_last=True"]
    arguments = ", ".join(["dataset", *others, *settings])
    indented = textwrap.wrap(arguments + ",", _WIDTH, initial_indent="    ", subsequent_indent="    ")
    return ("loader = DataLoader(", *indented, ")")


def _files(result: TuningResult, folder: Path, *, has_page: bool, resume_command: str | None) -> tuple[str, ...]:
    notes = f", with {counted(len(result.notes), 'note')}" if result.notes else ""
    return (
        f"Report page: {folder / 'report.html'}{notes}" if has_page else f"Result: {folder / 'result.json'}{notes}",
        *(["Training step for these settings: loadtune export --format pytorch"] if result.best is not None else []),
        *([] if resume_command is None else [f"To continue: {resume_command}"]),
    )
