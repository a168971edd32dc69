"""Jobs of any kind over a fake training: streams, loaders and training steps of the user's own, samples that differ."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeTraining, Surface, fake_facts
from pipeline_rig import killed, runs_in, tune_fake

from loadtune import export
from loadtune.errors import UsageError
from loadtune.records.config import Fixed, LoaderConfig, TuneConfig, YourSettings
from loadtune.report.forms import FORMS
from loadtune.report.page import PAGE_FILE
from loadtune.report.tables import best_and_baseline
from loadtune.run.state import read_run

OWN = LoaderConfig(batch_size=128, num_workers=4, pin_memory=True, prefetch_factor=4, persistent_workers=False)


def training(surface: Surface | None = None, **facts) -> FakeTraining:
    surface = surface or Surface()
    return FakeTraining(surface, seed=1, facts=replace(fake_facts(surface), **facts))


def row(result, name: str) -> tuple[str, ...] | None:
    table = best_and_baseline(result)
    return next((cells[1:] for cells in table.rows if cells[0] == name), None)


def test_the_users_loader_is_the_baseline_and_nothing_of_it_is_assumed(tmp_path: Path) -> None:
    """Of another class, with samples that differ in size and are counted in tokens."""
    other = {"loader_class": "StatefulDataLoader", "largest_sample_bytes": 2**20, "cudnn_benchmark": True}
    texts = training(own_loader=OWN, **other)
    texts.sample_tokens = lambda batch_size: 2.0 * batch_size
    result = tune_fake(texts, tmp_path)
    assert result.yours.loader == OWN
    assert result.assumed == ("precision",)
    assert result.best_at_your_batch.config.batch_size == 128
    assert {trial.config.loader.prefetch_factor for trial in result.trials} == {4}, "it is not tuned"
    notes = " ".join(result.notes)
    assert "Your loader is a StatefulDataLoader. It was measured as" in notes
    assert "Samples differ in size. Memory was probed with the largest" in notes
    assert "torch.backends.cudnn.benchmark was off while settings were measured" in notes
    cells = row(result, "tokens/s")
    assert f"{result.best.samples_per_s * 2 * result.best.config.batch_size:,.0f}" in cells
    assert "tokens/s" in (tmp_path / PAGE_FILE).read_text()


def test_a_stream_of_unknown_length_that_is_not_shared_out_gets_one_worker_at_the_most(tmp_path: Path) -> None:
    told: list[str] = []
    stream = training(own_loader=OWN, max_workers=1, dataset_length=None)
    result = tune_fake(stream, tmp_path, listener=lambda progress: told.append(progress.message or ""))
    assert result.best is not None
    assert {trial.config.loader.num_workers for trial in result.trials} <= {0, 1}
    assert result.yours.loader.num_workers == 1
    assert any("0 and 1 worker were tried" in note for note in result.notes)
    assert any(message.startswith("a stream of samples of 3×224×224") for message in told)
    assert not any(name.startswith("epoch of") for name, *_ in best_and_baseline(result).rows)
    assert row(result, "tokens/s") is None
    assert all(ceiling.limit != "dataset" for ceiling in result.ceilings)


def test_an_option_goes_before_the_users_loader_and_a_run_is_resumed_with_or_without_the_loaders_settings(
    tmp_path: Path,
) -> None:
    given = TuneConfig(num_trials=1, yours=YourSettings(num_workers=2, batch_size=64))
    killed(tmp_path, runs_in("confirm"), given, training(own_loader=OWN))
    first = read_run(tmp_path)
    assert first.yours.loader == replace(OWN, num_workers=2, batch_size=64)
    for number, config in enumerate((given, first.config)):
        folder = shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{number}"))
        again = tune_fake(training(own_loader=OWN), folder, config, resume=True)
        assert again.yours == first.yours
        assert again.assumed == first.assumed


def test_batches_that_the_loader_makes_are_the_only_size(tmp_path: Path) -> None:
    """A limit that it does not reach is ignored."""
    own = training(own_loader=replace(OWN, batch_size=24), fixed_batch_size=24)
    result = tune_fake(own, tmp_path, TuneConfig(num_trials=3, max_batch_size=64))
    assert result.best is not None
    assert read_run(tmp_path).batch_sizes == (24,)
    assert {trial.config.batch_size for trial in result.trials} == {24}
    assert {probe.batch_size for ceiling in result.ceilings for probe in ceiling.probes} == {24}
    assert {point.batch_size for point in result.compute_points} == {24}
    assert {ceiling.limit for ceiling in result.ceilings} == {"fixed"}
    assert any(note.startswith("The batch size was not tuned: your loader's batch sampler") for note in result.notes)
    assert all(export(result, form) for form in FORMS)


ONE_SIZE = {"own_loader": OWN, "fixed_batch_size": 24}
NOT_SHARED = {"max_workers": 1}


@pytest.mark.parametrize(
    ("facts", "config", "words"),
    [
        (ONE_SIZE, TuneConfig(yours=YourSettings(batch_size=8)), "--batch-size is 8, but your loader's batch sampler"),
        (ONE_SIZE, TuneConfig(fix=(Fixed(name="batch_size", value=8),)), "--fix batch_size is 8"),
        (ONE_SIZE, TuneConfig(max_batch_size=16), "--max-batch-size is 16"),
        (NOT_SHARED, TuneConfig(yours=YourSettings(num_workers=2)), "num.workers is 2, but the stream does not split"),
        (NOT_SHARED, TuneConfig(fix=(Fixed(name="num_workers", value=2),)), "num_workers is 2, but the stream"),
        ({"own_loader": OWN}, TuneConfig(max_batch_size=64), "baseline's batch size is 128, as in your loader"),
        (
            {"own_loader": OWN, "dataset_length": 10},
            TuneConfig(),
            r"loader has batch_size=128, but an epoch has only 10 samples\. Use",
        ),
    ],
)
def test_what_the_loader_or_the_stream_does_not_allow_is_refused(
    tmp_path: Path, facts: dict[str, Any], config: TuneConfig, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        tune_fake(training(**facts), tmp_path, config)
