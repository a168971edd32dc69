"""The report of one kept result, word for word, and its own JSON, which later versions must still read.

After a change that is meant: ``LOADTUNE_REGENERATE=1 pytest tests/golden``, and look at the difference.
"""

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from loadtune.records.result import TuningResult
from loadtune.report.machine import banner
from loadtune.report.store import as_json, load_result
from loadtune.report.tables import banner_text
from loadtune.report.terminal_answer import terminal_answer

HERE = Path(__file__).parent
KEPT = load_result(HERE / "result.json")
"""A made-up run in which everything a report can show is present."""


def answered(result: TuningResult, resume_command: str | None = None) -> str:
    report = Path("loadtune-results/FakeData-resnet50/2026-11-20T17-03-12Z/report.html")
    return "".join(f"{line}\n" for line in terminal_answer(result, report, resume_command))


@pytest.mark.parametrize("name", ["answer.txt", "banner.txt", "result.json"])
def test_the_kept_result_reads_as_it_did(name: str) -> None:
    """Its JSON is written as it was read: nothing of it is lost."""
    console = Console(file=io.StringIO(), width=80, color_system=None)
    with console.capture() as capture:
        console.print(banner_text(banner(KEPT.host, KEPT.device)))
    found = {
        "answer.txt": answered(KEPT),
        "banner.txt": "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()),
        "result.json": as_json(KEPT).decode(),
    }[name]
    if os.environ.get("LOADTUNE_REGENERATE"):
        (HERE / name).write_text(found, encoding="utf-8")
    assert found == (HERE / name).read_text(encoding="utf-8")


def test_a_result_from_before_a_figure_was_kept_still_reads(tmp_path: Path) -> None:
    """What 0.1.0 kept of the machine, and no more: the rest is not known, and the report says what it said."""
    first = {"seconds", "gpu_utilization_fraction"}
    first |= {"cpu_utilization_fraction", "training_cpu_cores", "training_rss_bytes"}
    older = json.loads((HERE / "result.json").read_text(encoding="utf-8"))
    for measured in (*older["trials"], *older["finalists"]):
        for run in (measured.get("measurement"), *measured.get("runs", ())):
            if run:
                run["telemetry"] = {name: value for name, value in run["telemetry"].items() if name in first}
    (tmp_path / "result.json").write_text(json.dumps(older), encoding="utf-8")
    read = load_result(tmp_path / "result.json")
    telemetry = read.finalists[0].runs[0].telemetry
    assert telemetry.gpu_utilization_fraction == pytest.approx(0.93)
    assert (telemetry.timeline, telemetry.missing) == (None, {})
    assert answered(read) == answered(KEPT)


CUT = replace(KEPT, cut_short="interrupted by Ctrl-C")
NO_WINNER = replace(KEPT, best=None, best_at_your_batch=None, finalists=())
COMPILED = replace(KEPT.best_at_your_batch.config.recipe, compile=True)
MOST_CODE = replace(KEPT.best_at_your_batch.config, recipe=COMPILED)
"""Every line of code that there can be for batches that are trained on one by one."""


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(KEPT, id="complete"),
        pytest.param(replace(NO_WINNER, cut_short="interrupted by Ctrl-C"), id="cut-short-without-winner"),
        pytest.param(replace(NO_WINNER, trials=(), bottleneck=None), id="no-trial"),
        pytest.param(
            replace(CUT, best_at_your_batch=replace(KEPT.best_at_your_batch, config=MOST_CODE)), id="most-code"
        ),
    ],
)
def test_the_answer_has_at_most_22_lines_of_100_columns_and_its_code_within_12(result: TuningResult) -> None:
    lines = answered(result, "loadtune run --resume runs" if result.cut_short else None).splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 100
    assert ("To continue: loadtune run --resume runs" in lines) == (result.cut_short is not None)
    if result.best is not None:
        early = "\n".join(lines[:12])
        code = ("loader = DataLoader(", "channels_last)", "fused=True", "GradScaler(", "autocast(", "scaler.step(")
        assert all(part in early for part in code)
