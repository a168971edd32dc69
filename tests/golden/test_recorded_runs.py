"""Runs that a GPU made, as they were stored: judged again, and shown in README."""

from pathlib import Path

import pytest

from loadtune import load_result
from loadtune.final.winner import Verdict, finalists
from loadtune.report.terminal_answer import terminal_answer

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "benchmarks" / "results").glob("*-h?00/*/result.json"))
README_RUN = ROOT / "benchmarks" / "results" / "2026-11-26-h100" / "train" / "result.json"


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_a_recorded_run_is_judged_as_it_was_in_22_lines(path: Path) -> None:
    result = load_result(path)
    outcomes = [(finalist.config, run) for finalist in result.finalists for run in finalist.runs]
    best = Verdict(finalists(outcomes, result.trials), result.yours).winner()
    assert best.config == result.best.config
    assert best.speedup.value == pytest.approx(result.best.speedup.value)
    assert best.speedup.low == pytest.approx(result.best.speedup.low)
    assert best.half_width_fraction == pytest.approx(result.best.half_width_fraction)
    assert len(terminal_answer(result, path)) <= 22


def test_readme_shows_what_the_recorded_run_ended_with() -> None:
    block = (ROOT / "README.md").read_text().split("<!-- output -->")[1].split("```")[1].strip().splitlines()
    shown = terminal_answer(load_result(README_RUN), Path(block[-1].rpartition(": ")[2]), with_notes=False)
    assert block == list(shown)
