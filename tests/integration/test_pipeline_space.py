"""What is searched, what is not, and when the search is over; over a fake training."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeTraining, Surface, fake_facts, fake_host
from pipeline_rig import tune_fake

from loadtune.errors import UsageError
from loadtune.records.config import Fixed, TrialConfig, TuneConfig, YourSettings
from loadtune.records.facts import Device
from loadtune.records.measurement import FailureKind, TrialFailure


def fixed(**values: object) -> tuple[Fixed, ...]:
    return tuple(Fixed(name=name, value=value) for name, value in values.items())


def test_what_is_fixed_stays_and_the_baseline_is_compared_all_the_same(tmp_path: Path) -> None:
    fix = fixed(precision="bf16", batch_size=200, memory_format="contiguous")
    yours = YourSettings(batch_size=64, num_workers=2)
    config = TuneConfig(fix=fix, max_workers=3, num_trials=20, yours=yours)
    result = tune_fake(FakeTraining(), tmp_path, config)
    run = [trial.config for trial in result.trials]
    assert {(c.batch_size, c.precision, c.recipe.memory_format) for c in run} == {(200, "bf16", "contiguous")}
    assert len({c.loader for c in run}) < 8, "nothing that cannot win is run for completeness"
    assert result.best.config.loader.num_workers == 3
    assert (result.yours.batch_size, result.yours.precision) == (64, "fp32")
    assert result.best.speedup is not None
    assert any(finalist.config == result.yours for finalist in result.finalists)


@pytest.mark.parametrize(
    ("fix", "device", "told"),
    [
        ({"batch_size": 5000}, "cuda", "--fix batch_size=5000 does not fit"),
        ({"pin_memory": True}, "cpu", "without a GPU"),
        ({}, "cpu", "--max-gpu-memory is for a GPU"),
        ({"memory_format": "channels_last"}, "cuda", "samples of three dimensions, here 8,"),
        ({"precision": "fp16"}, "cuda", "fp16 is not available"),
    ],
)
def test_what_cannot_be_had_is_told(tmp_path: Path, fix: dict[Any, Any], device: str, told: str) -> None:
    surface = Surface(compute_per_s={"fp32": 2300.0})
    training = FakeTraining(surface, facts=replace(fake_facts(surface), input_shape=(8,), takes_channels_last=False))
    config = TuneConfig(fix=fixed(**fix), max_gpu_memory_bytes=None if fix else 1 << 34)
    with pytest.raises(UsageError, match=told):
        tune_fake(training, tmp_path, config, device=Device(kind=device, uuid="GPU-0", name="Fake"))


@pytest.mark.parametrize(
    ("kind", "size", "most"),
    [
        ("oom", lambda config: config.batch_size if config.precision == "fp16" else 0, 63),
        ("shm", lambda config: config.batch_size * config.loader.num_workers, 1500),
    ],
)
def test_memory_that_ran_out_in_a_trial_bounds_what_is_tried_then(
    tmp_path: Path, kind: FailureKind, size: Callable[[TrialConfig], int], most: int
) -> None:
    """The probe saw these sizes train; with a loader beside them they do not."""
    planted = TrialFailure(kind=kind, phase="training", message="planted")
    config = TuneConfig(precisions=("fp16",), num_trials=20)
    result = tune_fake(FakeTraining(fail=lambda config: planted if size(config) > most else None), tmp_path, config)
    failed = [size(trial.config) for trial in result.trials if trial.failure]
    assert failed
    assert failed == sorted(set(failed), reverse=True)
    assert result.best is not None


@pytest.mark.parametrize(
    ("free", "said"),
    [
        (64 << 20, "need 1.72 GiB of /dev/shm, of which 51.2 MiB can be used. Start the container with --shm-size=3g"),
        (0, "Workers need a /dev/shm, which is missing or read-only here. Start the container with --shm-size=3g"),
        (None, None),
    ],
)
def test_workers_that_do_not_fit_into_shm_are_named_with_the_remedy(
    tmp_path: Path, free: int | None, said: str | None
) -> None:
    host = replace(fake_host(), shm_total_bytes=free, shm_free_bytes=free)
    result = tune_fake(FakeTraining(), tmp_path, host=host)
    notes = [note for note in result.notes if "/dev/shm" in note]
    assert [said in note for note in notes] == [True] * (said is not None)
    assert result.best is not None
    assert free != 0 or not any(trial.config.loader.num_workers for trial in result.trials)
