"""Code for pasting is code: it runs, and it sets what the configuration says."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtune.records.config import LoaderConfig, OptimizerName, Recipe, TrialConfig, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.report.export import changed_statements, loader_code, recipe_code
from loadtune.report.store import load_result
from loadtune.workload import structure_text

KEPT = load_result(Path(__file__).parents[2] / "golden" / "result.json")
PLAIN = TrialConfig(loader=LoaderConfig(batch_size=8), recipe=Recipe())
WORKERS = TrialConfig(
    loader=LoaderConfig(batch_size=8, num_workers=2, pin_memory=True, prefetch_factor=4), recipe=Recipe()
)


@pytest.mark.parametrize("config", [PLAIN, WORKERS])
def test_the_loader_gets_just_what_was_chosen(config: TrialConfig) -> None:
    arguments = loader_code(KEPT, config).replace("from torch.utils.data import DataLoader", "")
    given: dict[str, Any] = {}
    exec(arguments, {"DataLoader": lambda _, **kwargs: given.update(kwargs), "dataset": []})
    assert given == {"shuffle": True, "drop_last": True, **config.loader.kwargs()}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_training_step_runs_and_trains(precision: Any, optimizer: OptimizerName) -> None:
    import torch
    from torch import nn

    config = TrialConfig(
        loader=PLAIN.loader, recipe=Recipe(precision=precision, memory_format="channels_last", fused_optimizer=True)
    )
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    before = model[0].weight.detach().clone()
    names: dict[str, Any] = {
        "model": model,
        "loss_fn": nn.functional.cross_entropy,
        # Several batches: GradScaler leaves out the first steps, which overflow.
        "loader": [(torch.randn(8, 3, 8, 8), torch.zeros(8, dtype=torch.long))] * 20,
    }
    exec(recipe_code(config, WorkloadSpec(optimizer=optimizer), "cpu"), names)
    assert not torch.equal(model[0].weight, before)
    assert names["inputs"].is_contiguous(memory_format=torch.channels_last)
    assert names["optimizer"].defaults["fused"] is True


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_lines_that_a_recipe_changes_are_statements_that_run(precision: Any) -> None:
    import torch
    from torch import nn

    recipe = Recipe(precision=precision, memory_format="channels_last", fused_optimizer=True)
    result = replace(KEPT, device=Device(kind="cpu", name="Xeon"))
    lines = changed_statements(result, replace(PLAIN, recipe=recipe), Recipe())
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    names: dict[str, Any] = {
        "torch": torch,
        "model": model,
        "loss_fn": nn.functional.cross_entropy,
        "inputs": torch.randn(8, 3, 8, 8),
        "targets": torch.zeros(8, dtype=torch.long),
    }
    exec("\n".join(lines), names)
    assert names["inputs"].is_contiguous(memory_format=torch.channels_last)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert names["optimizer"].defaults["fused"] is True
    assert any("autocast" in line for line in lines)
    assert (precision == "fp16") == any(line.startswith("scaler.scale(loss).backward(); scaler.step") for line in lines)
    assert changed_statements(KEPT, PLAIN, Recipe()) == []


def test_a_plain_recipe_says_nothing_it_does_not_need() -> None:
    code = recipe_code(PLAIN, WorkloadSpec(), "cpu")
    assert not any(word in code for word in ("autocast", "GradScaler", "channels_last", "fused", "non_blocking"))


def test_a_pinned_loader_copies_asynchronously() -> None:
    assert "non_blocking=True" in recipe_code(WORKERS, WorkloadSpec())


def test_a_loader_of_ones_own_keeps_its_other_arguments() -> None:
    own = replace(KEPT, config=replace(KEPT.config, workload=WorkloadSpec(loader="train.py:make_loader")))
    code = loader_code(own, WORKERS)
    assert "shuffle" not in code
    assert "your other arguments" in code
    assert "batch_size=8" in code
    assert own.facts is not None
    fixed = replace(own, facts=replace(own.facts, fixed_batch_size=8))
    assert "batch_size" not in loader_code(fixed, WORKERS)


def test_a_training_step_of_ones_own_is_called_and_nothing_else() -> None:
    steps: list[Any] = []
    config = TrialConfig(loader=PLAIN.loader, recipe=Recipe(precision="own"))
    names = {"make_step": lambda device: steps.append, "loader": [1, 2]}
    exec(recipe_code(config, WorkloadSpec(step="train.py:make_step"), "cpu"), names)
    assert steps == [1, 2]


def test_a_mapping_is_what_the_model_is_called_with() -> None:
    import torch
    from torch import nn

    class Called(nn.Linear):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
            return SimpleNamespace(loss=nn.functional.cross_entropy(super().forward(input_ids), labels))

    batch = {"input_ids": torch.randn(8, 4), "labels": torch.zeros(8, dtype=torch.long)}
    model = Called(4, 2)
    before = model.weight.clone()
    exec(recipe_code(PLAIN, WorkloadSpec(), "cpu", structure_text(batch)), {"model": model, "loader": [batch]})
    assert not torch.equal(before, model.weight)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("own_loss", [False, True])
def test_gradients_are_summed_over_batches(precision: Any, own_loss: bool) -> None:
    import torch
    from torch import nn

    model, num_steps = nn.Linear(4, 2), []

    class Counted(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            num_steps.append(1)

    spec = WorkloadSpec(accumulate=3, optimizer="a:make", compute_loss="a:loss" if own_loss else None)
    names: dict[str, Any] = {
        "model": model,
        "loss_fn": nn.functional.cross_entropy,
        "compute_loss": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        "make_optimizer": lambda parameters: Counted(parameters, lr=0.1),
        "loader": [(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))] * 7,
    }
    config = TrialConfig(loader=PLAIN.loader, recipe=Recipe(precision=precision))
    exec(recipe_code(config, spec, "cpu"), names)
    assert len(num_steps) <= 2, "GradScaler may leave out steps that overflow"
    assert len(num_steps) == 2 or precision == "fp16"
