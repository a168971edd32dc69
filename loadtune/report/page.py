"""Pages: what they show as plain data, and on disk as one HTML file each, whole or not at all. Its policy forbids a
browser any request, and any script but the two whose hashes it names.
"""

import base64
import hashlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtune.errors import ResultError
from loadtune.records.result import Result
from loadtune.report import sentences, tables, wording
from loadtune.report.figures import figures
from loadtune.report.forms import changes_code, loader_code, step_code
from loadtune.report.machine import banner
from loadtune.report.script import script_lines
from loadtune.store import load_result, result_files, write_whole
from loadtune.units import MISSING, bytes_text, counted, percent_text, rate_text, ratio_text, seconds_text

if TYPE_CHECKING:
    import jinja2

PAGE_FILE = "report.html"
MOST_NOTES = 5
_FILES = Path(__file__).parent / "page_files"


def write_page(result: Result, path: Path) -> Path:
    """One run. Raises ResultError where it cannot be written, or plotly.js is not installed."""
    return write_whole(path, _rendered("page.html.jinja", page_view(result)).encode())


def write_board(folders: Sequence[Path], path: Path) -> Path:
    """Every result below these folders on one page, which names those that cannot be read."""
    results, unread = list[Result](), list[str]()
    for file in sorted({file.resolve() for folder in folders for file in result_files(folder)}):
        try:
            results.append(load_result(file))
        except ResultError as error:
            unread.append(str(error))
    return write_whole(path, _rendered("board.html.jinja", board_view(results, unread)).encode())


def _rendered(template: str, view: dict[str, Any]) -> str:
    """With plotly.js where there are figures. Raises ResultError where it is not installed."""
    figures = view.get("figures", {}).items()
    plotly, script = _plotly_js() if figures else "", (_FILES / "page.js").read_text(encoding="utf-8")
    hashes = (hashlib.sha256(each.encode()).digest() for each in (plotly, script))
    return (
        _templates()
        .get_template(template)
        .render(
            page=view,
            drawn={
                f"{key}-{place}": {"data": panel.data, "layout": panel.layout}
                for key, panels in figures
                for place, panel in enumerate(panels)
            },
            style=(_FILES / "page.css").read_text(encoding="utf-8"),
            plotly=plotly,
            script=script,
            hashes=[base64.b64encode(each).decode() for each in hashes],
        )
    )


@cache
def _templates() -> "jinja2.Environment":
    """Compiled once in a process."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FILES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}  # its default sorts
    return made


def _plotly_js() -> str:
    """The script that the package ``plotly`` brings, read without importing that: nothing else of it is used."""
    spec = importlib.util.find_spec("plotly")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        file = Path(folder) / "package_data" / "plotly.min.js"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise ResultError("plotly.js was not found, which draws the page. The package plotly brings it: pip install plotly")


def page_view(result: Result) -> dict[str, Any]:
    best, headline = result.best, " ".join(sentences.seen_once(result))
    if best is not None:
        settings = "" if best.config == result.yours else f"{wording.settings_text(best.config)}: "
        headline = settings + sentences.answer_text(result, best)
    return {
        "title": f"{result.config.workload.title} on {result.device.name}",
        "subtitle": f"{result.created[:16].replace('T', ' ')} UTC, loadtune {result.loadtune_version}",
        "warning": sentences.warning(result),
        "headline": headline,
        "confirmed": tables.best_and_baseline(result),
        "sections": [tables.Section(title=title, lines=lines) for title, lines in _words(result).items() if lines],
        "code": _code(result),
        "machine": banner(result.host, result.device),
        "figures": figures(result),
        "changes": changes_code(result),
        "limits": limits_table(result),
        "trials": tables.trial_table(result),
    }


def _words(result: Result) -> dict[str, tuple[str, ...]]:
    at_yours = result.best_at_your_batch
    kept = [sentences.keep_text(result, at_yours)] if at_yours and at_yours != result.best else []
    notes = result.notes[:MOST_NOTES]
    if more := result.notes[MOST_NOTES:]:
        notes = (*notes, f"{counted(len(more), 'more note')} in result.json.")
    stages = ", ".join(
        f"{wording.STAGE_TEXT.get(stage, stage)} {seconds_text(s)}" for stage, s in result.stage_seconds.items()
    )
    took, tried = seconds_text(result.seconds), counted(len(result.trials), "trial")
    return {
        "Answer": (*filter(None, kept), *sentences.best_with_changes(result), *sentences.batch_caution(result)),
        "Bottleneck": sentences.limit_sentences(result),
        "Memory format and optimizer, compute only": tuple(
            wording.recipe_line(each) for each in result.recipes if not result.config.workload.command
        ),
        "Time taken": (f"{took}: {stages or 'nothing was measured'}; {tried}.",),
        "Notes": notes,
    }


def _code(result: Result) -> list[tables.Section]:
    """Of what is proven better; at the user's batch size only what differs from the best."""
    blocks = dict[str, str]()
    for where, winner in {"": result.best, " at your batch size": result.best_at_your_batch}.items():
        if winner is None or winner.config == result.yours:
            continue
        if result.config.workload.command:
            blocks.setdefault("\n".join(script_lines(result, winner.config)), f"What to type{where}")
        else:
            blocks.setdefault(loader_code(result, winner.config), f"Loader{where}")
            blocks.setdefault(step_code(result, winner.config), f"Training step{where}")
    return [tables.Section(title=title, lines=tuple(code.splitlines())) for code, title in blocks.items()]


def limits_table(result: Result) -> tables.Table:
    rows, trained = list[tuple[str, ...]](), {choice.chosen for choice in result.recipes}
    for each in result.ceilings:
        predicted = "" if each.verified else " (predicted)"
        sizes = [f"{size:,}{predicted}" for size in (each.safe_batch_size, each.batch_size)]
        # Other points are of recipes that were turned down, or of the user's own.
        timed = [p for p in result.compute_points if p.recipe in trained and p.recipe.precision == each.precision]
        alone = max(timed, key=lambda point: point.samples_per_s, default=None)
        ran = ", ".join(f"{p.batch_size:,}{'' if p.fits else ' failed'}" for p in each.probes)
        rate = MISSING if alone is None else f"{rate_text(alone.samples_per_s)} at batch {alone.batch_size:,}"
        limit = wording.limit_text(each.limit, result.device.kind)
        rows.append((each.precision, *sizes, limit, bytes_text(each.budget_bytes), rate, ran))
    columns = ("", "safe batch", "largest", "limited by", "memory for training", "compute-only rate", "sizes run")
    return tables.Table(title="Limits of each precision", columns=columns, rows=tuple(rows))


def board_view(results: Sequence[Result], unread: Sequence[str] = ()) -> dict[str, Any]:
    """A row for each result; those of one workload and machine stand together, the newest first.

    ``unread``: files that are no result this loadtune can read, and why.
    """
    rows = [_row(result) for result in sorted(results, key=lambda one: one.created, reverse=True)]
    rows.sort(key=lambda row: [row.by_column[each].text for each in ("workload", "machine")])
    num_answers = sum(row.outcome == "answer" for row in rows)
    return {
        "title": "Benchmark board",
        "subtitle": f"{counted(len(results), 'result')}, {num_answers} with an answer",
        "rows": rows,
        "unread": unread,
    }


def _row(result: Result) -> tables.SortedRow:
    best = None if result.best is None or result.best.inconclusive else result.best
    spec = result.config.workload
    size = "" if spec.image_size is None else f"{spec.image_size} pixels"
    classes = "" if spec.num_classes is None else counted(spec.num_classes, "class")
    workload = ", ".join(filter(None, (spec.title, size, classes, spec.named_optimizer)))  # what makes a training step
    by_column = {
        "when (UTC)": tables.Cell(result.created[:16].replace("T", " ")),
        "workload": tables.Cell(workload),
        "machine": tables.Cell(f"{result.device.name}, {counted(result.host.num_usable_cores, 'core')}"),
        "samples/s": tables.number(best.throughput if best else None, wording.interval_text),
        "over the baseline": tables.number(best.speedup.value if best and best.speedup else None, ratio_text),
        "of compute-only": tables.number(best.compute_fraction if best else None, percent_text),
        "configuration": tables.Cell(wording.settings_text(best.config) if best else MISSING),
        "host": tables.Cell(result.host.hostname),
        "torch": tables.Cell(result.host.torch or MISSING),
    }
    return tables.SortedRow(outcome="answer" if best else "no answer", by_column=by_column)
