"""Forms of a winner: each says what was confirmed, in a shape that its reader takes."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from page_rig import golden, imported, named, on_cpu

from loadtune import export
from loadtune.errors import UsageError
from loadtune.report.forms import FORMS


def test_module_and_data_hold_the_arguments_the_recipe_and_where_they_come_from(tmp_path: Path) -> None:
    module, data = imported(export(golden(), "python"), tmp_path), json.loads(export(golden(), "json"))
    assert golden().best.config.loader.kwargs() == module.LOADER_KWARGS
    recipe = {"precision": "fp16", "memory_format": "channels_last", "fused_optimizer": True, "compile": False}
    assert recipe == module.RECIPE
    assert data["loader"]["batch_size"] == 256
    assert (data["samples_per_s"], data["device"]["name"], data["torch"]) == (4050.0, "NVIDIA H200", "2.11.0")


@pytest.mark.parametrize(
    ("form", "told"),
    {
        "python": "'compile': True",
        "hf": "'torch_compile': True",
        "accelerate": 'TorchDynamoPlugin(backend="inductor", dynamic=False)',
        "env": "LOADTUNE_COMPILE=1",
    }.items(),
)
def test_a_compiled_recipe_is_told(form: str, told: str) -> None:
    assert told in export(on_cpu(compiled=True), form)
    assert told not in export(on_cpu(), form)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_can_be_had_at_the_kept_batch(form: str) -> None:
    at_any, kept = export(golden(), form), export(golden(), form, keep_batch_size=True)
    assert kept.endswith("\n")
    if form != "github-action-benchmark":  # which follows both winners
        assert "256" in at_any
        assert "64" in kept
        assert "256" not in kept


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
    text = export(named('x:y\nraise SystemExit("out")\r"""\\', golden()), form)
    compile(text, form, "exec")
    assert not any(line.startswith("raise") for line in text.splitlines())


def test_a_shell_reads_the_environment(tmp_path: Path) -> None:
    (tmp_path / "tuned.env").write_text(export(golden(), "env"))
    shell = "set -a; . ./tuned.env; env"
    told = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert {"LOADTUNE_BATCH_SIZE=256", "LOADTUNE_PIN_MEMORY=1", "LOADTUNE_PRECISION=fp16"} <= set(told.splitlines())
    assert "LOADTUNE_PREFETCH_FACTOR" not in export(on_cpu(), "env")  # without workers there is none to set


def test_markdown_shows_figures_and_escapes_names() -> None:
    text = export(named("a|b:<c>", golden()), "markdown")
    assert "| samples/s (95% CI) | 4,050 ± 162 | 1,620 ± 48.6 |" in text
    assert "the pinning thread (at most" in text
    assert r"a\|b:\<c\>" in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {4}


def test_a_benchmark_entry_is_what_its_action_checks() -> None:
    """It takes a list of name, unit and a number, and a name once; a curve goes on where the winner changes."""
    listed = json.loads(export(golden(), "github-action-benchmark"))
    for entry in listed:
        assert set(entry) <= {"name", "unit", "value", "range", "extra"}
        assert isinstance(entry["value"], (int, float))
    names = [entry["name"] for entry in listed]
    assert len({*names}) == len(names)
    best = listed[names.index("FakeData + resnet50: best")]
    assert (best["value"], best["range"], best["unit"]) == (4050.0, "± 162", "samples/s")
    with pytest.warns(UserWarning, match="not confirmed"):
        other = export(dataclasses.replace(golden(), best=golden().best_at_your_batch), "github-action-benchmark")
    assert [entry["name"] for entry in json.loads(other)] == names
