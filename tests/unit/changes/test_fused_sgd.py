"""A fused SGD whose momentum begins at zero trains as a plain one, also where GradScaler skips the first step."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from remedy_rig import lines_of
from torch import nn
from workload_rig import workload_of

LR = 0.1


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def pasted(made: nn.Module) -> torch.optim.Optimizer:
    names: dict[str, Any] = {"torch": torch, "model": made, "lr": LR}
    exec(lines_of("fused_optimizer", workload_of([0], made)), names)
    return names["optimizer"]


def sgd(made: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(made.parameters(), lr=LR, momentum=0.9, fused=fused)


def train(made: nn.Module, optimizer: torch.optim.Optimizer, *, overflows: int = 0, num_steps: int = 5) -> list[Any]:
    """The parameters after steps of which the first so many have gradients that are not finite."""
    scaler, generator = torch.amp.GradScaler("cpu", init_scale=4.0), torch.Generator().manual_seed(1)
    for step in range(overflows + num_steps):
        inputs = torch.full((6, 4), float("inf")) if step < overflows else torch.rand(6, 4, generator=generator)
        optimizer.zero_grad()
        scaler.scale(made(inputs).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    return [parameter.detach() for parameter in made.parameters()]


def near(one: list[Any], other: list[Any]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(one, other, strict=True))


@pytest.fixture(autouse=True)
def unset_memory_is_nan() -> Iterator[None]:
    """What a momentum holds that was never set is chance otherwise: often it is zero, as if it had been set."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("overflows", [0, 2])
def test_the_pasted_lines_train_as_a_plain_sgd_does(overflows: int) -> None:
    """Also after first steps that were skipped."""
    plain, fused, without = model(), model(), model()
    expected = train(plain, sgd(plain, fused=False), overflows=overflows)
    assert near(expected, train(fused, pasted(fused), overflows=overflows))
    assert not near(expected, list(model().parameters())), "nothing was trained: the test tests nothing"
    bare = train(without, sgd(without, fused=True), overflows=overflows)
    assert near(expected, bare) == (overflows == 0), "a fused SGD needs these lines no more: leave the second half out"
