"""``loadtune exec``: the script's own output, exit code and signals, and what is said where nothing was tuned."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import inflight_jobs
import pytest

ROOT = Path(__file__).parents[2]
JOB = [sys.executable, inflight_jobs.__file__, "plain", "--steps", "64", "--sample", "0.0007", "--step", "0.001"]


def command(*arguments, options=()):
    return [sys.executable, "-m", "loadtune", "exec", *options, "--", *arguments]


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def run(*arguments, options=(), **more):
    done = subprocess.run(
        command(*arguments, options=options), env=environment(**more), capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_output_folder_and_exit_code_are_the_scripts_own(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.of_the_user = 'chained'")
    code = "import os, sys; print(of_the_user, os.getcwd(), sys.argv[1:]); sys.exit(7)"
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    done = run(sys.executable, "-c", code, "--epochs", "2", PYTHONPATH=path)
    assert done.returncode == 7
    assert done.stdout == f"chained {os.getcwd()} ['--epochs', '2']\n"
    assert "no process imported torch's DataLoader" in done.stderr


def test_a_script_that_it_cannot_reach_is_said():
    done = run(sys.executable, "-I", "-c", "pass")
    assert done.returncode == 0
    assert "was not active" in done.stderr


def test_a_command_that_is_not_there_is_an_error():
    done = run("/no/such/command")
    assert done.returncode == 2
    assert "cannot be run" in done.stderr


@pytest.mark.parametrize(("number", "handled"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_signals_reach_the_script(number, handled):
    code = "import signal, sys, time\n"
    code += "signal.signal(signal.SIGINT, lambda *_: sys.exit(9))\n" if handled else ""
    code += "print('up', flush=True); time.sleep(60)"
    with subprocess.Popen(
        command(sys.executable, "-c", code), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(60) == (9 if handled else -number)


def test_a_training_is_tuned_and_its_switches_can_be_repeated(tmp_path):
    plain = subprocess.run(JOB, capture_output=True, text=True, check=True, timeout=120).stdout.split()
    first = run(*JOB, options=("--out", str(tmp_path / "out"), "--max-workers", "3"), LOADTUNE_RAISE="1")
    assert first.stdout.split()[:2] == plain[:2]
    assert "Samples at inflight_jobs.py:" in first.stderr
    (loader,) = json.loads((tmp_path / "out/inflight.json").read_text())["loaders"]

    replay = ("--replay", str(tmp_path / "out/inflight.json"), "--out", str(tmp_path / "again"))
    second = run(*JOB, options=replay, LOADTUNE_RAISE="1")
    assert second.stdout.split()[:2] == plain[:2]
    (again,) = json.loads((tmp_path / "again/inflight.json").read_text())["loaders"]
    assert again["switches"] == loader["switches"]


def test_the_script_ends_once_it_is_tuned():
    done = run(*JOB, "--steps", "100000", options=("--until-tuned", "--max-workers", "2"), LOADTUNE_RAISE="1")
    assert done.returncode == 0
    assert done.stdout == ""
    assert "ends the script" in done.stderr
    assert "Samples at inflight_jobs.py:" in done.stderr


def test_what_is_no_result_is_not_replayed(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    done = run("true", options=("--replay", str(tmp_path / "other.json")))
    assert done.returncode == 2
    assert "is no result of loadtune exec" in done.stderr
