"""What `loadtune run` prints at its end: at most 22 lines, the code to paste within the first twelve.

In: a `TuningResult` and the file that holds everything else. Out: lines of at most 100 characters; only a path may be
longer. Where fp16 sums gradients over several batches, the code ends with line 15.
"""

import textwrap
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from loadtune.records.answer import finalist_of, loader_kwargs
from loadtune.records.config import SCORE_UNITS, Recipe, TrialConfig
from loadtune.records.interval import Interval
from loadtune.records.result import Finalist, TuningResult, Winner
from loadtune.report.export import changed_statements, has_own_loader
from loadtune.report.gains import steps
from loadtune.report.sentences import (
    batch_caution,
    best_with_changes,
    bottleneck_sentence,
    keep_text,
    late_sentence,
    seen_once,
    warning,
)
from loadtune.report.wording import gain_text, settings_text
from loadtune.units import counted, number_text, ratio_text

LINES, CODE_END, WIDTH = 22, 12, 100

_EXPORT = "Code: loadtune export --format pytorch".replace(" ", "\N{NO-BREAK SPACE}")

_ASSUMED = ("batch_size", "num_workers", "pin_memory", "precision")


def terminal_answer(
    result: TuningResult,
    report: Path | None = None,
    resume_command: str | None = None,
    *,
    with_notes: bool = True,
) -> tuple[str, ...]:
    """`report` is the page, or the result where there is none; `resume_command` continues a run that was cut short.

    Without `with_notes` notes are only counted: they were shown while the run went on.
    """
    winner, warned = result.best and (result.best_at_your_batch or result.best), warning(result)
    if winner is None:
        head, beside, code, said = [warned or ""], seen_once(result), list[str](), list[str]()
    else:
        head = [_headline(result, winner)]
        beside = (*_other_batch(result, winner), *([warned] if warned else []))
        code = _code(result, winner)
        said = _wrapped([*_gains(result, winner), *bottleneck_sentence(result)])
    head, more = _wrapped(head), _wrapped(beside)
    if len(head) + len(more) + len(code) <= CODE_END:
        head, more = [*head, *more], []
    code_of = _EXPORT if result.remedies is not None and result.remedies.config is not None else "Code: in the report."
    below = _wrapped(f"{changed} {code_of}" for changed in best_with_changes(result)) + more
    end = [] if resume_command is None else [f"To continue: {resume_command}"]
    room = LINES - 1 - sum(map(len, (head, code, below, end)))
    said = said if len(said) <= room else []
    table = _table(result, winner, room - len(said))
    late = late_sentence(result)
    notes = (*late, *result.notes)
    shown = len(notes if with_notes else late)
    while shown and len(_wrapped(notes[:shown])) > room - len(said) - len(table) - (2 if winner else 0):
        shown -= 1
    left = f", with {counted(len(notes) - shown, 'more note' if shown else 'note')}" if notes[shown:] else ""
    end = [*_wrapped(notes[:shown]), *([] if report is None else [f"Report{left}: {report}"]), *end]
    return _spaced(head, [*code, *below], [*table, *said], end)


def _wrapped(sentences: Iterable[str]) -> list[str]:
    """A no-break space keeps a command on one line."""
    lines = [line for each in sentences for line in textwrap.wrap(each, WIDTH)]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _spaced(head: list[str], code: list[str], *others: list[str]) -> tuple[str, ...]:
    """With an empty line between blocks, where there is room and the code still ends early enough."""
    lines, spare = head, LINES - sum(map(len, (head, code, *others)))
    for block in (code, *others):
        if block and spare > 0 and (block is not code or len(head) + len(code) < CODE_END):
            lines, spare = [*lines, ""], spare - 1
        lines = [*lines, *block]
    return tuple(lines)


def _headline(result: TuningResult, winner: Winner) -> str:
    """The rate, the gain over the user's settings, and how many runs each is from."""
    if winner.config == result.yours:
        return f"{keep_text(result, winner)} {_rate(result, winner)}."
    at = f"Batch {winner.config.batch_size}: " if winner == result.best_at_your_batch else ""
    base = "PyTorch's defaults" if set(_ASSUMED) <= set(result.assumed) else "your settings"
    over = f"; {base} could not be measured"
    if winner.gain is not None:
        over = f", {_gain(winner.gain)} {base}{_runs(result, result.yours)}"
    return f"{at}{_rate(result, winner)}{over}."


def _rate(result: TuningResult, winner: Winner) -> str:
    return f"{_figure(winner.picked_by)} {SCORE_UNITS[result.config.objective]}{_runs(result, winner.config)}"


def _figure(found: Interval) -> str:
    """``2,890 ± 479``; the value alone where there is no interval."""
    return number_text(found.value) + ("" if found.half_width is None else f" ± {number_text(found.half_width)}")


def _runs(result: TuningResult, config: TrialConfig | None) -> str:
    found = config and finalist_of(result, config)
    return f" ({counted(len(found.runs), 'run')})" if found else ""


def _other_batch(result: TuningResult, winner: Winner) -> tuple[str, ...]:
    """What another batch size than the user's brings. It changes the optimization, so it is said apart."""
    best = result.best
    if best is None or best.config.batch_size == winner.config.batch_size:
        return batch_caution(result)
    over = "" if best.gain is None else f", {_gain(best.gain)}"
    return (f"Batch {best.config.batch_size}: {_rate(result, best)}{over}. Retune the learning rate.",)


def _gain(gain: Interval) -> str:
    return gain_text(gain, "99% interval ")


def _code(result: TuningResult, winner: Winner) -> list[str]:
    """The loader, and what the recipe changes in a plain training step. Empty: the user's settings are the answer."""
    if winner.config == result.yours:
        return []
    settings = loader_kwargs(result, winner.config)
    step = changed_statements(result, winner.config, Recipe())
    if result.yours is not None and loader_kwargs(result, result.yours) == settings:
        return ["Your DataLoader is right as it is. All of the gain is in the training step:", *step]
    others = ["..."] if has_own_loader(result) else ["shuffle=True", "drop_last=True"]
    call = ", ".join(["dataset", *others, *(f"{name}={value!r}" for name, value in settings.items())])
    return [*textwrap.wrap(f"loader = DataLoader({call})", WIDTH, subsequent_indent="    "), *step]


def _table(result: TuningResult, winner: Winner | None, room: int) -> list[str]:
    """The contestants of the final, fastest first; where not all fit, the answers and the baseline stay."""
    labels = {} if result.best is None else {result.best.config: f"at {result.best.config.batch_size}"}
    labels |= {} if winner is None else {winner.config: _ANSWER}
    labels |= {} if result.yours is None else {result.yours: "baseline"}
    labels |= {found.config: _CHANGE for found in result.finalists if found.config.remedies}
    places = [_ANSWER, "baseline", *labels.values(), _CHANGE, ""]
    rows = [_row(result, found, labels.get(found.config, "")) for found in result.finalists if found.runs]
    rows = sorted(rows, key=lambda row: (places.index(row[1]), -row[0]))[: max(0, room - 1)]
    if not rows:
        return []
    title = f"{result.config.workload.title} on {result.device.name}, measured alternately"
    cells = [
        ("", title, f"{SCORE_UNITS[result.config.objective]} (95%)", "runs"),
        *(row[1:] for row in sorted(rows, key=lambda row: -row[0])),
    ]
    label, _, rate, runs = (max(map(len, column)) for column in zip(*cells, strict=True))
    lines = []
    for name, words, figure, count in cells:
        first = "" if words is title else f"{name:<{label}}  "
        shown = textwrap.shorten(words, WIDTH - len(first) - rate - runs - 4, placeholder=" …")
        lines.append(f"{f'{first}{shown}':<{WIDTH - rate - runs - 4}}  {figure:>{rate}}  {count:>{runs}}")
    return lines


_ANSWER, _CHANGE = "answer", "+ change"

_Row = tuple[float, str, str, str, str]
"""Rate, label, settings, rate with its interval, number of runs."""


def _row(result: TuningResult, found: Finalist, label: str) -> _Row:
    assumed = [name for name in _ASSUMED if name in result.assumed and found.config == result.yours]
    marks = ["assumed" if len(assumed) == len(_ASSUMED) else "partly assumed"] if assumed else []
    marks += [] if found.unconfirmed is None else ["not confirmed"]
    kept = result.remedies and result.remedies.config
    marks += ["not proven"] if found.config.remedies and found.config != kept else []
    config = replace(found.config, remedies=()) if label == _CHANGE else found.config
    settings = settings_text(config) + (f" ({'; '.join(marks)})" if marks else "")
    score = found.scored(result.config.objective)
    return score.value, label, settings, _figure(score), str(len(found.runs))


def _gains(result: TuningResult, winner: Winner) -> tuple[str, ...]:
    words = [
        f"{each.name} {ratio_text(each.ratio.value)}{'' if each.is_measured else ' (predicted)'}"
        for each in steps(result, winner)
    ]
    if words and result.remedies is not None and result.remedies.gain is not None and winner == result.best:
        words.append(f"change of the code {ratio_text(result.remedies.gain.value)}")
    return (f"The gain in steps: {', then '.join(words)}.",) if words else ()
