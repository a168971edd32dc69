"""Forms of a winner: each says what was confirmed, in a shape that its reader takes."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from forms_rig import KEPT, imported, on_cpu

from loadtune import export
from loadtune.errors import ResultError, UsageError
from loadtune.records import TuningResult
from loadtune.report.forms.trackers import Scalar, scalars
from loadtune.report.forms.write import FORMS
from loadtune.report.store import load_result


@pytest.fixture
def result() -> TuningResult:
    return load_result(KEPT)


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
    with pytest.raises(UsageError, match=r"'yaml' is no text form.*python, pytorch, lightning"):
        export(result, "yaml")
    with pytest.raises(UsageError, match="export_tensorboard"):
        export(result, "tensorboard")


@pytest.mark.parametrize("form", ["python", "pytorch", "lightning", "hf", "accelerate"])
def test_no_name_gets_out_of_its_comment(result: TuningResult, form: str) -> None:
    hostile = 'x:y\nraise SystemExit("out")\r"""\\'
    workload = dataclasses.replace(result.config.workload, dataset=hostile)
    text = export(dataclasses.replace(result, config=dataclasses.replace(result.config, workload=workload)), form)
    compile(text, form, "exec")
    assert not any(line.startswith("raise") for line in text.splitlines())


def test_the_trainer_of_a_cpu_hears_of_no_gpu(result: TuningResult) -> None:
    assert "The batch is that of one GPU" in " ".join(export(result, "hf").replace("#", "").split())
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
    assert "| throughput | **4,050/s ± 162/s** |" in text
    assert "| bound by | the pinning thread |" in text
    assert r"a\|b:\<c\>" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {3}


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


def test_scalars_leave_out_what_was_not_measured(result: TuningResult) -> None:
    found = scalars(result)
    assert {point.step for point in found} == {0, 1}  # of four trials one failed and one was not run
    assert Scalar("trial/samples_per_s", 1, 4210.0) in found
    assert {"utilization/gpu_fraction", "memory/peak_allocated_bytes"} <= {point.tag for point in found}
    bare = dataclasses.replace(
        result.trials[1],
        measurement=dataclasses.replace(result.trials[1].measurement, telemetry=None, peak_allocated_bytes=None),
    )
    tags = {point.tag for point in scalars(dataclasses.replace(result, trials=(bare,)))}
    assert not any(tag.startswith("utilization/") or tag == "memory/peak_allocated_bytes" for tag in tags)
