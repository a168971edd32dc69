"""Code for pasting is code: it runs, and it sets what the configuration says."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from page_rig import golden, named, on_cpu
from torch import nn
from torch.utils.data import DataLoader

from loadtune import export
from loadtune.errors import UsageError
from loadtune.records.config import LoaderConfig, OptimizerName, Recipe, TrialConfig, WorkloadSpec
from loadtune.report.forms import changed_lines, loader_code, step_code

PLAIN = TrialConfig(loader=LoaderConfig(batch_size=8), recipe=Recipe())
WORKERS = TrialConfig(
    loader=LoaderConfig(batch_size=8, num_workers=2, pin_memory=True, prefetch_factor=4), recipe=Recipe()
)
LOSS = nn.functional.cross_entropy


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 3, 8, 8), torch.zeros(8, dtype=torch.long)


def test_the_dictionaries_to_import_are_arguments_of_a_loader_and_a_recipe() -> None:
    names: dict[str, Any] = {}
    exec(export(on_cpu(), "python"), names)
    loader = DataLoader([*range(20)], shuffle=True, drop_last=True, **names["LOADER_KWARGS"])
    assert [len(part) for part in loader] == [8, 8]
    assert Recipe(**names["RECIPE"]) == on_cpu().best.config.recipe


@pytest.mark.parametrize(("precision", "optimizer"), [("fp32", "adamw"), ("fp16", "sgd"), ("bf16", "adamw")])
def test_the_training_step_and_the_lines_of_it_that_change_run_and_train(
    precision: Any, optimizer: OptimizerName
) -> None:
    result = on_cpu(optimizer=optimizer)
    recipe = Recipe(precision=precision, memory_format="channels_last", fused_optimizer=True)
    config, model = replace(PLAIN, recipe=recipe), net()
    before = model[0].weight.detach().clone()
    # Several batches: GradScaler leaves out the first steps, which overflow.
    whole: dict[str, Any] = {"model": model, "loss_fn": LOSS, "loader": [batch()] * 20}
    exec(step_code(result, config), whole)
    assert not torch.equal(model[0].weight, before)
    inputs, targets = batch()
    changed = {"torch": torch, "model": net(), "loss_fn": LOSS, "inputs": inputs, "targets": targets}
    lines = changed_lines(result, config)
    exec("\n".join(lines), changed)
    for names in (whole, changed):
        assert names["inputs"].is_contiguous(memory_format=torch.channels_last)
        assert names["model"][0].weight.is_contiguous(memory_format=torch.channels_last)
        assert names["optimizer"].defaults["fused"] is True
    assert any("autocast" in line for line in lines) == (precision != "fp32")
    scaled = ["scaler.scale(loss).backward()", "scaler.step(optimizer)", "scaler.update()"]
    assert (precision == "fp16") == (lines[-3:] == scaled)
    assert changed_lines(golden(), PLAIN) == []


def test_a_loader_of_ones_own_keeps_its_other_arguments() -> None:
    own = replace(golden(), config=replace(golden().config, workload=WorkloadSpec(loader="train.py:make_loader")))
    code = loader_code(own, WORKERS)
    assert "shuffle" not in code
    assert "your other arguments" in code
    assert "batch_size=8" in code
    fixed = replace(own, facts=replace(own.facts, fixed_batch_size=8))
    assert "batch_size" not in loader_code(fixed, WORKERS)


def test_a_mapping_is_what_the_model_is_called_with() -> None:
    class Called(nn.Linear):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
            return SimpleNamespace(loss=LOSS(super().forward(input_ids), labels))

    mapping = {"input_ids": torch.randn(8, 4), "labels": torch.zeros(8, dtype=torch.long)}
    model = Called(4, 2)
    before = model.weight.clone()
    code = step_code(on_cpu(batch_is_mapping=True), PLAIN)
    exec(code, {"model": model, "loader": [mapping]})
    assert not torch.equal(before, model.weight)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("own_batches", [False, True])
def test_gradients_are_summed_over_batches(precision: Any, own_batches: bool) -> None:
    num_steps = list[int]()

    class Counted(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            num_steps.append(1)

    spec = WorkloadSpec(accumulate=3, optimizer="a:make")
    names: dict[str, Any] = {
        "model": net(),
        "loss_fn": (lambda model, batch: LOSS(model(batch[0]), batch[1])) if own_batches else LOSS,
        "make_optimizer": lambda parameters: Counted(parameters, lr=0.1),
        "loader": [batch()] * 7,
    }
    config = replace(PLAIN, recipe=Recipe(precision=precision))
    exec(step_code(on_cpu(spec, own_batches=own_batches), config), names)
    assert len(num_steps) <= 2, "GradScaler may leave out steps that overflow"
    assert len(num_steps) == 2 or precision == "fp16"


def test_an_unknown_form_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="format is 'yaml'; it must be python, pytorch or json"):
        export(golden(), "yaml")


@pytest.mark.parametrize("form", ["python", "pytorch"])
def test_no_name_gets_out_of_its_comment(form: str) -> None:
    text = export(named('x:y\nraise SystemExit("out")\r"""\\', golden()), form)
    compile(text, form, "exec")
    assert not any(line.startswith("raise") for line in text.splitlines())
