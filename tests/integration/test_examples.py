"""Each script of the examples trains under the commands that its docstring names."""

import ast
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cli_rig import Command, Ended, files_below
from training_rig import CPU, Windows

from loadtune import load_result
from loadtune.api.given import TABLE, with_settings
from loadtune.cli.app import RUN
from loadtune.cli.command import NO_ANSWER, settings
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig, TuneConfig
from loadtune.records.measurement import TrainingRun
from loadtune.records.memory import BatchTry
from loadtune.training.client import TrainingClient

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NEEDS = ("torchvision", "transformers", "accelerate", "lightning")
"""Packages that loadtune does not need."""
SMALL = {
    "classification": ["--epochs", "1"],
    "imagenet_ddp": ["--model", "shufflenet_v2_x0_5", "--batch-size", "8", "--size", "32", "--epochs", "1"],
}
"""Options that make a script end soon. The others take a number of epochs."""
PRINTED = {
    "huggingface_trainer": r"(.*\n)*TrainOutput\(global_step=\d+, training_loss=\d+\.\d+, .*\n",
    "imagenet_ddp": r"epoch 0: loss \d+\.\d+, [\d.]+ s\n",
    "lightning_module": r"(.*\n)+loss \d+\.\d+\n",
    "object_store": r"epoch 0: [\d.]+ s, \d+ images/s\n",
}
"""All that a script prints. The others print the loss of each epoch."""


def commands(script: Path) -> list[list[str]]:
    """Those of the docstring: of exec, of run, and of a run of its functions, without ``loadtune``."""
    said = ast.get_docstring(ast.parse(script.read_text("utf-8"))) or ""
    return [shlex.split(words) for words in re.findall(r": +loadtune (.+)", said)]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch) -> Callable[..., Ended]:
    """Runs a command as it would be typed in the repository."""
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "examples").symlink_to(EXAMPLES)
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("IMAGES", "64")

    def end(script: Path, *words: str) -> Ended:
        source = script.read_text("utf-8")
        for package in [each for each in NEEDS if each in source]:
            pytest.importorskip(package)
        with Command(tmp_path, *words) as command:
            ended = command.end()
        assert ended.left_behind == []
        left = {path.name.partition("_")[0] for path in tmp_path.glob("tmp-*/*")}
        assert left <= {"loadtune-examples", "torchelastic"}  # data of the examples, and what torchrun leaves
        # Loggers of libraries that a test imported write to a stream of pytest, which is closed.
        assert ended.stderr.count("Traceback") == ended.stderr.count("--- Logging error ---"), ended.stderr
        return ended

    return end


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_trains_under_exec(script: Path, typed, tmp_path: Path) -> None:
    """It prints what it prints without, and loadtune says what it found of its loader."""
    under_exec, *others = commands(script)
    assert (under_exec[:2], others[0][:2], {each[0] for each in others}) == (["exec", "--"], ["run", "--"], {"run"})
    ended = typed(script, *(word for word in under_exec if word != "FOLDER"), *SMALL.get(script.stem, ["1"]))
    assert ended.code == 0, ended.stderr
    assert re.fullmatch(PRINTED.get(script.stem, r"epoch 0: loss \d+\.\d+\n"), ended.stdout), ended.stdout
    said = rf"^loadtune: (too few batches to measure: )?\w+ at {script.name}:\d+(: | has )"
    assert re.search(said, ended.stderr, re.M), ended.stderr
    assert files_below(tmp_path / "cwd") == []


ANSWER = r"^(python examples/|DataLoader\(|model = |with torch\.autocast|Nothing is|Keep your settings|Cut short)"
"""What to type, or why nothing is to be typed."""


@pytest.mark.parametrize(("name", "workers"), [("classification", 1), ("lightning_module", 0)])
def test_it_is_tuned_by_run(name: str, workers: int, typed, tmp_path: Path) -> None:
    """A loop with arguments that writes images, and a script of Lightning. Both are unchanged, and so are files."""
    script, few = EXAMPLES / f"{name}.py", ("--precision", "fp32", "--max-batch-size", "64")
    ended = typed(script, "run", "--time-budget", "30", "--device", "cpu", *few, *commands(script)[1][1:])
    assert ended.code in (0, NO_ANSWER), ended.stderr
    assert re.search(ANSWER, ended.stdout, re.M), ended.stdout
    (stored,) = tmp_path.glob("cwd/loadtune-results/*/*/result.json")
    result = load_result(stored)
    assert (result.yours.batch_size, result.yours.loader.num_workers) == (32, workers)
    assert result.finalists or any(trial.measurement for trial in result.trials)
    assert all(path.startswith("loadtune-results/") for path in files_below(tmp_path / "cwd"))
    assert list(tmp_path.glob("tmp-*/*")) == []  # no image is left


THROUGH_A_WORKER = ("detection", "shards")
"""Lists, and a stream. The batches of most others are pairs of tensors, as in most tests with workers."""
NAMED = [script for script in SCRIPTS if commands(script)[2:]]


@pytest.mark.parametrize("script", NAMED, ids=lambda script: script.stem)
def test_the_training_process_trains_what_its_command_names(script: Path, request, monkeypatch, tmp_path: Path) -> None:
    """Described, probed for memory at twice its batch size, and timed."""
    through_a_worker = script.stem in THROUGH_A_WORKER
    request.getfixturevalue("forked" if through_a_worker else "in_thread")
    monkeypatch.chdir(ROOT)
    spec = with_settings(TuneConfig(), settings(TABLE, RUN.read(commands(script)[-1][1:]))).workload
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
