"""Code for pasting is code: it runs, and it sets what the configuration says."""

from typing import Any

import pytest

from loadtune.records import LoaderConfig, OptimizerName, Recipe, TrialConfig
from loadtune.report.export import loader_code, recipe_code

PLAIN = TrialConfig(loader=LoaderConfig(batch_size=8), recipe=Recipe())
WORKERS = TrialConfig(
    loader=LoaderConfig(batch_size=8, num_workers=2, pin_memory=True, prefetch_factor=4), recipe=Recipe()
)


@pytest.mark.parametrize("config", [PLAIN, WORKERS])
def test_the_loader_gets_just_what_was_chosen(config: TrialConfig) -> None:
    arguments = loader_code(config).replace("from torch.utils.data import DataLoader", "")
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
    exec(recipe_code(config, optimizer, "cpu"), names)
    assert not torch.equal(model[0].weight, before)
    assert names["inputs"].is_contiguous(memory_format=torch.channels_last)
    assert names["optimizer"].defaults["fused"] is True


def test_a_plain_recipe_says_nothing_it_does_not_need() -> None:
    code = recipe_code(PLAIN, "sgd", "cpu")
    assert not any(word in code for word in ("autocast", "GradScaler", "channels_last", "fused", "non_blocking"))


def test_a_pinned_loader_copies_asynchronously() -> None:
    assert "non_blocking=True" in recipe_code(WORKERS, "sgd")
