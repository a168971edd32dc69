"""Forms of a winner: each says what was confirmed, in a shape that its reader takes."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from page_rig import golden, imported, on_cpu

from loadtune import export
from loadtune.errors import ResultError, UsageError
from loadtune.records.result import TuningResult
from loadtune.report.forms import FORMS


def named(**names: str) -> TuningResult:
    workload = dataclasses.replace(golden().config.workload, **names)  # type: ignore[arg-type]
    return dataclasses.replace(golden(), config=dataclasses.replace(golden().config, workload=workload))


def entries(result: TuningResult) -> dict[str, dict[str, object]]:
    listed = json.loads(export(result, "github-action-benchmark"))
    assert len({entry["name"] for entry in listed}) == len(listed)
    return {entry["name"]: entry for entry in listed}


def test_the_module_holds_the_arguments_and_the_recipe(tmp_path: Path) -> None:
    module, result = imported(export(golden(), "python"), tmp_path), golden()
    assert result.best is not None
    assert result.best.config.loader.kwargs() == module.LOADER_KWARGS
    recipe = {"precision": "fp16", "memory_format": "channels_last", "fused_optimizer": True, "compile": False}
    assert recipe == module.RECIPE


@pytest.mark.parametrize(
    ("form", "told"),
    {
        "python": "'compile': True",
        "pytorch": "model = torch.compile(model, dynamic=False)",
        "lightning": "model = torch.compile(model, dynamic=False)",
        "hf": "'torch_compile': True",
        "accelerate": 'TorchDynamoPlugin(backend="inductor", dynamic=False)',
        "json": '"compile": true',
        "env": "LOADTUNE_COMPILE=1",
        "markdown": "| recipe | torch.compile |",
    }.items(),
)
def test_a_compiled_recipe_is_told(form: str, told: str) -> None:
    assert told in export(on_cpu(compiled=True), form)
    assert told not in export(on_cpu(), form)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_can_be_had_at_the_kept_batch_and_none_without_a_confirmed_winner(form: str) -> None:
    at_any, kept = export(golden(), form), export(golden(), form, keep_batch_size=True)
    assert kept.endswith("\n")
    if form != "github-action-benchmark":  # which follows both winners
        assert "256" in at_any
        assert "64" in kept
        assert "256" not in kept
    with pytest.raises(ResultError, match="no confirmed winner"):
        export(dataclasses.replace(golden(), best=None), form)


@pytest.mark.parametrize("form", ["lightning", "hf", "accelerate"])
def test_a_setting_without_an_argument_is_told_in_a_comment(form: str) -> None:
    told = " ".join(export(golden(), form).replace("#", "").split())
    assert "model = model.to(memory_format=torch.channels_last)" in told
    assert "torch.optim.SGD(…, fused=True), as measured" in told


def test_an_unknown_form_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'yaml' is not a text format.*python, pytorch, lightning"):
        export(golden(), "yaml")


@pytest.mark.parametrize("form", ["python", "pytorch", "lightning", "hf", "accelerate"])
def test_no_name_gets_out_of_its_comment(form: str) -> None:
    text = export(named(dataset='x:y\nraise SystemExit("out")\r"""\\'), form)
    compile(text, form, "exec")
    assert not any(line.startswith("raise") for line in text.splitlines())


def test_a_shell_reads_the_environment(tmp_path: Path) -> None:
    (tmp_path / "tuned.env").write_text(export(golden(), "env"))
    shell = "set -a; . ./tuned.env; env"
    told = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert {"LOADTUNE_BATCH_SIZE=256", "LOADTUNE_PIN_MEMORY=1", "LOADTUNE_PRECISION=fp16"} <= set(told.splitlines())
    assert "LOADTUNE_PREFETCH_FACTOR" not in export(on_cpu(), "env")  # without workers there is none to set


def test_data_has_the_arguments_and_where_they_come_from() -> None:
    found = json.loads(export(golden(), "json"))
    assert found["loader"]["batch_size"] == 256
    assert (found["samples_per_s"], found["device"]["name"], found["torch"]) == (4050.0, "NVIDIA H200", "2.11.0")


def test_markdown_shows_figures_and_escapes_names() -> None:
    text = export(named(model="a|b:<c>"), "markdown")
    assert "| samples/s (95% CI) | 4,050 ± 162 | 1,620 ± 48.6 |" in text
    assert "the pinning thread (at most" in text
    assert r"a\|b:\<c\>" in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {4}


def test_a_benchmark_entry_is_what_its_action_checks() -> None:
    """It takes a list of name, unit and a number, and a name once; a curve goes on where the winner changes."""
    found = entries(golden())
    for entry in found.values():
        assert set(entry) <= {"name", "unit", "value", "range", "extra"}
        assert isinstance(entry["value"], (int, float))
    best = found["FakeData + resnet50: best"]
    assert (best["value"], best["range"], best["unit"]) == (4050.0, "± 162", "samples/s")
    with pytest.warns(UserWarning, match="not confirmed"):
        assert list(entries(dataclasses.replace(golden(), best=golden().best_at_your_batch))) == list(found)
