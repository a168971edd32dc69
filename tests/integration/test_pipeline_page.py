"""The report page at the end of a run: always there, and never what ends a run."""

from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.report.store import load_result
from loadtune.testing import FakeBench
from loadtune.units import rate_text

pytestmark = pytest.mark.usefixtures("study_in_memory")


def test_a_run_ends_with_its_page(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(), tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert result.best is not None
    assert rate_text(result.best.samples_per_s) in page
    assert page.count("<tr data-outcome=") == len(result.trials)


def test_ctrl_c_while_the_page_is_made_is_a_note(tmp_path: Path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("loadtune.tuner.write_page", fail)
    warned: list[str | None] = []
    result = tune_fake(FakeBench(), tmp_path, listener=lambda progress: warned.append(progress.message))
    assert result.best is not None
    assert "The report page was not written" in result.notes[-1]
    assert result.notes[-1] in warned
    assert load_result(tmp_path) == result
