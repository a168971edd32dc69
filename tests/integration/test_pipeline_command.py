"""A script's command over a fake training whose facts are those of a script."""

from dataclasses import replace
from pathlib import Path

from fakes import FakeTraining, Surface, fake_facts
from pipeline_rig import tune_fake

from loadtune import export
from loadtune.records.config import LoaderConfig, TuneConfig, WorkloadSpec
from loadtune.report.forms import FORMS
from loadtune.report.page import PAGE_FILE
from loadtune.report.tables import best_and_baseline
from loadtune.report.terminal import terminal_answer
from loadtune.store import load_result

OWN = LoaderConfig(batch_size=128, num_workers=4, persistent_workers=False)
COMMAND = ("python", "train.py", "--batch-size", "128", "--workers", "4")


def test_the_scripts_own_settings_are_the_baseline_and_its_code_is_not_changed(tmp_path: Path) -> None:
    own = {"own_loader": OWN, "loader_place": "train.py:33", "own_precision": "fp32", "takes_channels_last": False}
    script = FakeTraining(seed=1, facts=replace(fake_facts(Surface()), **own))
    result = tune_fake(script, tmp_path, TuneConfig(num_trials=6, workload=WorkloadSpec(command=COMMAND)))
    assert (result.yours.loader, result.yours.precision, result.assumed) == (OWN, "fp32", ())
    assert result.best_at_your_batch.config.batch_size == 128
    ran = [each.config.recipe for each in (*result.trials, *result.finalists)]
    assert not any(recipe.fused_optimizer or recipe.memory_format == "channels_last" for recipe in ran)
    assert (result.remedies, "changes" in result.stage_seconds, "examine" in dict(script.requests)) == (
        None,
        False,
        False,
    )
    assert not any("hange" in note for note in result.notes), "of changes of the code"
    assert load_result(tmp_path).config.workload.command == COMMAND
    answer = terminal_answer(result)
    assert answer[2].startswith("python train.py --batch-size 128 --workers 1")
    assert answer[3] == "DataLoader(..., pin_memory=True, persistent_workers=True)  # train.py:33"
    assert any(line.startswith("With the answer an epoch takes ") for line in answer)


def test_the_layout_of_weights_that_trains_faster_is_to_be_typed_too(tmp_path: Path) -> None:
    script = FakeTraining(seed=1, facts=replace(fake_facts(Surface()), own_loader=OWN, own_precision="fp32"))
    result = tune_fake(script, tmp_path, TuneConfig(num_trials=6, workload=WorkloadSpec(command=COMMAND)))
    assert result.best_at_your_batch.config.recipe.memory_format == "channels_last"
    assert "model = model.to(memory_format=torch.channels_last)  # before the loop" in terminal_answer(result)
    assert not any(each.config.recipe.fused_optimizer for each in result.trials)


def test_a_script_that_decides_its_precision_keeps_it(tmp_path: Path) -> None:
    surface = Surface(compute_per_s={"own": 2300.0}, bytes_per_sample={"own": 87e6})
    own = {"precisions": ("own",), "own_precision": "own", "num_parameters": None, "takes_channels_last": False}
    script = FakeTraining(surface, seed=1, facts=replace(fake_facts(surface), own_loader=OWN, **own))
    result = tune_fake(script, tmp_path, TuneConfig(num_trials=3, workload=WorkloadSpec(command=COMMAND)))
    assert {point.recipe.precision for point in result.compute_points} == {"own"}
    assert [len(choice.points) for choice in result.recipes] == [1], "there is nothing to compare"
    (shown,) = (cells[1:] for cells in best_and_baseline(result).rows if cells[0] == "precision")
    assert set(shown) == {"as in your script"}
    assert "precision" not in result.assumed
    for form in FORMS:
        assert not any(word in export(result, form) for word in ("autocast", "RECIPE"))
    assert (tmp_path / PAGE_FILE).exists()
