"""``loadtune exec``: the script's own output, exit code and signals, and what is said where nothing was tuned."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import inflight_jobs
import pytest

ROOT = Path(__file__).parents[2]
JOB = [sys.executable, inflight_jobs.__file__, "plain", "--steps", "64", "--sample", "0.0007", "--step", "0.001"]


OTHER_TYPES = '{"schema_version": 1, "loaders": [{"name": "a", "own_workers": 1, "num_workers": "2"}]}'
EXEC = [sys.executable, "-m", "loadtune", "exec"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "LOADTUNE_RAISE": "1"}


def run(*arguments, options=(), **more):
    command, environment = [*EXEC, *options, "--", *arguments], ENVIRONMENT | more
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_output_folder_and_exit_code_are_the_scripts_own(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.of_the_user = 'chained'")
    code = "import os, sys; print(of_the_user, os.getcwd(), sys.argv[1:], os.environ['LOADTUNE_CACHE']); sys.exit(7)"
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    done = run(sys.executable, "-c", code, "--epochs", "2", PYTHONPATH=path, LOADTUNE_CACHE="kept")
    assert done.returncode == 7
    assert done.stdout == f"chained {os.getcwd()} ['--epochs', '2'] {os.path.abspath('kept')}\n"
    assert "no process imported torch's DataLoader" in done.stderr
    code = "import os, subprocess, sys; own = {'PYTHONPATH': os.environ['PYTHONPATH']}\n"
    code += "sys.exit(subprocess.run([sys.executable, '-c', 'import torch.utils.data'], env=own).returncode)"
    assert run(sys.executable, "-c", code).returncode == 0, "a child without our variables"


@pytest.mark.parametrize(
    ("command", "options", "code", "said"),
    [
        ((sys.executable, "-I", "-c", "pass"), (), 0, "was not active"),
        (("/no/such/command",), (), 2, "cannot be run"),
        (("true",), ("--replay", __file__), 2, "is no result of loadtune exec"),
        (("true",), ("--batch-size", "64"), 2, "`loadtune run` compares batch sizes"),
    ],
)
def test_what_it_cannot_do_is_said(command, options, code, said):
    done = run(*command, options=options)
    assert done.returncode == code
    assert said in done.stderr


@pytest.mark.parametrize("kept", ['{"schema_version": 999, "loaders": []}', '{"schema_ver', OTHER_TYPES])
def test_what_was_kept_by_another_version_or_in_half_changes_no_exit_code_and_is_said_once(kept):
    code = "import json, os, sys; folder = json.loads(os.environ['LOADTUNE_EXEC'])['folder']\n"
    code += "open(f'{folder}/1.json', 'w').write(sys.argv[1])"
    done = run(sys.executable, "-c", code, kept)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert re.search("what .*found", done.stderr)


def test_another_loadtune_of_the_script_stays_its_own_and_is_named(tmp_path):
    for name in ("loadtune", "loadtune/inflight"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("its = 'the own one'")
    (tmp_path / "loadtune/inflight/hook.py").write_text("def install(): print('of another version')")
    script = tmp_path / "script.py"
    script.write_text("import torch.utils.data\nimport loadtune\nprint(loadtune.its)")
    done = run(sys.executable, str(script))
    assert (done.returncode, done.stdout) == (0, "the own one\n")
    assert f"would import another loadtune: {tmp_path / 'loadtune' / '__init__.py'}" in done.stderr
    assert "no process imported" not in done.stderr


@pytest.mark.parametrize(("number", "handled"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_signals_reach_the_script(number, handled):
    code = "import signal, sys, time\n"
    code += "signal.signal(signal.SIGINT, lambda *_: sys.exit(9))\n" if handled else ""
    code += "print('up', flush=True); time.sleep(60)"
    command, pipe, null = [*EXEC, "--", sys.executable, "-c", code], subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=null) as process:
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(60) == (9 if handled else -number)


def test_a_script_whose_launcher_was_killed_goes_on_and_tidies_up(tmp_path):
    command = [*EXEC, "--freeze", "Nobody", "--", *JOB]
    with subprocess.Popen(
        command, env=ENVIRONMENT | {"TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True
    ) as process:
        while not list(tmp_path.glob("loadtune-*/hooked")):
            assert process.poll() is None
        process.kill()
        said = process.stderr.read()  # until the script has ended, too
    assert "waits for data" in said, "it says itself what was found"
    assert list(tmp_path.glob("loadtune-*")) == []


def test_a_training_is_tuned_and_its_switches_can_be_repeated(tmp_path):
    plain = subprocess.run(JOB, capture_output=True, text=True, check=True, timeout=120).stdout.split()
    first = run(*JOB, options=("--out", str(tmp_path / "out"), "--max-workers", "3"))
    assert first.stdout.split()[:2] == plain[:2]
    assert "Samples at inflight_jobs.py:" in first.stderr
    (loader,) = json.loads((tmp_path / "out/inflight.json").read_text())["loaders"]

    replay = ("--replay", str(tmp_path / "out/inflight.json"), "--out", str(tmp_path / "again"))
    second = run(*JOB, options=replay)
    assert f": {loader['own_workers']} → {loader['switches'][-1]['num_workers']} worker" in second.stderr
    assert second.stdout.split()[:2] == plain[:2]
    (again,) = json.loads((tmp_path / "again/inflight.json").read_text())["loaders"]
    assert again["switches"] == loader["switches"]


def test_the_script_ends_once_it_is_tuned():
    done = run(*JOB, "--steps", "100000", options=("--until-tuned", "--max-workers", "2"))
    assert done.returncode == 0
    assert done.stdout == ""
    assert "ends the script" in done.stderr
    assert "Samples at inflight_jobs.py:" in done.stderr


SHORT = """
import sys, time
from torch.utils.data import DataLoader
def collate(rows):
    time.sleep(0.01 * len(rows))
    return rows
for epoch in range(int(sys.argv[3])):
    for batch in DataLoader(range(int(sys.argv[1])), 16, num_workers=int(sys.argv[2]), collate_fn=collate):
        time.sleep(0.002)
"""


@pytest.mark.parametrize(("samples", "workers", "epochs", "is_proven"), [(640, 1, 6, True), (480, 3, 9, False)])
def test_epochs_too_short_for_many_steps_are_judged_whole(tmp_path, samples, workers, epochs, is_proven):
    """In the second case an epoch's rest is too short to switch in it, and one before the change proves no gain."""
    (tmp_path / "train.py").write_text(SHORT)
    done = run(sys.executable, str(tmp_path / "train.py"), str(samples), str(workers), str(epochs))
    assert re.search(rf": {workers} → \d+ workers: .*\d×", done.stderr), done.stderr
    assert ("  to keep it: DataLoader(..., num_workers=" in done.stderr) is is_proven, done.stderr
