"""What `loadtune run` prints at its end: at most 22 lines, the code to paste within the first twelve.

Lines have at most 100 characters; only a path may be longer. Where fp16 sums gradients over several batches, the code
ends with line 15.
"""

import re
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from loadtune.records.result import Finalist, Result, Winner, finalist_of
from loadtune.report import sentences, wording
from loadtune.report.forms import changed_lines, has_own_loader
from loadtune.report.script import WIDTH, script_lines
from loadtune.units import counted, ratio_text, seconds_text

LINES, CODE_END = 22, 12

_EXPORT = "Code: loadtune export --format pytorch".replace(" ", "\N{NO-BREAK SPACE}")


def terminal_answer(
    result: Result, report: Path | None = None, resume_command: str | None = None, *, with_notes: bool = True
) -> tuple[str, ...]:
    """`report` is the page, or the result where there is none; `resume_command` continues a run that was cut short.

    Without `with_notes` notes are only counted: they were shown while the run went on.
    """
    winner, warned = result.best and (result.best_at_your_batch or result.best), sentences.warning(result)
    if winner is not None and winner.config == result.yours:
        winner = result.best  # at another batch size, where something is proven there alone
    warnings = () if warned is None else (warned,)
    head, code = _wrapped([*warnings, *sentences.seen_once(result)]), list[str]()
    below, more = list[str](), list[str]()
    if winner is not None:
        head, code = _wrapped([_headline(result, winner)]), _code(result, winner)
        code_of = _EXPORT if result.remedies and result.remedies.config else "Code: in the report."
        changed = (f"{sentence} {code_of}" for sentence in sentences.best_with_changes(result))
        below = _wrapped([*_other_batch(result, winner), *warnings, *changed])
        more = [*_epoch(result, winner), *_gains(result, winner), *sentences.limit_sentences(result)]
    end = [] if resume_command is None else [f"To continue: {resume_command}"]
    room = LINES - 1 - sum(map(len, (head, code, below, end)))
    while len(said := _wrapped(more)) > room:
        del more[-1]
    said = [*_table(result, winner, room - len(said)), *said]
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


def _headline(result: Result, winner: Winner) -> str:
    """With the batch size, where the user gave one and may get another."""
    at = f"Batch {winner.config.batch_size}: " if result.best_at_your_batch and winner.config != result.yours else ""
    return at + sentences.answer_text(result, winner)


def _other_batch(result: Result, winner: Winner) -> tuple[str, ...]:
    """What another batch size than the user's brings. It changes the optimization, so it is said apart."""
    best, at_yours = result.best, result.best_at_your_batch
    if best is None or best.config.batch_size == winner.config.batch_size:
        kept = sentences.keep_text(result, at_yours) if at_yours and at_yours != winner else ""
        return (*sentences.batch_caution(result), *([kept] if kept else []))
    return (f"{_headline(result, best)} Retune the learning rate.",)


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


def _table(result: Result, winner: Winner | None, room: int) -> list[str]:
    """The contestants of the final, fastest first; where not all fit, the answers and the baseline stay."""
    names = {} if result.best is None else {result.best.config: f"at {result.best.config.batch_size}"}
    names |= {} if winner is None else {winner.config: "answer"}
    names |= {} if result.yours is None else {result.yours: "baseline"}
    names |= {found.config: "+ change" for found in result.finalists if found.config.remedies}
    ranked = sorted(result.finalists, key=lambda found: (found.config not in names, -found.samples_per_s))
    shown = sorted(ranked[: max(0, room - 1)], key=lambda found: -found.samples_per_s)
    if not shown:
        return []
    labels = [names.get(found.config, "") for found in shown]
    label = max(map(len, labels))
    figures = ["samples/s (95%)", *(wording.interval_text(found.throughput) for found in shown)]
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
    known, named = f" ({known})" if known else "", " and ".join(map(wording.remedy_text, found.config.remedies))
    settings = wording.settings_text(replace(found.config, remedies=()))
    return textwrap.shorten(f"{named}: {settings}" if named else settings, width - len(known), placeholder=" …") + known


def _epoch(result: Result, winner: Winner) -> tuple[str, ...]:
    """Of a script: how long an epoch takes, with the start of its workers. Empty: its length is not known."""
    both = [finalist_of(result.finalists, each) for each in (winner.config, result.yours)]
    found = [[run.epoch_s for run in each.runs if run.epoch_s is not None] for each in both if each is not None]
    if not result.config.workload.command or winner.config == result.yours or len(found) < 2 or not all(found):
        return ()
    after, before = (seconds_text(fmean(each)) for each in found)
    return (f"An epoch takes {after} instead of {before}.",)


def _gains(result: Result, winner: Winner) -> tuple[str, ...]:
    words = [f"{each.name} {ratio_text(each.ratio.value)}" for each in sentences.steps(result, winner)]
    if words and winner == result.best and result.remedies and result.remedies.config:
        kept = sentences.changes(result)[0]
        words.append(f"{kept.name} {ratio_text(kept.ratio.value)}")
    return (f"Gain in epoch time: {', then '.join(words)}.",) if words[1:] else ()
