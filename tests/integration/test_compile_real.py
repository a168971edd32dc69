"""torch.compile in a real training on the CPU: inductor and the machine's own C++ compiler, over a tiny model."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch._dynamo.utils import counters
from training_rig import training_on

from loadtune.records.config import Recipe
from loadtune.records.measurement import ComputePoint
from loadtune.records.memory import BatchTry
from loadtune.stream.shm_cleanup import group_members
from loadtune.training import TrainingClient

pytestmark = pytest.mark.timeout(600)  # each size is given to a C++ compiler, on whatever cores are free

COMPILED = Recipe(compile=True)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Its temporary files lie in a folder whose path is short enough for a worker's socket."""
    folder = tmp_path_factory.mktemp("compile")  # pytest's own folders lie where they always do
    with tempfile.TemporaryDirectory(prefix="test-", dir="/tmp") as short, pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", short)
        patched.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no processes that import torch for a graph or two
        with training_on(folder) as client:
            yield client


def test_a_size_is_compiled_once_and_before_it_is_timed(training: TrainingClient) -> None:
    first, again, plain = (training.time_compute(recipe, 4, 0.05) for recipe in (COMPILED, COMPILED, Recipe()))
    assert first.compile_s > 10 * max(window.seconds / window.num_steps for window in first.windows)
    assert again.compile_s == 0.0
    assert plain.compile_s is None


def test_the_memory_probe_tries_it_with_evaluation_and_partial_batch(training: TrainingClient) -> None:
    report = training.try_batch(BatchTry(recipe=COMPILED, batch_size=6, verify=True, partial_batch_size=2))
    assert report.fits, report.failure
    assert (report.step_s or 0.0) < report.seconds / 2, "compiling is no part of a step"


def test_nothing_is_left_behind(training: TrainingClient) -> None:
    training.time_compute(COMPILED, 2, 0.05)
    pid, temporary = training.pid, Path(tempfile.gettempdir())
    assert any(temporary.glob("loadtune-*/compiled/*"))
    training.close()
    assert not any(temporary.iterdir())
    assert not group_members(pid)


def test_a_missing_compiler_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    with training_on(tmp_path, fresh=True) as client:
        failure = client.time_compute(COMPILED, 8, 0.05)
        assert failure.kind == "unsupported"
        assert failure.message.startswith("torch.compile failed: ")
        assert "No working C++ compiler found" in failure.message
        assert isinstance(client.time_compute(Recipe(), 8, 0.05), ComputePoint), "the training goes on"


def test_a_compiler_that_is_switched_off_is_told(
    tmp_path: Path, in_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.compile", lambda module, **options: module)  # as TORCH_COMPILE_DISABLE has it
    counters.clear()  # of tests that compile in this process
    with training_on(tmp_path) as client:
        failure = client.time_compute(COMPILED, 8, 0.05)
        assert "found nothing in the model to compile" in failure.message
