"""``--max-gpu-memory``: what the allocator is allowed, over a device that only keeps the figures."""

import pytest
import torch

from loadtune.bench.memory import memory_of

GIB = 2**30


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """80 GiB, 70 of them free before a context of 1 GiB; nothing allocated."""
    figures = {"free": 69 * GIB, "reserved": 0, "fraction": 1.0}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (figures["free"], 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: figures["reserved"])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    fraction = "set_per_process_memory_fraction"
    monkeypatch.setattr(torch.cuda, fraction, lambda share, device: figures.update(fraction=share))
    return figures


def test_the_limit_holds_for_every_run_and_the_context_counts(device: dict[str, float]) -> None:
    memory = memory_of(torch.device("cuda"), 70 * GIB, 24 * GIB)
    memory.remember_idle()
    assert memory.outside_bytes() == GIB
    assert memory.budget_bytes() == 23 * GIB
    assert device["fraction"] == pytest.approx(23 / 80)
    with memory.capped():
        assert device["fraction"] == pytest.approx(23 / 80)
    assert device["fraction"] == pytest.approx(23 / 80)


def test_what_is_not_free_is_not_had_whatever_the_limit(device: dict[str, float]) -> None:
    device["free"] = 10 * GIB
    assert memory_of(torch.device("cuda"), 11 * GIB, 24 * GIB).budget_bytes() == 10 * GIB


def test_without_a_limit_only_probes_are_capped(device: dict[str, float]) -> None:
    memory = memory_of(torch.device("cuda"), 70 * GIB)
    memory.remember_idle()
    assert device["fraction"] == 1.0
    with memory.capped():
        assert device["fraction"] == pytest.approx(69 / 80)
    assert device["fraction"] == 1.0


@pytest.mark.parametrize(("taken_gib", "budget_gib"), [(0.5, 22.5), (20, 22), (60, 9)])
def test_what_others_take_later_is_not_charged_to_the_limit(
    device: dict[str, float], taken_gib: float, budget_gib: float
) -> None:
    """Up to a GiB may be this process's own, for kernels that it loads later; nothing is had that is not free."""
    memory = memory_of(torch.device("cuda"), 70 * GIB, 24 * GIB)
    memory.remember_idle()
    device["free"] -= taken_gib * GIB
    assert memory.budget_bytes() == budget_gib * GIB
    memory.remember_idle()
    assert memory.budget_bytes() == budget_gib * GIB
    assert device["fraction"] == pytest.approx(budget_gib / 80)
