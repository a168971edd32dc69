"""A stored winner measured again by a real bench: it holds against itself, and not against a claim of twice as much."""

import dataclasses
import json

import pytest
from bench_in_thread import BenchInThread
from bench_rig import spec_of, trial
from cli_rig import Command
from forms_rig import KEPT
from typer.testing import CliRunner

from loadtune.bench import BenchClient
from loadtune.cli import app
from loadtune.host import choose_device, read_host
from loadtune.records import Finalist, TuneConfig
from loadtune.report.store import load_result, write_result
from loadtune.study.stopping import StoppingRule
from loadtune.study.trial import run_trial
from loadtune.testing import FakeClock, FakeSensor

# 5 ms a sample are the wall on any machine, so that a busy one is hardly slower than a quiet one.
CONFIG = trial(batch_size=8)


@pytest.fixture
def in_thread(monkeypatch):
    monkeypatch.setattr("loadtune.bench.client.BenchProcess", BenchInThread)


def stored(folder):
    """A result whose winner was really measured here, three times."""
    host = read_host()
    device, clock = choose_device(host, "cpu"), FakeClock()
    with BenchClient(spec_of("SlowImages"), device, log_path=folder / "bench.log") as bench:
        rules = [StoppingRule(num_workers=0, max_s=0.8) for _ in range(3)]
        runs = tuple(run_trial(bench, FakeSensor(clock), clock, CONFIG, rule) for rule in rules)
    kept = load_result(KEPT)
    return dataclasses.replace(
        kept,
        host=host,
        device=device,
        config=TuneConfig(workload=spec_of("SlowImages"), time_budget_s=60.0),
        finalists=(Finalist(config=CONFIG, runs=runs),),
        best=dataclasses.replace(kept.best, config=CONFIG),
    )


def doubled(result):
    """The same, claiming twice as many samples in the same time."""
    (finalist,) = result.finalists
    runs = [
        dataclasses.replace(
            run, windows=tuple(dataclasses.replace(w, num_samples=2 * w.num_samples) for w in run.windows)
        )
        for run in finalist.runs
    ]
    return dataclasses.replace(result, finalists=(dataclasses.replace(finalist, runs=tuple(runs)),))


def test_a_baseline_holds_against_itself_and_a_doubled_one_does_not(tmp_path, in_thread):
    baseline = stored(tmp_path)
    (tmp_path / "true").mkdir()
    (tmp_path / "doubled").mkdir()
    write_result(baseline, tmp_path / "true")
    write_result(doubled(baseline), tmp_path / "doubled")

    command = Command(tmp_path / "run", "check", "--baseline", str(tmp_path / "true"), "--tolerance", "40%")
    try:
        held = command.end()
    finally:
        command.kill()
    assert held.code == 0, held.stdout + held.stderr
    assert "Held" in held.stdout
    assert held.stderr.count("of the baseline's mean") >= 3
    assert held.left_behind == []

    fell = CliRunner().invoke(app, ["check", "--baseline", str(tmp_path / "doubled"), "--tolerance", "10%", "--json"])
    found = json.loads(fell.stdout)
    assert (fell.exit_code, found["outcome"]) == (1, "fell"), found["reason"]
    assert found["ratio"]["high"] < 0.9
    assert found["ratio"]["ratio"] == pytest.approx(0.5, abs=0.15)
    assert len(found["runs"]) >= 3
