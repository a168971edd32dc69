"""A stored winner measured again by a real training: what is true of it holds, and a claim of twice as much does
not."""

import dataclasses
import json

import pytest
from cli_rig import Command
from page_rig import GOLDEN as KEPT
from study_rig import measured
from training_rig import spec_of, trial
from typer.testing import CliRunner

from loadtune.cli import app
from loadtune.host.machine import choose_device, read_host
from loadtune.records.config import TuneConfig
from loadtune.records.result import Finalist
from loadtune.report.store import load_result, write_result

CONFIG = trial(batch_size=4)


PACE_PER_S = 50.0


def claiming(rate, folder):
    """A kept result on this machine whose winner reached about so many samples/s, three times."""
    host, kept = read_host(), load_result(KEPT)
    runs = tuple(measured(rate * r) for r in (0.98, 1, 1.02))
    result = dataclasses.replace(
        kept,
        host=host,
        device=choose_device(host, "cpu"),
        config=TuneConfig(workload=spec_of("PacedImages"), time_budget_s=30.0),
        facts=None,
        finalists=(Finalist(config=CONFIG, runs=runs),),
        best=dataclasses.replace(kept.best, config=CONFIG),
    )
    folder.mkdir()
    return str(write_result(result, folder))


def test_what_is_true_holds_and_a_claim_of_twice_as_much_does_not(tmp_path, in_thread):
    true, doubled = claiming(PACE_PER_S, tmp_path / "true"), claiming(2 * PACE_PER_S, tmp_path / "doubled")
    with Command(tmp_path / "run", "compare", true, "--measure", "--tolerance", "50%") as command:
        held = command.end()
    assert held.code == 0, held.stdout + held.stderr
    assert "Held" in held.stdout
    assert held.stderr.count("of the baseline's samples/s") >= 3
    assert held.left_behind == []
    assert list((tmp_path / "run").glob("tmp-*/*")) == []
    assert load_result(tmp_path / "run" / "cwd" / "loadtune-results").best.config == CONFIG

    words = ["compare", doubled, "--measure", "--tolerance", "10%", "--json", "--out", str(tmp_path / "out")]
    fell = CliRunner().invoke(app, words)
    found = json.loads(fell.stdout)
    assert (fell.exit_code, found["outcome"]) == (1, "fell"), found["reason"]
    ratio = found["comparison"]["ratio"]
    assert ratio["high"] < 0.9
    assert ratio["value"] == pytest.approx(0.5, abs=0.2)
    assert len(load_result(tmp_path / "out").finalists[0].runs) >= 3
