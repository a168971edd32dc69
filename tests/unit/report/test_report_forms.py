"""Forms of a winner: each says what was confirmed, in a shape that its reader takes."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from forms_rig import KEPT, imported, on_cpu

from loadtune import export
from loadtune.errors import ResultError, UsageError
from loadtune.records.config import Recipe
from loadtune.records.interval import Interval, around
from loadtune.records.measurement import Window
from loadtune.records.result import TuningResult
from loadtune.report.forms.write import FORMS
from loadtune.report.store import load_result


def window(rate: int) -> Window:
    return Window(start_s=0.0, seconds=1.0, num_steps=10, num_samples=rate)


@pytest.fixture
def result() -> TuningResult:
    return load_result(KEPT)


@pytest.fixture
def sparing(result: TuningResult) -> TuningResult:
    """The same, as if its winners had been picked for their samples per joule."""
    config = dataclasses.replace(result.config, objective="samples-per-joule")
    figures = {"samples_per_joule": around(7.4, 0.01), "efficiency_gain": Interval(value=1.5)}
    best, kept = (dataclasses.replace(w, **figures) for w in (result.best, result.best_at_your_batch) if w)
    return dataclasses.replace(result, config=config, best=best, best_at_your_batch=kept)


def test_the_module_holds_the_arguments_and_the_recipe(result: TuningResult, tmp_path: Path) -> None:
    module = imported(export(result, "python"), tmp_path)
    assert result.best is not None
    assert result.best.config.loader.kwargs() == module.LOADER_KWARGS
    recipe = {"precision": "fp16", "memory_format": "channels_last", "fused_optimizer": True, "compile": False}
    assert recipe == module.RECIPE


@pytest.mark.parametrize(
    ("form", "told"),
    {
        "python": '"compile": True',
        "pytorch": "model = torch.compile(model, dynamic=False)",
        "lightning": "model = torch.compile(model, dynamic=False)",
        "hf": '"torch_compile": True',
        "accelerate": 'TorchDynamoPlugin(backend="inductor", dynamic=False)',
        "json": '"compile": true',
        "env": "LOADTUNE_COMPILE=1",
        "markdown": "| torch.compile | yes |",
    }.items(),
)
def test_a_compiled_recipe_is_told(form: str, told: str) -> None:
    assert told in export(on_cpu(compiled=True), form)
    assert told not in export(on_cpu(), form)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_can_be_had_at_the_kept_batch(result: TuningResult, form: str) -> None:
    at_any, kept = export(result, form), export(result, form, keep_batch_size=True)
    assert kept.endswith("\n")
    if form != "github-action-benchmark":  # which follows both winners
        assert "256" in at_any
        assert "64" in kept
        assert "256" not in kept


@pytest.mark.parametrize("form", FORMS)
def test_nothing_unconfirmed_is_written(result: TuningResult, form: str) -> None:
    with pytest.raises(ResultError, match="no confirmed winner"):
        export(dataclasses.replace(result, best=None), form)


def test_an_unknown_form_names_the_known_ones(result: TuningResult) -> None:
    with pytest.raises(UsageError, match=r"'yaml' is not a text format.*python, pytorch, lightning"):
        export(result, "yaml")


@pytest.mark.parametrize("form", ["python", "pytorch", "lightning", "hf", "accelerate"])
def test_no_name_gets_out_of_its_comment(result: TuningResult, form: str) -> None:
    hostile = 'x:y\nraise SystemExit("out")\r"""\\'
    workload = dataclasses.replace(result.config.workload, dataset=hostile)
    text = export(dataclasses.replace(result, config=dataclasses.replace(result.config, workload=workload)), form)
    compile(text, form, "exec")
    assert not any(line.startswith("raise") for line in text.splitlines())


def test_the_trainer_of_a_cpu_hears_of_no_gpu(result: TuningResult) -> None:
    assert "The batch size is per GPU" in " ".join(export(result, "hf").replace("#", "").split())
    told = export(on_cpu(), "hf")
    assert "GPU" not in told
    assert "'use_cpu': True" in told or '"use_cpu": True' in told


def test_a_shell_reads_the_environment(result: TuningResult, tmp_path: Path) -> None:
    (tmp_path / "tuned.env").write_text(export(result, "env"))
    shell = "set -a; . ./tuned.env; env"
    told = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert {"LOADTUNE_BATCH_SIZE=256", "LOADTUNE_PIN_MEMORY=1", "LOADTUNE_PRECISION=fp16"} <= set(told.splitlines())
    assert "LOADTUNE_PREFETCH_FACTOR" not in export(on_cpu(), "env")  # without workers there is none to set


def test_data_has_the_arguments_and_where_they_come_from(result: TuningResult) -> None:
    found = json.loads(export(result, "json"))
    assert result.best is not None
    assert found["loader"] == result.best.config.loader.kwargs()
    assert (found["samples_per_s"], found["device"]["name"], found["torch"]) == (4050.0, "NVIDIA H200", "2.11.0")


def test_markdown_shows_figures_and_escapes_names(result: TuningResult) -> None:
    workload = dataclasses.replace(result.config.workload, model="a|b:<c>")
    text = export(dataclasses.replace(result, config=dataclasses.replace(result.config, workload=workload)), "markdown")
    assert "| samples/s (95% CI) | 4,050 ± 162 | 1,620 ± 48.6 |" in text
    assert "the pinning thread (at most" in text
    assert r"a\|b:\<c\>" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {4}


def test_a_benchmark_entry_is_what_its_action_checks(result: TuningResult) -> None:
    """It takes a list of name, unit and a number, and a name once."""
    entries = json.loads(export(result, "github-action-benchmark"))
    for entry in entries:
        assert set(entry) <= {"name", "unit", "value", "range", "extra"}
        assert isinstance(entry["value"], (int, float))
        assert all(isinstance(entry[key], str) for key in entry if key != "value")
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names)
    best = entries[names.index("FakeData + resnet50: best")]
    assert (best["value"], best["range"], best["unit"]) == (4050.0, "± 162", "samples/s")
    faster = dataclasses.replace(result, best=result.best_at_your_batch)
    assert [e["name"] for e in json.loads(export(faster, "github-action-benchmark"))] == names  # a curve goes on


@pytest.mark.parametrize("form", ["python", "pytorch", "lightning", "hf", "accelerate", "markdown"])
def test_what_a_winner_was_picked_for_is_told(result: TuningResult, sparing: TuningResult, form: str) -> None:
    told = " ".join(export(sparing, form).replace("#", "").split())
    assert "Chosen for 7.40 samples/J ± 0.07 samples/J of the GPU's board" in told
    assert "4,050 samples/s" in told
    assert "samples/J" not in export(result, form)


def test_data_has_what_a_winner_was_picked_for(result: TuningResult, sparing: TuningResult) -> None:
    found, by_speed = json.loads(export(sparing, "json")), json.loads(export(result, "json"))
    assert (found["objective"], found["samples_per_joule"]["value"]) == ("samples-per-joule", 7.4)
    assert (by_speed["objective"], by_speed["samples_per_joule"]) == ("samples-per-s", None)


def test_no_benchmark_curve_holds_winners_of_two_objectives(result: TuningResult, sparing: TuningResult) -> None:
    entries = {entry["name"]: entry for entry in json.loads(export(sparing, "github-action-benchmark"))}
    by_speed = {entry["name"] for entry in json.loads(export(result, "github-action-benchmark"))}
    assert {name for name in entries if "best" in name}.isdisjoint(by_speed)
    best = entries["FakeData + resnet50: best, samples per joule"]
    assert (best["value"], best["range"], best["unit"]) == (7.4, "± 0.074", "samples/J")
    throughput = entries["FakeData + resnet50: best by samples per joule, throughput"]
    assert (throughput["value"], throughput["unit"]) == (4050.0, "samples/s")


def test_the_benchmarks_compute_rate_is_of_the_recipe_that_was_trained(result: TuningResult) -> None:
    plain = dataclasses.replace(result.compute_points[1], recipe=Recipe(precision="fp16"), windows=(window(9000),))
    entries = json.loads(
        export(dataclasses.replace(result, compute_points=(*result.compute_points, plain)), "github-action-benchmark")
    )
    assert [e["value"] for e in entries if e["name"].endswith("fp16: compute only")] == [6121.0]
