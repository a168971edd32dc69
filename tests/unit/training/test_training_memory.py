"""The device's memory: its budget, ``--max-gpu-memory``, a CPU's limit, and when page-locked blocks are given back."""

import subprocess
import sys

import pytest
import torch

from loadtune.host.usable import Ram
from loadtune.training import memory as bench_memory
from loadtune.training.memory import CpuMemory, CudaMemory

TAKES_64_MIB = """
from loadtune.training.memory import CpuMemory

memory = CpuMemory()
memory.reset_peaks()
before = memory.peak_bytes()
held = bytearray(64 << 20)
held[:: 1 << 10] = bytes(len(held) >> 10)  # touched, so that it is resident
print(memory.peak_bytes() - before)
"""


def test_memory_taken_since_the_reset_shows_in_the_peak():
    """In a process of its own: here, what other tests left behind may be freed meanwhile."""
    done = subprocess.run([sys.executable, "-c", TAKES_64_MIB], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 32 << 20


@pytest.mark.skipif(bench_memory.status_bytes("VmData") is None, reason="no VmData to limit")
def test_growth_beyond_the_limit_is_refused_until_it_is_lifted(monkeypatch):
    budget = bench_memory.rss_bytes() + (256 << 20)
    monkeypatch.setattr(CpuMemory, "budget_bytes", lambda self: budget)
    with CpuMemory().capped():
        assert len(torch.empty(64 << 20, dtype=torch.uint8))
        with pytest.raises(RuntimeError, match="DefaultCPUAllocator: can't allocate memory"):
            torch.empty(1 << 30, dtype=torch.uint8)
    assert len(torch.empty(1 << 30, dtype=torch.uint8))  # never touched


@pytest.mark.parametrize(
    ("limit", "available", "grows"), [(1000, 1000, 900), (1000, 300, 200), (1000, 100, 50), (1000, 0, 0)]
)
def test_a_cpus_budget_leaves_a_tenth_to_others_and_takes_half_of_little(monkeypatch, limit, available, grows):
    ram = Ram(total_bytes=2000, limit_bytes=limit, available_bytes=available)
    monkeypatch.setattr(bench_memory, "read_ram", lambda: ram)
    monkeypatch.setattr(bench_memory, "rss_bytes", lambda: 400)
    assert CpuMemory().budget_bytes() == 400 + grows


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
    memory = CudaMemory(torch.device("cuda"), 70 * GIB, 24 * GIB)
    memory.remember_idle()
    assert memory.outside_bytes() == GIB
    assert memory.budget_bytes() == 23 * GIB
    assert device["fraction"] == pytest.approx(23 / 80)
    with memory.capped():
        assert device["fraction"] == pytest.approx(23 / 80)
    assert device["fraction"] == pytest.approx(23 / 80)


def test_without_a_limit_only_probes_are_capped(device: dict[str, float]) -> None:
    memory = CudaMemory(torch.device("cuda"), 70 * GIB)
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
    memory = CudaMemory(torch.device("cuda"), 70 * GIB, 24 * GIB)
    memory.remember_idle()
    device["free"] -= taken_gib * GIB
    assert memory.budget_bytes() == budget_gib * GIB
    memory.remember_idle()
    assert memory.budget_bytes() == budget_gib * GIB
    assert device["fraction"] == pytest.approx(budget_gib / 80)


@pytest.mark.parametrize(("kept_gib", "is_freed"), [(14, False), (16, True), (None, True)])
def test_page_locked_blocks_are_given_back_where_they_are_too_much_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, kept_gib: int | None, is_freed: bool
) -> None:
    """What is kept is not available: 15% are of both together. torch 2.6 does not tell: None."""
    freed: list[None] = []
    ram = Ram(total_bytes=200 * GIB, limit_bytes=200 * GIB, available_bytes=(100 - (kept_gib or 0)) * GIB)
    monkeypatch.setattr(bench_memory, "read_ram", lambda: ram)
    if kept_gib is None:
        monkeypatch.delattr(torch.cuda, "host_memory_stats", raising=False)
    else:
        stats = {"allocated_bytes.current": kept_gib * GIB}
        monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: stats, raising=False)
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: freed.append(None))
    CudaMemory(torch.device("cuda")).free_pinned()
    assert bool(freed) is is_freed
