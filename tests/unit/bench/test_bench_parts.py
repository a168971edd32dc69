"""Parts of the bench that need no process: the queue's depth, the protocol, memory's readers, the line."""

import subprocess
import sys
import threading
from multiprocessing import Pipe

import pytest
import torch

from loadtune.bench import memory as bench_memory
from loadtune.bench import memory as memory_module
from loadtune.bench.memory import CpuMemory, memory_of
from loadtune.bench.protocol import Line, Phase, Stop
from loadtune.host.memory import Ram
from loadtune.records.measurement import Window


def test_the_line_says_what_is_done_and_hears_a_stop():
    controller, bench = Pipe()
    line = Line(bench)
    line.enter("training")
    line.pulse()  # too soon after the phase to be said
    assert controller.recv() == Phase("training")
    assert not controller.poll(0)
    controller.send(Stop())
    line = Line(bench)
    assert line.stop_asked()
    assert not line.stop_asked()


@pytest.mark.parametrize(("seconds", "hears"), [(100.0, True), (0.4, False)])
def test_after_a_long_step_the_line_waits_a_moment_for_the_answer(seconds, hears):
    """Else the step that begins meanwhile is in vain. After a short one it does not wait."""
    controller, bench = Pipe()
    line = Line(bench)
    line.window(Window(start_s=0.0, seconds=seconds, num_steps=1, num_samples=1))
    answer = threading.Timer(0.05, controller.send, [Stop()])
    answer.start()
    assert line.stop_asked() is hears
    answer.join()


def test_on_a_cpu_the_budget_holds_what_is_ours_and_stays_within_capacity():
    memory = memory_of(torch.device("cpu"))
    assert 0 < bench_memory.rss_bytes() < memory.budget_bytes() <= memory.capacity_bytes() * 1.05


TAKES_64_MIB = """
from loadtune.bench import memory as bench_memory

peak = bench_memory.PeakRss()
peak.reset()
before = peak.read_bytes()
held = bytearray(64 << 20)
held[:: 1 << 10] = bytes(len(held) >> 10)  # touched, so that it is resident
print(peak.read_bytes() - before)
"""


def test_memory_taken_since_the_reset_shows_in_the_peak():
    """In a process of its own: here, what other tests left behind may be freed meanwhile."""
    done = subprocess.run([sys.executable, "-c", TAKES_64_MIB], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 32 << 20


LIMITED = bench_memory.status_bytes("VmData") is not None


@pytest.mark.skipif(not LIMITED, reason="no VmData to limit")
def test_growth_beyond_the_limit_is_refused_until_it_is_lifted():
    with bench_memory.growth_limited(256 << 20):
        assert len(torch.empty(64 << 20, dtype=torch.uint8))
        with pytest.raises(RuntimeError, match="DefaultCPUAllocator: can't allocate memory"):
            torch.empty(1 << 30, dtype=torch.uint8)
    assert len(torch.empty(1 << 30, dtype=torch.uint8))  # never touched


@pytest.mark.parametrize(
    ("limit", "available", "grows"), [(1000, 1000, 900), (1000, 300, 200), (1000, 100, 50), (1000, 0, 0)]
)
def test_a_cpus_budget_leaves_a_tenth_to_others_and_takes_half_of_little(monkeypatch, limit, available, grows):
    ram = Ram(total_bytes=2000, limit_bytes=limit, available_bytes=available)
    monkeypatch.setattr(memory_module, "read_ram", lambda: ram)
    monkeypatch.setattr(bench_memory, "rss_bytes", lambda: 400)
    assert CpuMemory().budget_bytes() == 400 + grows
    assert CpuMemory(most_bytes=700).budget_bytes() == min(700, 400 + grows)
