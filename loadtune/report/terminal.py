"""What the terminal shows: during a run one line that redraws itself, plain lines elsewhere; at its end the answer.

The answer has at most 22 lines, with the code to paste within the first twelve. Lines have at most
100 characters; only a path may be longer. Where fp16 sums gradients over several batches, the code ends with line 15.
"""

import math
import re
import textwrap
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO

from loadtune.records.config import TrialConfig
from loadtune.records.measurement import Progress
from loadtune.records.result import Finalist, Result, Winner, finalist_of
from loadtune.report import sentences
from loadtune.report.forms import WIDTH, changed_lines, has_own_loader, script_lines
from loadtune.report.sentences import STAGE_TEXT, settings_text
from loadtune.units import counted, plain, rate_text, ratio_text, seconds_text

if TYPE_CHECKING:
    from rich.text import Text

_DOES = {
    "start": "starting: torch, dataset and model are loaded",
    "calibrate": "timing each precision without a loader, predicting the largest batch",
    "study": "searching",
    "changes": "trying changes of your code",
    "verify": "running the largest batch",
    "confirm": "confirming: the best and your settings, measured alternately",
}


def progress_line(progress: Progress, width: int | None = None) -> str:
    """What the run does, the best so far, and the time left. What is measured now is in it where ``width`` allows."""
    does = _DOES.get(progress.stage, progress.stage)
    if progress.stage == "study":
        does += f" {progress.number}" + (f" of ≤{progress.num_trials}" if progress.num_trials else "")
    best = now = ""
    if progress.best_config is not None:
        best = f" · best so far {_measured(progress.best_samples_per_s, progress.best_config)}"
    if progress.config is not None:
        now = f" · now {_measured(progress.current_samples_per_s, progress.config)}"
    left = f" · at most {seconds_text(progress.left_s)} left"
    if progress.expected_s is not None and (about_s := 10 * math.ceil(progress.expected_s / 10)) < progress.left_s:
        left = f" · about {seconds_text(about_s)} left"
    whole = f"{does}{now}{best}{left}"
    return whole if width is not None and len(whole) <= width else f"{does}{best}{left}"


def _raised() -> NoReturn:
    raise


def _measured(rate: float | None, config: TrialConfig) -> str:
    what = settings_text(config, with_recipe=False)
    return what if rate is None else f"{rate_text(rate)} ({what})"


class LiveDisplay:
    """A listener: ``with LiveDisplay(sys.stderr) as display: tune(loader, model=model, listener=display)``."""

    def __init__(
        self, stream: TextIO, *, quiet: bool = False, name: str = "", words: Callable[[str], str] = str
    ) -> None:
        """``quiet`` shows notes only. ``name`` begins each message; ``words`` makes others of its words."""
        from rich.console import Console
        from rich.live import Live

        self._console, self._quiet = Console(file=stream, highlight=False, force_jupyter=False), quiet
        self._console.on_broken_pipe = _raised  # type: ignore[method-assign]  # rich would end the process
        self._name, self._words = name, words
        self._newest: Progress | None = None
        self._newest_s = 0.0
        self._is_redrawn = self._console.is_terminal and not self._console.is_dumb_terminal and not quiet
        self._live: AbstractContextManager[object] = nullcontext()
        if self._is_redrawn:
            self._live = Live(get_renderable=self._redrawn, console=self._console, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        with suppress(OSError):  # the terminal is gone
            self._live.__exit__(*error)

    def __call__(self, progress: Progress) -> None:
        """A message is printed and stays. Where nothing is redrawn, so is the line of each stage that begins."""
        newest, self._newest, self._newest_s = self._newest, progress, time.monotonic()
        if not (self._is_redrawn or self._quiet) and (newest is None or newest.stage != progress.stage):
            self._print(progress, progress_line(progress))
        if progress.message is not None and (progress.warning or not self._quiet):
            self._print(progress, self._words(progress.message), warning=progress.warning)
        if lost := getattr(getattr(self._console.file, "buffer", None), "lost", None):  # the error of a `LastingFile`
            raise lost

    def _print(self, progress: Progress, text: str, *, warning: bool = False) -> None:
        head = "note:" if warning else f"[{STAGE_TEXT.get(progress.stage, progress.stage)}]"
        # Markup off: a message may quote brackets. Soft wrap: a line stays one line in a log file.
        look: dict[str, Any] = {"style": "yellow" if warning else None, "markup": False}
        self._console.print(f"{self._name}{head} {plain(text)}", **look, soft_wrap=not self._console.is_terminal)

    def _redrawn(self) -> "Text":
        """Called by rich's thread several times a second; only the time left changes between two records."""
        from rich.text import Text

        if self._newest is None:
            return Text()
        since_s, newest = time.monotonic() - self._newest_s, self._newest
        expected_s = None if newest.expected_s is None else max(0.0, newest.expected_s - since_s)
        shown = replace(newest, left_s=max(0.0, newest.left_s - since_s), expected_s=expected_s)
        return Text(progress_line(shown, self._console.width))


# The answer

LINES, CODE_END = 22, 12

_EXPORT = "Code: loadtune export --format pytorch".replace(" ", "\N{NO-BREAK SPACE}")


def terminal_answer(
    result: Result, report: Path | None = None, resume_command: str | None = None, *, with_notes: bool = True
) -> tuple[str, ...]:
    """`report` is the page, or the result where there is none; `resume_command` continues a run that was cut short.

    Without `with_notes` notes are only counted: they were shown while the run went on.
    """
    winner, warned = sentences.shown_winner(result), sentences.warning(result)
    warnings = () if warned is None else (warned,)
    head, code = _wrapped([*warnings, *sentences.seen_once(result)]), list[str]()
    below, more = list[str](), list[str]()
    if winner is not None:
        where = _EXPORT if result.remedies and result.remedies.config else "Code: in the report."
        first, *others = sentences.answer_lines(result, winner, f" {where}")
        code, below = _code(result, winner), _wrapped([*warnings, *others])
        head = _wrapped([f"{first} To keep it:" if code else first])
        more = [*_epoch(result, winner), *_gains(result, winner), *sentences.limit_sentences(result)]
    end = [] if resume_command is None else [f"To continue: {resume_command}"]
    room = LINES - 1 - sum(map(len, (head, code, below, end)))
    while len(said := _wrapped(more)) > room:
        del more[-1]
    said = [*_table(result, room - len(said)), *said]
    shown = list[str]()
    for note in result.notes if with_notes else ():
        if len(_wrapped([*shown, note])) > room - len(said):
            break
        shown.append(note)
    num_left = len(result.notes) - len(shown)
    left = f", with {counted(num_left, 'more note' if shown else 'note')}" if num_left else ""
    end = [*_wrapped(shown), *([] if report is None else [f"Report{left}: {report}"]), *end]
    return _spaced(head, code, below, said, end)


def _wrapped(sentences: Iterable[str]) -> list[str]:
    """A no-break space keeps a command on one line."""
    lines = [line for each in sentences for line in textwrap.wrap(each, WIDTH, break_on_hyphens=False)]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _spaced(head: list[str], code: list[str], *others: list[str]) -> tuple[str, ...]:
    """With an empty line between blocks, where there is room and the code still ends early enough."""
    lines, spare = head, LINES - sum(map(len, (head, code, *others)))
    for block in (code, *others):
        if block and spare > 0 and (block is not code or len(head) + len(code) < CODE_END):
            lines, spare = [*lines, ""], spare - 1
        lines = [*lines, *block]
    return tuple(lines)


def _code(result: Result, winner: Winner) -> list[str]:
    """The loader, and what the recipe changes in a plain training step; of a script what to type into it. Empty: the
    user's settings are the answer."""
    if winner.config == result.yours:
        return []
    if result.config.workload.command:
        return script_lines(result, winner.config)
    settings, step = result.loader_kwargs(winner.config), "\n".join(changed_lines(result, winner.config))
    step = re.sub(r"\n(scaler\.(?:step|update))", r"; \1", step)  # to save two of few lines
    if result.yours is not None and result.loader_kwargs(result.yours) == settings:
        return ["Your DataLoader is right as it is. All of the gain is in the training step:", *step.splitlines()]
    others = ["..."] if has_own_loader(result) else ["shuffle=True", "drop_last=True"]
    call = ", ".join(["dataset", *others, *(f"{name}={value!r}" for name, value in settings.items())])
    return [*textwrap.wrap(f"loader = DataLoader({call})", WIDTH, subsequent_indent="    "), *step.splitlines()]


def _table(result: Result, room: int) -> list[str]:
    """The contestants of the final, fastest first; where not all fit, the answers and the baseline stay."""
    names = sentences.names(result) | {found.config: "+ change" for found in result.finalists if found.config.remedies}
    rank = {config: place for place, config in enumerate(names)}
    ranked = sorted(result.finalists, key=lambda found: (rank.get(found.config, len(rank)), -found.samples_per_s))
    shown = sorted(ranked[: max(0, room - 1)], key=lambda found: -found.samples_per_s)
    if not shown:
        return []
    labels = [names.get(found.config, "") for found in shown]
    label = max(map(len, labels))
    figures = ["samples/s (95%)", *(sentences.interval_text(found.throughput) for found in shown)]
    rate = max(map(len, figures))
    words = WIDTH - rate - len("  runs") - 2
    left = [f"{result.config.workload.title} on {result.device.name}, measured alternately"]
    for name, found in zip(labels, shown, strict=True):
        left.append(f"{name:<{label}}  {_settings(result, found, words - label - 2)}")
    runs = ["runs", *(len(found.runs) for found in shown)]
    return [f"{w:<{words}}  {f:>{rate}}  {r:>4}" for w, f, r in zip(left, figures, runs, strict=True)]


def _settings(result: Result, found: Finalist, width: int) -> str:
    """After the names of changes of the code, before what has to be known of them."""
    kept = result.remedies and result.remedies.config
    marks = {
        "assumed": found.config == result.yours and bool(sentences.ASSUMED & set(result.assumed)),
        "not confirmed": found.unconfirmed is not None,
        "not proven": bool(found.config.remedies) and found.config != kept,
    }
    known = "; ".join(mark for mark, holds in marks.items() if holds)
    known, named = f" ({known})" if known else "", " and ".join(map(sentences.remedy_text, found.config.remedies))
    settings = sentences.settings_text(replace(found.config, remedies=()))
    return textwrap.shorten(f"{named}: {settings}" if named else settings, width - len(known), placeholder=" …") + known


def _epoch(result: Result, winner: Winner) -> tuple[str, ...]:
    """Of a script: how long an epoch takes, with the start of its workers. Empty: its length is not known."""
    both = [finalist_of(result.finalists, each) for each in (winner.config, result.yours)]
    found = [[run.epoch_s for run in each.runs if run.epoch_s is not None] for each in both if each is not None]
    if not result.config.workload.command or winner.config == result.yours or len(found) < 2 or not all(found):
        return ()
    after, before = (seconds_text(fmean(each)) for each in found)
    return (f"With the answer an epoch takes {after} instead of {before}.",)


def _gains(result: Result, winner: Winner) -> tuple[str, ...]:
    words = [f"{each.name} {ratio_text(each.ratio.value)}" for each in sentences.steps(result, winner)]
    if words and winner == result.best and result.remedies and result.remedies.config:
        kept = sentences.changes(result)[0]
        words.append(f"{kept.name} {ratio_text(kept.ratio.value)}")
    return (f"What each step gains: {', then '.join(words)}.",) if words[1:] else ()
