"""`find_batch_size` on a real GPU: its answer trains, and the caller's own GPU memory is as it was."""

import subprocess
import sys
import time

import pytest
import torch
import torchvision
from torch import nn

import loadtune
from loadtune.host.gpu import read_gpus
from loadtune.records.facts import GpuFacts

pytestmark = pytest.mark.gpu

MIB = 2**20
HOLDER = """import sys, torch
held = torch.zeros(1 << 30, dtype=torch.uint8, device='cuda')
print('held', flush=True)
sys.stdin.read()
"""


def small() -> nn.Module:
    return torchvision.models.resnet18(weights=None, num_classes=10)


def own_figures() -> tuple[int, int, list[int | None]]:
    """What this process holds by its allocator, and by the driver's list of processes, whichever of them it is."""
    used = [process.used_bytes for process in read_gpus()[torch.cuda.current_device()].processes]
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), sorted(used, key=lambda held: held or 0)


def settled(figures: tuple[int, int, list[int | None]]) -> bool:
    """Whether they come back to this; the driver strikes an ended process off its list a moment later."""
    until = time.monotonic() + 10
    while own_figures() != figures and time.monotonic() < until:
        time.sleep(0.2)
    return own_figures() == figures


def test_a_factory_is_found_a_batch_that_trains() -> None:
    ceiling = loadtune.find_batch_size(small, (3, 64, 64), precision="bf16", max_batch_size=256)
    assert (ceiling.batch_size, ceiling.safe_batch_size, ceiling.limit) == (256, 256, "cap")
    assert [probe.batch_size for probe in ceiling.probes].count(256) == 1
    assert 0 < ceiling.peak_bytes < ceiling.capacity_bytes


def test_memory_is_the_limit_and_the_safe_size_is_below_it() -> None:
    held = torch.zeros(int(0.9 * torch.cuda.mem_get_info()[0]), dtype=torch.uint8, device="cuda")  # soon found
    try:
        ceiling = loadtune.find_batch_size(small, (3, 224, 224))
        assert ceiling.limit == "memory"
        assert ceiling.safe_batch_size < ceiling.batch_size
        assert 0.85 * ceiling.budget_bytes < ceiling.peak_bytes <= ceiling.budget_bytes
    finally:
        del held
        torch.cuda.empty_cache()


def test_a_model_that_is_on_the_gpu_stays_there_and_nothing_is_added() -> None:
    model = small().cuda()
    model(torch.zeros(2, 3, 64, 64, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    before = own_figures()
    weights = [parameter.detach().clone().cpu() for parameter in model.parameters()]
    ceiling = loadtune.find_batch_size(model, (3, 64, 64), max_batch_size=128)
    assert ceiling.batch_size == 128
    assert settled(before), (before, own_figures())
    assert all(parameter.is_cuda for parameter in model.parameters())
    assert all(torch.equal(now.cpu(), then) for now, then in zip(model.parameters(), weights, strict=True))


def gpu_now() -> GpuFacts:
    return read_gpus()[torch.cuda.current_device()]


def test_the_drivers_facts_show_a_process_that_holds_memory_and_that_it_went() -> None:
    torch.zeros(1, device="cuda")
    before = gpu_now()
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline().strip() == b"held"
        during = gpu_now()
        child.communicate()
    assert before.free_bytes - during.free_bytes >= 1024 * MIB
    assert 0 < before.driver_bytes < before.total_bytes // 10
    if any(process.used_bytes for process in during.processes):  # some containers hide processes, or their sizes
        assert len(during.processes) == len(before.processes) + 1
        more = sum(p.used_bytes or 0 for p in during.processes) - sum(p.used_bytes or 0 for p in before.processes)
        assert 1024 * MIB <= more < 4096 * MIB
    until = time.monotonic() + 10
    while abs(gpu_now().free_bytes - before.free_bytes) > 64 * MIB and time.monotonic() < until:
        time.sleep(0.2)
    assert abs(gpu_now().free_bytes - before.free_bytes) <= 64 * MIB
