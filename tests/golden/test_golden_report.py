"""The report of one kept result, word for word, and its own JSON.

After a change that is meant: ``LOADTUNE_REGENERATE=1 pytest tests/golden``, and look at the difference.
"""

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from page_rig import on_cpu
from rich.console import Console

from loadtune import export
from loadtune.records.measurement import TrialFailure
from loadtune.records.memory import FitReport
from loadtune.records.result import Result
from loadtune.report.forms import FORMS, changes_code
from loadtune.report.tables import Table, banner, table_text
from loadtune.report.terminal import terminal_answer
from loadtune.store import as_json, load_result

HERE = Path(__file__).parent
KEPT = load_result(HERE / "result.json")
"""A made-up run in which everything a report can show is present."""


def answered(result: Result) -> str:
    report = Path("loadtune-results/FakeData-resnet50/2026-11-20T17-03-12Z/report.html")
    return "".join(f"{line}\n" for line in terminal_answer(result, report))


def exported() -> str:
    """In each form: the answer, the answer at the kept batch size, and one without workers on a CPU."""
    fused = on_cpu(fused=True, optimizer="adamw")
    return "".join(
        f"===== {form}\n{export(KEPT, form)}===== {form} --keep-batch-size\n{export(KEPT, form, keep_batch_size=True)}"
        f"===== {form}, on a CPU\n{export(fused, form)}"
        for form in FORMS
    )


def changes() -> str:
    """Of the code: each that was tried, with its gain or why there is none, and its lines."""
    sections = ((f"{each.title}\n{each.note}", *each.lines) for each in changes_code(KEPT))
    return "".join(f"{line}\n" for section in sections for line in section)


def ceiling() -> str:
    """As `print` shows one: sizes that trained, ran out of memory and hung."""
    hung = TrialFailure(kind="hang", phase="training", message="no sign of life")
    probes = (*KEPT.ceilings[0].probes, FitReport(precision="fp16", batch_size=3400, failure=hung))
    return f"{replace(KEPT.ceilings[0], probes=probes)}\n"


def machine() -> str:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    with console.capture() as capture:
        console.print(table_text(Table(columns=("", ""), rows=banner(KEPT.host, KEPT.device))))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


SHOWN = {
    "answer.txt": lambda: answered(KEPT),
    "banner.txt": machine,
    "ceiling.txt": ceiling,
    "changes.txt": changes,
    "exports.txt": exported,
    "result.json": lambda: as_json(KEPT),
}
"""Its JSON is written as it was read: nothing of it is lost."""


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.filterwarnings("ignore:The answer of the run:UserWarning")
def test_the_kept_result_reads_as_it_did(name: str) -> None:
    found = SHOWN[name]()
    if os.environ.get("LOADTUNE_REGENERATE"):
        (HERE / name).write_text(found, encoding="utf-8")
    assert found == (HERE / name).read_text(encoding="utf-8")
