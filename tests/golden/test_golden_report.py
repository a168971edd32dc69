"""The report of one kept result, word for word, and its own JSON, which later versions must still read.

After a change that is meant: ``LOADTUNE_REGENERATE=1 pytest tests/golden``, and look at the difference.
"""

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from page_rig import on_cpu
from rich.console import Console

from loadtune import export
from loadtune.records.measurement import TrialFailure
from loadtune.records.memory import FitReport
from loadtune.records.result import TuningResult
from loadtune.report.forms import FORMS, changes_code
from loadtune.report.machine import banner
from loadtune.report.store import as_json, load_result
from loadtune.report.tables import Table, table_text
from loadtune.report.terminal_answer import terminal_answer

HERE = Path(__file__).parent
KEPT = load_result(HERE / "result.json")
"""A made-up run in which everything a report can show is present."""


def answered(result: TuningResult) -> str:
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


def test_a_result_from_before_a_figure_was_kept_still_reads(tmp_path: Path) -> None:
    """What 0.1.0 kept, and no more: the rest is not known, and the report says what it said."""
    first = {"seconds", "gpu_utilization_fraction"}
    first |= {"cpu_utilization_fraction", "training_rss_bytes"}
    older = json.loads((HERE / "result.json").read_text(encoding="utf-8"))
    for measured in (*older["trials"], *older["finalists"]):
        for run in (measured.get("measurement"), *measured.get("runs", ())):
            if run:
                run["telemetry"] = {name: value for name, value in run["telemetry"].items() if name in first}
                del run["steps"]
                run["repeated"] = True  # is no longer kept
    (tmp_path / "result.json").write_text(json.dumps(older), encoding="utf-8")
    read = load_result(tmp_path / "result.json")
    telemetry = read.finalists[0].runs[0].telemetry
    assert telemetry.gpu_utilization_fraction == pytest.approx(0.93)
    assert (telemetry.timeline, telemetry.missing, read.steps) == (None, {}, ())
    assert answered(read) == answered(KEPT)
