"""What a run gives its user to set: what is proven better than their settings, or those; and what is never called
confirmed: crashes, losses that are not finite, rates above the compute-only rate; over a fake training."""

import json
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_rig import invoke
from fakes import FakeTraining, Surface, fake_facts
from pipeline_rig import finished, tune_fake
from torch.utils.data import DataLoader

import loadtune
from loadtune.cli.app import exit_code
from loadtune.errors import ResultError, WorkloadError
from loadtune.records.config import Fixed, LoaderConfig, Recipe, TrialConfig, TuneConfig, YourSettings
from loadtune.records.measurement import ComputePoint, FailureKind, Progress, TrainingRun, TrialFailure
from loadtune.records.result import Result
from loadtune.report.forms import FORMS
from loadtune.report.page import page_view
from loadtune.report.terminal import terminal_answer
from loadtune.seams import Watch
from loadtune.store import RESULT_FILE, load_result

pytestmark = pytest.mark.filterwarnings("ignore::loadtune.MachineMismatchWarning")

ALIKE = Surface(pinned_per_s=1000.0, pageable_per_s=1000.0, sample_s=1 / 3300)
"""The pinning thread or the copy is the wall for everything with a worker."""

YOURS = YourSettings(batch_size=64, num_workers=8, pin_memory=False, persistent_workers=True)
OWN_LOADER = LoaderConfig(batch_size=64, num_workers=8)


def config_of(yours: YourSettings, **more: Any) -> TuneConfig:
    return TuneConfig(yours=yours, remedies="none", num_trials=4, **more)


def said_of(result: Result) -> str:
    return " ".join(terminal_answer(result, Path(RESULT_FILE)))


KEEP = "Keep your settings: nothing else that was tried gains more than "
NO_CONCLUSION = "Nothing is proven: your settings may be best, or others "


@pytest.mark.parametrize(("between_runs", "told"), [(0.004, KEEP), (0.3, NO_CONCLUSION), (1.5, NO_CONCLUSION)])
def test_where_nothing_is_proven_better_every_view_gives_your_settings(
    tmp_path: Path, between_runs: float, told: str
) -> None:
    """And says which it is: others gain nothing, or these runs cannot tell."""
    training = FakeTraining(ALIKE, between_runs=between_runs, seed=2)  # a gain was told for 1 of 260 seeds
    result = tune_fake(training, tmp_path, config_of(YOURS))
    assert result.best.config == result.yours == TrialConfig(loader=OWN_LOADER, recipe=Recipe())
    assert result.best_at_your_batch == result.best
    assert exit_code(result) == 0
    assert said_of(result).startswith(told)
    assert "DataLoader(" not in said_of(result), "there is nothing to change"
    assert page_view(result)["headline"].startswith(told)
    assert not page_view(result)["code"]
    file = tmp_path / RESULT_FILE
    for keep_batch_size in (False, True):
        assert loadtune.best_loader_kwargs(file, keep_batch_size=keep_batch_size) == OWN_LOADER.kwargs()
        assert loadtune.best_recipe(file, keep_batch_size=keep_batch_size) == Recipe()
        loader = DataLoader([0] * 640, 64, num_workers=8)
        applied = loadtune.TuningResult.of(result).apply(loader, keep_batch_size=keep_batch_size)
        assert (applied.batch_size, applied.num_workers, applied.persistent_workers) == (64, 8, True)
        forms = {form: loadtune.export(result, form, keep_batch_size=keep_batch_size) for form in FORMS}
        assert all("64" in text and "256" not in text for text in forms.values())
        assert told in " ".join(forms["python"].replace("#", "").split())


def test_your_settings_may_be_the_answer_at_your_batch_size_alone(tmp_path: Path) -> None:
    """Larger batches gain; at 64 the workers keep up, and no recipe gains."""
    surface = Surface(
        compute_per_s={"fp32": 1000.0}, channels_last_gain=1.0, fused_gain=1.0, sample_s=1e-4, half_batch=64.0
    )
    training = FakeTraining(surface, between_runs=0.004)
    result = tune_fake(training, tmp_path, config_of(replace(YOURS, pin_memory=True)))
    assert result.best.config.batch_size > 64
    assert result.best_at_your_batch.config == result.yours
    assert "Keep your settings at batch size 64: nothing else that was tried there gains more than " in said_of(result)
    assert said_of(result).startswith(f"Batch {result.best.config.batch_size}: ")


def test_a_gain_that_was_seen_once_is_not_told_and_warns_where_it_is_used(tmp_path: Path) -> None:
    """There is no time for a second run of anything."""
    result = tune_fake(FakeTraining(prepare_s=31.0), tmp_path, config_of(YourSettings(), time_budget_s=150.0))
    assert result.best.config == result.yours
    once = "Nothing is proven: nothing was measured twice. Run again with a larger --time-budget."
    assert page_view(result)["headline"].startswith(once)
    table = page_view(result)["confirmed"]
    assert table.title == "Not confirmed"
    assert not any("×" in cell for row in table.rows for cell in row if row[0].startswith("gain"))
    warns_where_it_is_used(tmp_path, result)


def uses(folder: Path, result: Result) -> list[Callable[[], object]]:
    file = folder / RESULT_FILE
    return [
        lambda: loadtune.best_loader_kwargs(file),
        lambda: loadtune.best_recipe(file),
        lambda: loadtune.TuningResult.of(result).apply(DataLoader([0] * 640, 64)),
        *(lambda form=form: loadtune.export(result, form) for form in FORMS),
    ]


def warns_where_it_is_used(folder: Path, once: Result) -> None:
    for use in uses(folder, once):
        with pytest.warns(UserWarning, match="is not confirmed: nothing was measured twice") as caught:
            use()
        assert [each.filename for each in caught if "not confirmed" in str(each.message)] == [__file__]
    assert "Measured, but not confirmed, by" in " ".join(loadtune.export(once, "python").replace("#", "").split())
    told = invoke("export", str(folder), "--format", "json")
    assert told.exit_code == 0
    assert json.loads(told.stdout)["loader"]["batch_size"] == 64
    assert told.stderr.startswith("warning: The answer of the run of ")


START_S, EPOCH = 1.0, 60 * 64
"""Until new workers are ready; samples of an epoch."""


class Clocked(FakeTraining):
    """Workers with clocks, as real ones have."""

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        run, batch_s = super().time_training(config, window_s, watch), config.batch_size * self.surface.sample_s
        if isinstance(run, TrialFailure) or not config.loader.num_workers:
            return run
        return replace(run, first_batch_s=START_S + batch_s, ready_s=START_S, batch_s=batch_s)


def seconds_of_an_epoch(surface: Surface, config: TrialConfig) -> float:
    """Batch by batch: workers take turns, the loop takes batches in order, and nothing is ready at the start."""
    loader, size = config.loader, config.batch_size
    now = START_S if loader.num_workers and not loader.persistent_workers else 0.0
    step_s = size / min(surface.compute_rate(config.recipe, size), surface.pinned_per_s)
    free, taken = [now] * max(1, loader.num_workers), [now] * loader.num_prefetched
    for number in range(EPOCH // size):
        asked_s = taken[number] if loader.num_workers else now
        made_s = max(free[number % len(free)], asked_s) + size * surface.sample_s
        free[number % len(free)] = made_s
        now = max(now, made_s) + step_s
        taken.append(now)
    return now


@pytest.mark.parametrize("yours", [(4, False), (0, True)])
def test_the_speedup_of_a_short_epoch_is_true(tmp_path: Path, yours: tuple[int, bool]) -> None:
    """60 batches; with kept workers an epoch begins without a batch, too."""
    surface = Surface(
        compute_per_s={"fp32": 820.0}, half_batch=1.0, channels_last_gain=1.0, fused_gain=1.0, sample_s=1 / 100
    )
    training = Clocked(
        surface, facts=replace(fake_facts(surface), dataset_length=EPOCH), between_runs=0.005, noise=0.005
    )
    own = YourSettings(batch_size=64, num_workers=yours[0], persistent_workers=yours[1])
    fixed = (Fixed(name="batch_size", value=64), Fixed(name="pin_memory", value=True))
    result = tune_fake(training, tmp_path, config_of(own, fix=fixed))
    before, after = (seconds_of_an_epoch(surface, config) for config in (result.yours, result.best.config))
    assert before / after > 1.5
    assert result.best.speedup.value == pytest.approx(before / after, rel=0.05)


def test_an_answer_of_a_confirmation_that_was_cut_short_warns_and_a_confirmed_one_does_not(tmp_path: Path) -> None:
    whole = finished(tmp_path)
    for use in uses(tmp_path, whole):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "The answer")
            use()
    for why, told in (
        ("interrupted by Ctrl-C", r" \(interrupted by Ctrl-C\)"),
        (None, ""),
    ):  # it was killed as it ended
        with pytest.warns(UserWarning, match=rf"cut short before every run of the confirmation was made{told}\."):
            loadtune.export(replace(whole, cut_short=why, confirmed_whole=False), "python")


class Misread(FakeTraining):
    """Other load while a recipe is timed without a loader: it reads so many times too slow."""

    times, left = 5.0, 10**6

    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        point = FakeTraining.time_compute(self, recipe, batch_size, seconds)
        if isinstance(point, TrialFailure) or not self.left:
            return point
        self.left -= 1
        return replace(point, windows=tuple(replace(w, seconds=self.times * w.seconds) for w in point.windows))


@pytest.mark.parametrize("times", [1.06, 5.0])
def test_a_rate_without_a_loader_that_reads_less_than_training_is_timed_again(tmp_path: Path, times: float) -> None:
    """Misread in all of the calibration, and once more in the confirmation. The baseline is the best there is."""
    surface = Surface(
        compute_per_s={"fp32": 1000.0}, channels_last_gain=1.0, fused_gain=1.0, sample_s=1e-6, half_batch=0.001
    )
    training = Misread(surface, between_runs=0.002, noise=0.002)
    training.times = times

    def listen(progress: Progress) -> None:
        if progress.stage == "confirm":
            training.left = min(1, training.left)

    result = tune_fake(training, tmp_path, config_of(YourSettings()), listener=listen)
    assert result.best.config == result.yours
    assert said_of(result).startswith("Keep PyTorch's defaults, here with an assumed batch size of 64: ")
    assert result.best.compute_fraction == pytest.approx(1.0, abs=0.01)  # as planted
    assert not any(finalist.unconfirmed for finalist in result.finalists)
    table = page_view(result)["confirmed"]
    (shares,) = (row[1:] for row in table.rows if row[0] == "share of compute-only")
    assert set(shares) <= {"98%", "99%", "100%"}


CRASH = "DataLoader worker (pid 812) was killed by SIGSEGV while it read samples 17, 204 and 5"


def nothing_is_handed_out(result: Result, folder: Path) -> None:
    assert result.best is None
    assert result.best_at_your_batch is None
    assert exit_code(result) == 1
    assert page_view(result)["confirmed"] is None
    assert "onfirmed" in (page_view(result)["warning"] or "")
    assert load_result(folder / RESULT_FILE) == result
    for hand_out in (
        loadtune.best_loader_kwargs,
        loadtune.best_recipe,
        *(lambda path, form=form: loadtune.export(load_result(path), form) for form in FORMS),
    ):
        with pytest.raises(ResultError, match="no confirmed winner"):
            hand_out(folder / RESULT_FILE)


def test_where_the_users_code_fails_in_each_run_of_the_confirmation_the_error_is_that_of_a_search(
    tmp_path: Path,
) -> None:
    with pytest.raises(WorkloadError, match=r"sample 3 raises ValueError\. Correct it"):
        crashing_in(tmp_path, 1, 2, kind="user_error", message="sample 3 raises ValueError.")
    assert load_result(tmp_path / RESULT_FILE).trials


def crashing_in(folder: Path, *numbers: int, kind: FailureKind = "crash", message: str = CRASH) -> Result:
    """Each configuration crashes in these of its runs of the confirmation."""
    runs, stages = Counter[TrialConfig](), set[str]()

    def fail(config: TrialConfig) -> TrialFailure | None:
        runs[config] += "confirm" in stages
        crashes = runs[config] in numbers
        return TrialFailure(kind=kind, phase="training", message=message) if crashes else None

    return tune_fake(FakeTraining(fail=fail), folder, listener=lambda progress: stages.add(progress.stage))


def test_where_every_finalist_crashed_twice_nothing_is_the_answer_and_the_crash_is_quoted(tmp_path: Path) -> None:
    result = crashing_in(tmp_path, 2, 3)
    assert all((len(f.runs), len(f.failures)) == (1, 2) for f in result.finalists)
    assert {f.unconfirmed.reason for f in result.finalists if f.unconfirmed} == {"failed"}
    assert any("2 of its 3 runs failed" in note and CRASH in note for note in result.notes)
    nothing_is_handed_out(result, tmp_path)


def test_who_crashed_once_is_tried_again_and_may_be_the_answer(tmp_path: Path) -> None:
    result = crashing_in(tmp_path, 1)
    assert all(len(finalist.failures) == 1 < len(finalist.runs) for finalist in result.finalists)
    assert result.best.config != result.yours
    assert any("1 of its " in note and CRASH in note for note in result.notes)


def test_a_precision_whose_loss_is_not_finite_is_not_the_answer(tmp_path: Path) -> None:
    """It would be the fastest by far."""
    result = tune_fake(FakeTraining(finite=lambda config: config.precision != "fp16"), tmp_path)
    assert result.best.config.precision != "fp16"
    failed = [trial for trial in result.trials if trial.failure]
    assert {(t.config.precision, t.failure.kind) for t in failed if t.failure} == {("fp16", "non_finite_loss")}
    assert len(failed) == 1  # the others of that precision are not run
    (note,) = (note for note in result.notes if "NaN or infinite" in note)
    assert note.startswith("fp16 is not recommended")
    assert "the first" in note


def test_a_loss_that_is_not_finite_in_fp32_leaves_no_answer_and_is_said_to_be_the_datas(tmp_path: Path) -> None:
    result = tune_fake(FakeTraining(finite=lambda config: False), tmp_path)
    assert any("the dataset, the model or the loss" in note for note in result.notes)
    assert len(result.trials) <= 3
    nothing_is_handed_out(result, tmp_path)


def test_a_rate_above_the_compute_only_rate_is_not_the_answer(tmp_path: Path) -> None:
    result = tune_fake(Misread(), tmp_path)
    assert "above_compute_only" in {f.unconfirmed.reason for f in result.finalists if f.unconfirmed}
    assert any("one of the two rates is wrong" in note for note in result.notes)
    for winner in (result.best, result.best_at_your_batch):
        assert winner is None or winner.compute_fraction is None or winner.compute_fraction <= 1.1
    assert result.best.config == result.yours
    assert said_of(result).startswith("Nothing is proven: your settings may be best, or others ")
