"""Each script of the examples trains by itself and as its command says; one is tuned by Python objects."""

import ast
import math
import os
import re
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_rig import until
from forked import Forked, finished
from training_rig import CPU, Windows
from training_workloads import has_trial

from loadtune import load_result
from loadtune.api.given import TABLE, with_settings
from loadtune.cli.app import RUN
from loadtune.cli.command import settings
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig, TuneConfig
from loadtune.records.measurement import TrainingRun
from loadtune.records.memory import BatchTry
from loadtune.training.client import TrainingClient

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
UNDER_EXEC = EXAMPLES / "imagenet_ddp.py"
STORE = EXAMPLES / "object_store.py"
SCRIPTS = sorted(set(EXAMPLES.glob("*.py")) - {UNDER_EXEC, STORE})
NEEDS = {"huggingface_trainer": ("transformers", "accelerate"), "lightning_module": ("lightning",)}
"""Packages that loadtune does not need."""


def tune_command(script: Path) -> list[str]:
    """The words after ``Tune:`` in the docstring."""
    found = re.search(r"^Tune:\s+(.*)", ast.get_docstring(ast.parse(script.read_text("utf-8"))) or "", re.M | re.S)
    return shlex.split(found[1])


def parsed(script: Path) -> dict[str, object]:
    """What the command line makes of the command."""
    program, command, *arguments = tune_command(script)
    assert (program, command) == ("loadtune", "run")
    return RUN.read(arguments)


@pytest.fixture(params=SCRIPTS, ids=lambda script: script.stem)
def script(request) -> Path:
    for package in NEEDS.get(request.param.stem, ()):
        pytest.importorskip(package)
    return request.param


def test_it_trains_by_itself(script: Path, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # data that an earlier version made stays unread
    ran = finished([sys.executable, str(script)], tmp_path / "said", cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr
    losses = re.findall(r"loss\D{1,5}([\d.]+|nan)", ran.stdout + ran.stderr)
    assert losses
    assert all(math.isfinite(float(loss)) for loss in losses)


def test_two_ranks_train_under_exec(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    *command, folder = tune_command(UNDER_EXEC)
    assert (command[:3], folder) == (["loadtune", "exec", "--"], "FOLDER")
    small = ["--model", "shufflenet_v2_x0_5", "--batch-size", "8", "--size", "32", "--epochs", "1"]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path), "PATH": path}
    words = [sys.executable, "-m", *command, *small]
    ran = finished(words, tmp_path / "said", cwd=ROOT, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"epoch 0: loss \d", ran.stdout)
    assert "ImageFolder at imagenet_ddp.py" in ran.stderr


def test_images_of_an_object_store_are_read_under_exec(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    words = [sys.executable, "-m", "loadtune", "exec", "--", sys.executable, str(STORE), "1"]
    ran = finished(words, tmp_path / "said", cwd=ROOT, env=os.environ | {"IMAGES": "64"})
    assert ran.returncode == 0, ran.stderr  # and the store has ended: it has the pipes, too
    assert re.fullmatch(r"epoch 0: [\d.]+ s, \d+ images/s\n", ran.stdout)
    assert "StoredImages at object_store.py" in ran.stderr
    assert "Traceback" not in ran.stderr


THROUGH_A_WORKER = ("detection", "shards")
"""Lists, and a stream. The batches of most others are pairs of tensors, as in most tests with workers."""
NAMED = [script for script in SCRIPTS if script.stem not in NEEDS]


@pytest.mark.parametrize("script", NAMED, ids=lambda script: script.stem)
def test_the_training_process_trains_what_its_command_names(script: Path, request, monkeypatch, tmp_path: Path) -> None:
    """Described, probed for memory at twice its batch size, and timed."""
    through_a_worker = script.stem in THROUGH_A_WORKER
    request.getfixturevalue("forked" if through_a_worker else "in_thread")
    monkeypatch.chdir(ROOT)
    spec = with_settings(TuneConfig(), settings(TABLE, parsed(script))).workload
    with TrainingClient(spec, CPU, log_path=tmp_path / "training.log", hang_s=60.0) as training:
        facts = training.describe()
        loader = replace(facts.own_loader or LoaderConfig(batch_size=16), num_workers=int(through_a_worker))
        recipe = Recipe(precision=facts.precisions[0])
        tried = training.try_batch(BatchTry(recipe=recipe, batch_size=2 * loader.batch_size, verify=True))
        assert tried.failure is None
        assert tried.batch_size == 2 * loader.batch_size
        windows = Windows(2)
        timed = training.time_training(TrialConfig(loader=loader, recipe=recipe), 0.2, windows)
    assert isinstance(timed, TrainingRun)
    assert len(windows) == 2
    assert all(window.num_samples == window.num_steps * loader.batch_size for window in windows)
    assert (facts.dataset_length is None) == (script.stem == "shards")


def test_it_is_tuned(tmp_path: Path) -> None:
    """A script of Lightning, unchanged. It is asked to end once it has measured a trial."""
    pytest.importorskip("lightning")
    *options, python, path = tune_command(EXAMPLES / "lightning_module.py")[1:]
    assert (options, python) == (["run", "--"], "python")
    few = ("--precision", "fp32", "--max-batch-size", "64")
    words = ["-m", "loadtune", "run", "--device", "cpu", *few, "--out", str(tmp_path), "--", sys.executable, path]
    said = tmp_path / "said"
    with said.open("w") as output:
        running = Forked([sys.executable, *words], cwd=ROOT, env=os.environ, stdout=output, stderr=output)
    until(lambda: any(map(has_trial, tmp_path.glob("*/*/run.json"))) or running.poll() is not None, 160.0)
    running.send_signal(signal.SIGINT)
    running.wait()
    (stored,) = tmp_path.glob("*/*/result.json")
    assert any(trial.measurement for trial in load_result(stored).trials), said.read_text()
