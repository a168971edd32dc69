"""A run for samples per joule over a fake training whose power is known: what it finds, and what it no longer
assumes."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from pipeline_rig import GPU, tune_fake

from loadtune.checking import Check, check_on
from loadtune.records.config import LoaderConfig, TrialConfig, TuneConfig
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Progress
from loadtune.report.page.board import board_view
from loadtune.report.page.view import page_view
from loadtune.seams import Listener
from loadtune.testing import FakeSensor, FakeTraining, Surface, fake_host
from loadtune.units import efficiency_text

pytestmark = pytest.mark.usefixtures("study_in_memory")

# fp16 is the fastest at 700 W, bf16 the most sparing at 480 W; neither loader nor copies hold them up.
FED = Surface(sample_s=1 / 3000, pinned_per_s=1e9, pageable_per_s=1e9)


def run_for_energy(folder: Path, seed: int = 0, listener: Listener | None = None, **changes: object) -> TuningResult:
    folder.mkdir(exist_ok=True)
    training = FakeTraining(FED, seed=seed)
    sensor = FakeSensor(training.clock, power_w=training.power_w)
    config = TuneConfig(objective="samples-per-joule", seed=seed, **changes)  # type: ignore[arg-type]
    return tune_fake(training, folder, config, listener, sensor=sensor)


@pytest.fixture(scope="module")
def sparing(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], TuningResult]:
    """The run for energy with this seed, which tests share."""
    return cache(lambda seed: run_for_energy(tmp_path_factory.mktemp("sparing"), seed))


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], TuningResult]:
    """The same for speed."""
    return cache(
        lambda seed: tune_fake(FakeTraining(FED, seed=seed), tmp_path_factory.mktemp("fast"), TuneConfig(seed=seed))
    )


def checked(stored: TuningResult, training: FakeTraining) -> Check:
    sensor = FakeSensor(training.clock, power_w=training.power_w)
    return check_on(training, sensor, training.clock, stored, fake_host(), GPU, tolerance_fraction=0.1)


def samples_per_joule(config: TrialConfig) -> float:
    return FED.training_rate(config) / FED.power_w(config)


def most_possible(result: TuningResult) -> float:
    recipes = {choice.chosen for choice in result.recipes}
    return max(
        samples_per_joule(TrialConfig(loader=LoaderConfig(batch_size=b, num_workers=w, pin_memory=True), recipe=recipe))
        for recipe in recipes
        for b in result.batch_sizes
        for w in range(17)
        if b <= FED.largest_batch(recipe.precision)
    )


@pytest.mark.parametrize("seed", range(2))
def test_the_most_sparing_is_found_and_is_not_the_fastest(
    sparing: Callable[[int], TuningResult], fast: Callable[[int], TuningResult], seed: int
) -> None:
    fastest = fast(seed).best
    result = sparing(seed)
    assert fastest is not None
    assert result.best is not None
    assert (fastest.config.precision, result.best.config.precision) == ("fp16", "bf16")
    assert fastest.samples_per_joule is None
    assert samples_per_joule(result.best.config) > 1.1 * samples_per_joule(fastest.config)
    assert samples_per_joule(result.best.config) >= 0.95 * most_possible(result)


def test_the_figures_are_those_of_the_energy_with_an_interval(sparing: Callable[[int], TuningResult]) -> None:
    result = sparing(0)
    assert result.best is not None
    assert result.yours is not None
    found, gain = result.best.samples_per_joule, result.best.efficiency_gain
    assert found is not None
    assert gain is not None
    assert found.value == pytest.approx(samples_per_joule(result.best.config), rel=0.06)
    truth = samples_per_joule(result.best.config) / samples_per_joule(result.yours)
    assert gain.value == pytest.approx(truth, rel=0.1)
    assert gain.low is not None
    assert gain.high is not None
    assert gain.low < gain.value < gain.high
    assert result.best.samples_per_s == pytest.approx(FED.training_rate(result.best.config), rel=0.06)


def test_what_is_shown_says_what_was_looked_for(sparing: Callable[[int], TuningResult]) -> None:
    result = sparing(0)
    assert result.best is not None
    assert result.best.samples_per_joule is not None
    shown = efficiency_text(result.best.samples_per_joule.value)
    table = page_view(result).figures
    assert table is not None
    assert next(row[1] for row in table.rows if row[0] == "samples/J (95% CI)").startswith(f"{shown.split()[0]} ± ")
    assert any("most samples per joule of the GPU's board" in note for note in result.notes)
    assert page_view(result).tiles[0].value == shown
    drawn = {figure.key: figure for chapter in page_view(result).chapters for figure in chapter.figures}
    for key, axis in (("finalists", "xaxis"), ("trials", "yaxis")):
        assert drawn[key].panels[0].layout[axis]["title"]["text"] == "samples/J"
    means = drawn["finalists"].panels[0].data[0]
    assert means["x"][0] == max(finalist.score("samples-per-joule") for finalist in result.finalists)
    assert all(half > 0 for half in means["error_x"]["array"])


def test_what_was_not_told_apart_has_the_figure_it_was_not_told_apart_by(
    sparing: Callable[[int], TuningResult],
) -> None:
    notes = sparing(1).notes
    ties = next(note for note in notes if "Not proven to be less efficient than the answer" in note)
    assert "/s)" not in ties
    assert ties.count(" samples/J)") == ties.count(";") + 1


def test_the_live_display_is_told_of_the_leaders_samples_per_joule(tmp_path: Path) -> None:
    heard: list[Progress] = []
    result = run_for_energy(tmp_path, listener=heard.append, num_trials=3)
    scores = [trial.measurement.score("samples-per-joule") for trial in result.trials if trial.measurement]
    assert heard[-1].best_samples_per_joule == max(scores)
    heard.clear()
    (tmp_path / "speed").mkdir()
    tune_fake(FakeTraining(FED), tmp_path / "speed", listener=heard.append)
    assert heard[-1].best_samples_per_s is not None
    assert {progress.best_samples_per_joule for progress in heard} == {None}


def test_a_check_holds_it_to_its_samples_per_joule(sparing: Callable[[int], TuningResult]) -> None:
    """A power limit halves the power and takes a fifth of the speed: that is no loss of what was looked for."""
    stored = sparing(0)
    assert stored.best is not None
    assert checked(stored, FakeTraining(FED, seed=7)).outcome == "held"
    capped = replace(FED, compute_per_s={p: 0.8 * r for p, r in FED.compute_per_s.items()}, idle_w=60.0)
    capped = replace(capped, full_w={precision: 0.5 * watts for precision, watts in FED.full_w.items()})
    check = checked(stored, FakeTraining(capped, seed=7))
    assert (check.outcome, "samples/J" in check.reason) == ("held", True)
    assert check.result is not None
    assert check.result.best is not None
    assert check.result.best.samples_per_s < 0.9 * stored.best.samples_per_s
    hungry = replace(FED, full_w={precision: 1.4 * watts for precision, watts in FED.full_w.items()})
    assert checked(stored, FakeTraining(hungry, seed=7)).outcome == "fell"


def test_a_check_without_a_reading_cannot_tell(sparing: Callable[[int], TuningResult]) -> None:
    training = FakeTraining(FED, seed=7)
    check = check_on(training, FakeSensor(training.clock), training.clock, sparing(0), fake_host(), GPU)
    assert (check.outcome, check.result) == ("unclear", None)
    assert "energy counter could not be read" in check.reason


def test_the_board_keeps_the_two_objectives_apart(
    sparing: Callable[[int], TuningResult], fast: Callable[[int], TuningResult]
) -> None:
    board = board_view([sparing(0), fast(0)])
    assert len(board.trend.panels) == 2
    assert not board.regressions


def test_a_run_without_a_reading_confirms_nothing(tmp_path: Path) -> None:
    config = TuneConfig(objective="samples-per-joule", num_trials=3)
    result = tune_fake(FakeTraining(FED), tmp_path, config)
    assert result.best is None
    assert {trial.failure.phase for trial in result.trials if trial.failure} == {"energy"}


def test_a_resumed_run_goes_on_with_the_same_objective(tmp_path: Path) -> None:
    first = run_for_energy(tmp_path, num_trials=2)
    training = FakeTraining(FED)
    sensor = FakeSensor(training.clock, power_w=training.power_w)
    config = TuneConfig(objective="samples-per-joule", num_trials=3)
    result = tune_fake(training, tmp_path, config, resume=True, sensor=sensor)
    assert len(result.trials) > len(first.trials)
    assert result.best is not None
    assert result.best.samples_per_joule is not None
