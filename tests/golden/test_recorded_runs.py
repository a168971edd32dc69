"""Runs that a GPU made, as they were stored: judged again, and shown in README."""

from pathlib import Path

import pytest

from loadtune import load_result
from loadtune.decide.final import Verdict
from loadtune.records.result import Attempt
from loadtune.report.terminal import terminal_answer

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "benchmarks" / "results").glob("*-h?00/*/result.json"))
README_RUN = ROOT / "benchmarks" / "results" / "2026-11-29-h200" / "train" / "result.json"


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_a_recorded_run_is_judged_as_it_was_in_22_lines(path: Path) -> None:
    result = load_result(path)
    ran = [Attempt(config=each.config, measurement=run) for each in result.finalists for run in each.runs]
    best = Verdict(ran=ran, yours=result.yours, trials=result.trials).winner()
    assert best.config == result.best.config
    assert best.speedup.value == pytest.approx(result.best.speedup.value)
    assert best.speedup.low == pytest.approx(result.best.speedup.low)
    # Recorded with a bound for the most extreme of several means that was up to a tenth narrower than Bonferroni's.
    assert 1.0 <= best.half_width_fraction / result.best.half_width_fraction < 1.1
    assert len(terminal_answer(result, path)) <= 22


def test_readme_shows_what_the_recorded_run_ended_with() -> None:
    block = (ROOT / "README.md").read_text().split("<!-- output -->")[1].split("```")[1].strip().splitlines()
    shown = terminal_answer(load_result(README_RUN), Path(block[-1].rpartition(": ")[2]), with_notes=False)
    assert block == list(shown)
