"""The user's own settings are timed before anything slow, once, and what they leave to be gained is said at once."""

from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.errors import BenchError, WorkloadError
from loadtune.records import Fixed, Progress, Recipe, TrialConfig, TrialFailure, TuneConfig, YourSettings
from loadtune.report.view import summary
from loadtune.testing import FakeBench, Surface, fake_host

pytestmark = pytest.mark.usefixtures("study_in_memory")

MINUTE_S = 60.0
KEEPS_UP = Surface(sample_s=1 / 50_000, pinned_per_s=1e9, pageable_per_s=1e9, copy_per_s=1e9)
NO_MORE = "Only another batch size or precision"


class SlowToProbe(FakeBench):
    """Memory takes two minutes, as ConvNeXt-Large's did on an H200."""

    def __init__(self, surface: Surface) -> None:
        super().__init__(surface, noise=0.001)
        self.timed_configs: list[TrialConfig] = []

    def try_batch(self, asked):
        self.clock.spend(10.0)
        return super().try_batch(asked)

    def time_training(self, config, window_s, watch):
        self.timed_configs.append(config)
        return super().time_training(config, window_s, watch)


def said(bench: FakeBench, tmp_path: Path, yours: YourSettings, **options) -> list[tuple[float, str, str]]:
    """Seconds into the run, in which stage, what."""
    told, began = [], bench.clock.now()

    def listen(progress: Progress) -> None:
        if progress.message:
            told.append((bench.clock.now() - began, progress.stage, progress.message))

    tune_fake(bench, tmp_path, TuneConfig(yours=yours, **options), listener=listen)
    return told


@pytest.mark.parametrize(
    ("surface", "keeps_up"), [(KEEPS_UP, True), (Surface(), False)], ids=["keeps-up", "waits-for-its-loader"]
)
def test_what_your_settings_leave_is_said_within_a_minute(tmp_path: Path, surface: Surface, keeps_up: bool) -> None:
    bench = SlowToProbe(surface)
    loader = {"batch_size": 128, "num_workers": 4, "pin_memory": True, "persistent_workers": True}
    told = said(bench, tmp_path, YourSettings(precision="fp16", **loader))
    at, _, message = next(each for each in told if each[1] == "yours")
    assert "batch 128, 4 workers, pinned, fp16" in message
    assert at < MINUTE_S
    assert (NO_MORE in message) is keeps_up
    assert any(stage == "memory" and when > MINUTE_S for when, stage, _ in told), "probing was meant to be slow"


def test_what_was_timed_ahead_is_the_first_trial_and_is_not_timed_again(tmp_path: Path) -> None:
    bench = SlowToProbe(Surface())
    yours = YourSettings(batch_size=128, num_workers=4, pin_memory=True, precision="fp16")
    result = tune_fake(bench, tmp_path, TuneConfig(yours=yours))
    first = result.trials[0]
    assert first.origin == "yours"
    assert first.config == bench.timed_configs[0]
    searched = len(result.trials)
    assert bench.timed_configs[:searched].count(first.config) == 1
    assert first.config.recipe != Recipe(precision="fp16"), "under the recipe that was chosen"


def test_what_was_timed_ahead_is_in_the_result_of_a_run_that_was_ended_before_its_search(tmp_path: Path) -> None:
    def listen(progress: Progress) -> None:
        if progress.stage == "memory":
            raise KeyboardInterrupt

    result = tune_fake(FakeBench(), tmp_path, TuneConfig(yours=YourSettings(batch_size=64)), listen)
    (trial,) = result.trials
    assert trial.origin == "yours"
    assert trial.measurement is not None
    assert result.best is None
    assert not [note for note in result.notes if "page was not written" in note]
    told = repr(summary(result))
    assert "No trial was measured" not in told
    assert "1 trial: 1 measured" in told


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"yours": YourSettings(), "max_batch_size": 32}, id="an-assumed-batch-that-was-not-trained-yet"),
        pytest.param({"yours": YourSettings(precision="bf16"), "precisions": ("fp16",)}, id="a-precision-that-is-out"),
        pytest.param({"yours": YourSettings(num_workers=8), "max_workers": 4}, id="workers-that-are-out"),
        pytest.param({"yours": YourSettings(), "fix": (Fixed(name="num_workers", value=4),)}, id="another-is-fixed"),
    ],
)
def test_what_is_out_or_the_probes_have_to_admit_is_not_timed_ahead(tmp_path: Path, options: dict) -> None:
    assert not [message for _, stage, message in said(FakeBench(), tmp_path, **options) if stage == "yours"]


def test_a_named_batch_that_does_not_train_ends_nothing(tmp_path: Path) -> None:
    told = []
    config = TuneConfig(yours=YourSettings(batch_size=2048, num_workers=4))
    result = tune_fake(FakeBench(), tmp_path, config, listener=told.append)
    assert [p.message for p in told if p.stage == "yours" and p.message and "out of memory" in p.message]
    assert result.best is not None


def test_batches_that_the_host_has_no_room_for_are_left_to_the_study(tmp_path: Path) -> None:
    told = []
    config = TuneConfig(yours=YourSettings(batch_size=128, num_workers=8))
    tune_fake(FakeBench(), tmp_path, config, listener=told.append, host=replace(fake_host(), shm_free_bytes=1 << 20))
    assert not [progress for progress in told if progress.stage == "yours"]


def test_a_dataset_that_fails_is_told_before_anything_is_probed(tmp_path: Path) -> None:
    broken = TrialFailure(kind="user_error", phase="training", message="sample 7 is broken")
    bench = FakeBench(fail=lambda config: broken)
    with pytest.raises(WorkloadError, match="sample 7 is broken"):
        tune_fake(bench, tmp_path, TuneConfig(yours=YourSettings(batch_size=64)))
    assert bench.clock.now() - FakeBench().clock.now() < SlowToProbe(Surface()).prepare_s + 15.0


def test_a_ceiling_that_cannot_be_timed_leaves_the_rate(tmp_path: Path) -> None:
    class Gone(FakeBench):
        ahead = False

        def time_training(self, config, window_s, watch):
            self.ahead = True
            return super().time_training(config, window_s, watch)

        def time_compute(self, recipe, batch_size, seconds):
            if self.ahead and batch_size == 96:
                raise BenchError("the bench is gone")
            return super().time_compute(recipe, batch_size, seconds)

    told = said(Gone(), tmp_path, YourSettings(batch_size=96))
    message = next(message for _, stage, message in told if stage == "yours")
    assert "samples/s" in message
    assert "compute-only rate" not in message
