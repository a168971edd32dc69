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
import spare_rig
from forked import finished

ROOT = Path(__file__).parents[2]
JOB = [sys.executable, inflight_jobs.__file__, "plain", "--steps", "64", "--sample", "0.0007", "--step", "0.001"]


OTHER_TYPES = '{"loaders": [{"name": "a", "own_workers": 1, "num_workers": "2"}]}'
EXEC = [sys.executable, "-m", "loadtune", "exec"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "LOADTUNE_RAISE": "1"}


def run(*arguments, options=(), folder=None, **more):
    """With a folder for what is printed all processes are forked from this one, else they are new interpreters."""
    command, environment = [*EXEC, *options, "--", *arguments], ENVIRONMENT | more
    if folder is None:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    else:
        done = finished(command, folder / "tuned", env=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def without_it(folder, *command, **more):
    """Exit code and output of the same script alone."""
    done = finished(command, folder / "plain", env=ENVIRONMENT | more)
    return done.returncode, done.stdout


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
        (("true",), ("--batch-size", "64"), 2, "`loadtune run` compares batch sizes"),
    ],
)
def test_what_it_cannot_do_is_said(command, options, code, said):
    done = run(*command, options=options)
    assert done.returncode == code
    assert said in done.stderr


@pytest.mark.parametrize("kept", ['{"loaders": [{"of_another": 1}]}', '{"loade', OTHER_TYPES])
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


def test_a_training_is_tuned_and_its_switches_are_written(tmp_path):
    code, plain = without_it(tmp_path, *JOB)
    done = run(*JOB, folder=tmp_path, options=("--out", str(tmp_path / "out"), "--max-workers", "3"))
    assert (code, done.stdout.split()[:2]) == (0, plain.split()[:2])
    assert "Samples at inflight_jobs.py:" in done.stderr
    (loader,) = json.loads((tmp_path / "out/inflight.json").read_text())["loaders"]
    assert loader["switches"]


def test_the_script_ends_once_it_is_tuned(tmp_path):
    options = ("--until-tuned", "--max-workers", "2")
    done = run(*JOB, "--steps", "100000", folder=tmp_path, options=options)
    assert done.returncode == 0
    assert done.stdout == ""
    assert "ends the script" in done.stderr
    assert "Samples at inflight_jobs.py:" in done.stderr


ADVISED = """
import hashlib, os, sys, time
import spare_rig
import torch
from torch.utils.data import DataLoader
from loadtune.decide import advice
spare_rig.install()
advice.MISSED = 0.9  # other tests take the cores of the loop meanwhile; when it stops has a test of its own

def is_enough(number, most):
    if most is None:
        from loadtune.inflight import words
        from loadtune.inflight.account import accounts
        is_said = any("are predicted to gain" in line for _, line in words._said)
        return is_said or any(each.changes_reason for each in accounts())
    return number == most

def train(seconds, trouble, method, is_persistent, most):
    torch.manual_seed(3)
    given = {"num_workers": 2, "shuffle": True, "multiprocessing_context": method, "persistent_workers": is_persistent}
    loader, seen, number = DataLoader(spare_rig.Samples(1600, seconds, trouble), 16, **given), hashlib.sha256(), 0
    while not is_enough(number, most):
        for batch in loader:
            number += 1
            seen.update(str(batch[:, 0].tolist()).encode())
            if is_enough(number, most):
                break
    print(number, seen.hexdigest(), torch.rand(1).item(), flush=True)

if __name__ == "__main__":
    seconds, trouble, method, is_persistent, most = sys.argv[1:]
    train(float(seconds), trouble, method, is_persistent == "True", int(most) or None)
    sys.exit(5)
"""


@pytest.mark.parametrize(
    ("trouble", "method", "is_persistent", "options"),
    [
        ("print", "fork", True, ()),
        ("crash", "fork", False, ()),
        ("look", "fork", False, ("--no-advice",)),
    ],
)
def test_changes_of_the_code_are_tried_beside_the_loop(tmp_path, trouble, method, is_persistent, options):
    script, most = tmp_path / "script.py", 150 * ("--no-advice" in options)
    script.write_text(ADVISED)
    path = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    command = [sys.executable, str(script), "0.001", trouble, method, str(is_persistent), str(most)]
    done = run(*command, folder=tmp_path, options=("--max-workers", "2", "--out", str(tmp_path), *options), **path)
    number = done.stdout.split()[0]
    command[2], command[-1] = "0", number
    assert (done.returncode, done.stdout) == without_it(tmp_path, *command, **path)
    assert done.returncode == 5
    (loader,) = json.loads((tmp_path / "inflight.json").read_text())["loaders"]
    assert "printed by a dataset" not in done.stderr
    assert loader["changes_reason"] == ("its process ended" if trouble == "crash" else None)
    if trouble == "crash" or most:
        assert loader["changes"] == []
        assert "are predicted to gain" not in done.stderr
        return
    assert [each["name"] for each in loader["changes"]] == ["uint8_transfer"]
    assert 1.05 <= loader["changes_gain"] <= 2.0
    assert done.stderr.count("changes of your code are predicted to gain") == 2, done.stderr
    assert spare_rig.CODE in done.stderr
    code = subprocess.run([*EXEC[:-1], "export", str(tmp_path), "--change", "uint8"], capture_output=True, text=True)
    assert code.stdout.splitlines()[1:] == spare_rig.CODE.splitlines()


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
    done = run(sys.executable, str(tmp_path / "train.py"), *map(str, (samples, workers, epochs)), folder=tmp_path)
    assert re.search(rf": {workers} → \d+ workers: .*\d×", done.stderr), done.stderr
    assert ("  to keep it: DataLoader(..., num_workers=" in done.stderr) is is_proven, done.stderr
