"""The memory stage within the whole story: what bounds the batch, and what changes between the probe and the study."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fakes import GIB, FakeTraining, Surface, fake_facts, fake_host
from pipeline_rig import killed, resumed, tune_fake

from loadtune.errors import WorkloadError
from loadtune.records.config import TrialConfig, TuneConfig, YourSettings
from loadtune.records.facts import Device
from loadtune.records.measurement import TrainingRun, TrialFailure
from loadtune.records.memory import BatchTry, FitReport
from loadtune.records.result import Result
from loadtune.run.state import read_run
from loadtune.seams import Watch

HOST = fake_host()
GPU = Device(kind="cuda", uuid=HOST.gpus[0].uuid, name="Fake GPU")
ONE_PRECISION = Surface(
    compute_per_s={"fp32": 2300.0}, fixed_bytes=8 * GIB, bytes_per_sample={"fp32": 0.7e9}, budget_bytes=96 * GIB
)
"""Ends at 134 samples of 0.7 GB."""


def tune(training: FakeTraining, folder: Path, config: TuneConfig | None = None, **rig: Any) -> Result:
    return tune_fake(training, folder, config or TuneConfig(), device=GPU, **rig)


def trained(result: Result) -> set[int]:
    return {trial.config.batch_size for trial in result.trials}


@pytest.mark.parametrize(("ram_samples", "bound"), [(100, 50), (0, 2)])
def test_ram_that_holds_less_than_the_device_is_the_limit_but_the_smallest_batch_is_tried(
    tmp_path: Path, ram_samples: int, bound: int
) -> None:
    host = replace(HOST, ram_available_bytes=1000 + ram_samples * fake_facts(ONE_PRECISION).sample_bytes)
    facts = replace(fake_facts(ONE_PRECISION), min_batch_size=2)
    result = tune(FakeTraining(ONE_PRECISION, facts=facts), tmp_path, TuneConfig(num_trials=3), host=host)
    assert [(c.batch_size, c.limit) for c in result.ceilings] == [(bound, "host_memory")]
    assert max(trained(result), default=0) <= bound


MEMORY = Surface(bytes_per_sample={"fp32": 2e9, "fp16": 1e6, "bf16": 1e6}, budget_bytes=20 * GIB)
SLOW = Surface(compute_per_s={"fp32": 40.0}, half_batch=0.1, channels_last_gain=1.0, fused_gain=1.0)
"""25 ms a sample: a second is 40 of them."""


@pytest.mark.parametrize(("surface", "batch_size"), [(MEMORY, 8), (SLOW, 32)])
def test_an_assumed_batch_gives_way_to_what_fits_and_to_what_can_be_timed(
    tmp_path: Path, surface: Surface, batch_size: int
) -> None:
    result = tune(FakeTraining(surface), tmp_path, TuneConfig(num_trials=1, time_budget_s=60.0))
    assert result.yours.batch_size == batch_size
    assert any(f"baseline has batch size {batch_size} instead of 64" in note for note in result.notes)
    assert any(finalist.config == result.yours for finalist in result.finalists)


@dataclass(slots=True)
class Listing(FakeTraining):
    """Lists requests with their precisions. Memory that is verified ends at `ends_at` of the budget."""

    asked: list[tuple[str, str]] = field(default_factory=list)
    ends_at: float = 1.0
    takes_s: float = 0.0
    """What a try takes besides its steps."""
    raises: Exception | None = None
    """By the first size that is verified."""

    def try_batch(self, asked: BatchTry) -> FitReport:
        self.asked.append(("memory", asked.recipe.precision))
        if asked.verify and self.raises is not None:
            raise self.raises
        self.clock.spend(self.takes_s)
        report = FakeTraining.try_batch(self, asked)
        report = replace(report, seconds=report.seconds + self.takes_s)
        if asked.verify and (report.peak_bytes or 0) > self.ends_at * self.surface.budget_bytes:
            return replace(report, failure=TrialFailure(kind="oom", phase="training", message="planted"))
        return report

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        self.asked.append(("training", config.precision))
        return FakeTraining.time_training(self, config, window_s, watch)

    def probes(self) -> dict[str, int]:
        """Tries by precision."""
        return Counter(precision for kind, precision in self.asked if kind == "memory")

    def first_probes(self) -> dict[str, int]:
        """The same of before the first trial."""
        study = [kind for kind, _ in self.asked].index("training")
        return Counter(precision for kind, precision in self.asked[:study] if kind == "memory")


HALF = Surface(compute_per_s={"fp32": 2300.0, "fp16": 3100.0}, bytes_per_sample={"fp32": 87e6, "fp16": 45e6})
LARGE = replace(
    HALF, compute_per_s={"fp32": 23_000.0, "fp16": 31_000.0}, half_batch=2000.0, sample_s=1e-5, pinned_per_s=1e6
)
"""Only the largest batches keep this GPU busy."""


def test_each_precision_is_bound_by_two_sizes_and_the_best_is_verified_before_the_confirmation(tmp_path: Path) -> None:
    training, heard = Listing(LARGE), list[str]()
    result = tune(training, tmp_path, listener=lambda progress: heard.append(progress.message or ""))
    assert training.first_probes() == {"fp32": 2, "fp16": 2}
    assert training.probes()["fp32"] == 2
    assert training.probes()["fp16"] > 2
    last = max(at for at, (kind, _) in enumerate(training.asked) if kind == "memory")
    assert ("training", "fp16") in training.asked[last:]
    assert result.best.config.precision == "fp16"
    assert [(c.precision, c.verified) for c in result.ceilings] == [("fp32", False), ("fp16", True)]
    best = result.ceilings[1]
    assert {best.batch_size, best.safe_batch_size} <= {probe.batch_size for probe in best.probes if probe.fits}
    (told,) = (words for words in heard if words.startswith("fp32: batch sizes"))
    assert "predicted to fit" in told
    assert "train" not in told


def test_a_batch_above_the_verified_size_is_not_confirmed(tmp_path: Path) -> None:
    """Only the largest batches keep this GPU busy; an evaluation fails from 70% of the memory on."""
    surface = replace(LARGE, compute_per_s={"fp32": 23_000.0})
    result = tune(Listing(surface, ends_at=0.7), tmp_path)
    (ceiling,) = result.ceilings
    assert ceiling.verified
    assert ceiling.limit == "memory"
    assert max(trained(result)) > ceiling.batch_size >= ceiling.safe_batch_size
    assert ceiling.batch_size < min(probe.batch_size for probe in ceiling.probes if not probe.fits)
    assert max(finalist.config.batch_size for finalist in result.finalists) == ceiling.safe_batch_size
    assert result.best.config.batch_size == ceiling.safe_batch_size


def test_a_size_that_the_user_named_above_the_safe_one_is_run_before_the_search_and_tried(tmp_path: Path) -> None:
    training = Listing(ONE_PRECISION)
    own = ONE_PRECISION.largest_batch("fp32") - 3
    result = tune(training, tmp_path, TuneConfig(num_trials=3, yours=YourSettings(batch_size=own)))
    assert training.first_probes()["fp32"] == training.probes()["fp32"] > 2
    (ceiling,) = result.ceilings
    assert ceiling.verified
    assert ceiling.safe_batch_size < own <= ceiling.batch_size
    assert own in trained(result)
    assert result.best_at_your_batch.config.batch_size == own


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"takes_s": 9.0}, "was not verified"),
        ({"raises": WorkloadError("a batch of 7 cannot be evaluated")}, "could not be verified: a batch of 7"),
    ],
)
def test_a_predicted_ceiling_stays_where_little_time_is_left_or_the_probe_fails(
    tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    result = tune(Listing(LARGE, **given), tmp_path)
    assert result.best is not None
    assert not any(ceiling.verified for ceiling in result.ceilings)
    assert len([note for note in result.notes if words in note]) == 1


@pytest.mark.parametrize("stage", ["verify", "confirm"])
def test_a_run_that_was_cut_off_about_the_verification_verifies_once(tmp_path: Path, stage: str) -> None:
    config = TuneConfig(num_trials=5)
    killed(tmp_path, lambda progress: progress.stage == stage, config, Listing(LARGE), device=GPU)
    assert sum(c.verified for c in read_run(tmp_path).ceilings) == (stage == "confirm")
    training = Listing(LARGE, seed=1)
    result = resumed(tmp_path, config, training, device=GPU)
    assert bool(training.probes()) == (stage == "verify")
    assert [c.verified for c in result.ceilings if c.precision == result.best.config.precision] == [True]
