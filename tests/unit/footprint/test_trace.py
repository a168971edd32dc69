"""The tracer names the line that did it."""

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import msgspec
import pytest
import torch
from torch import nn, overrides
from torch.optim import optimizer as optimizers
from torch.utils import _python_dispatch

import loadtune
from loadtune.footprint.trace import Tracing
from loadtune.footprint.trace_ledger import Ledger, MemoryTrace, Reading, TracedLine, TracedTensor
from loadtune.workload.user_code import is_users_file

KIB = 1024


@pytest.fixture(autouse=True)
def _no_leftovers() -> None:
    gc.collect()


def found(trace: Tracing, source: str) -> TracedLine:
    """The one record of the line that begins like this."""
    lines = [line for line in trace.lines if line.source.startswith(source)]
    assert len(lines) == 1, [line.source for line in trace.lines]
    return lines[0]


def test_lines_that_allocate_rebind_and_free_also_what_was_there_before() -> None:
    old = torch.zeros(8 * KIB, dtype=torch.uint8)
    with loadtune.trace_memory() as trace:
        x = torch.zeros(4 * KIB, dtype=torch.uint8)
        x = x + 1
        del x
        view = old[:10]
        del old, view
    made, rebound, freed = (found(trace, source) for source in ("x = torch", "x = x + 1", "del x"))
    assert (made.cpu.change_bytes, freed.cpu.change_bytes) == (4 * KIB, -4 * KIB)
    assert made.file == __file__
    assert made.cuda is None
    (tensor,) = made.appeared
    assert (tensor.shape, tensor.dtype, tensor.storage_bytes) == ((4 * KIB,), "uint8", 4 * KIB)
    assert (tensor.device, tensor.kind) == ("cpu", "Tensor")
    assert (tensor.made_file, tensor.made_line) == (__file__, made.line)
    assert (rebound.went, rebound.appeared) == ([tensor], freed.went)
    assert rebound.cpu.change_bytes == 0
    assert rebound.cpu.peak_bytes - rebound.cpu.in_use_bytes == 4 * KIB  # both stand in the peak
    assert trace.record.before_bytes >= 8 * KIB
    assert found(trace, "view =").cpu.in_use_bytes == trace.record.before_bytes
    gone = found(trace, "del old")
    assert gone.cpu.change_bytes == -8 * KIB
    assert gone.went[0].made_file is None


def test_a_leak_is_named_in_the_function_that_leaks_and_its_visits_are_one_record() -> None:
    leak: list[torch.Tensor] = []

    def leaking() -> None:
        leak.append(torch.zeros(2 * KIB, dtype=torch.uint8))

    with loadtune.trace_memory() as trace:
        for _ in range(10):
            leaking()
    line = found(trace, "leak.append")
    assert (line.num_visits, line.cpu.change_bytes) == (10, 2 * KIB)
    assert line.cpu.last_in_use_bytes - line.cpu.in_use_bytes == 9 * 2 * KIB
    assert found(trace, "leaking()").cpu.change_bytes == 0
    assert "ran 10 times" in trace.text()


def test_in_place_operations_and_views_change_nothing_but_for_memory_that_no_operation_made() -> None:
    storage = torch.UntypedStorage(4 * KIB)
    with loadtune.trace_memory() as trace:
        x = torch.zeros(4 * KIB)
        x.add_(1)
        y = x.view(2, -1).t()
        x[0] = 3
        del x
        y.mul_(2)
        z = torch.empty(0, dtype=torch.uint8)
        z.set_(storage)
    for source in ("x.add_", "y = x.view", "x[0]", "del x", "y.mul_"):
        line = found(trace, source)
        assert (line.cpu.change_bytes, line.appeared, line.went) == (0, [], []), source
    assert [tensor.storage_bytes for tensor in found(trace, "z.set_").appeared] == [4 * KIB]


def test_a_function_has_its_own_lines_and_what_it_drops_goes_on_the_calling_line() -> None:
    def work() -> None:
        scratch = torch.zeros(4 * KIB, dtype=torch.uint8)
        scratch.add_(1)

    def produce() -> Iterator[torch.Tensor]:
        for size in (1, 2):
            yield torch.zeros(size * KIB, dtype=torch.uint8)

    with loadtune.trace_memory() as trace:
        work()
        some = [torch.zeros(KIB, dtype=torch.uint8) for _ in range(3)]
        others = list(produce())
    assert found(trace, "scratch = ").cpu.change_bytes == 4 * KIB
    call = found(trace, "work()")
    assert call.cpu.change_bytes == -4 * KIB
    assert len(call.went) == 1
    assert found(trace, "some =").cpu.change_bytes == 3 * KIB
    assert (
        sum(line.cpu.change_bytes for line in trace.lines if line.source.startswith(("for size", "yield"))) == 3 * KIB
    )
    assert len(some) + len(others) == 5


def test_training_puts_gradients_on_backward_and_state_on_the_step() -> None:
    model = nn.Linear(32, 16)
    optimizer = torch.optim.Adam(model.parameters())
    with loadtune.trace_memory() as trace:
        for _ in range(3):
            loss = model(torch.ones(8, 32)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    backward = [line for line in trace.lines if line.source == "loss.backward()"]
    assert {tensor.kind for tensor in backward[0].appeared} == {"gradient"}
    assert {tensor.shape for tensor in backward[0].appeared} == {(16, 32), (16,)}
    assert sum(tensor.storage_bytes for tensor in backward[0].appeared) == 4 * (32 * 16 + 16)
    first = next(line for line in trace.lines if line.source == "optimizer.step()")
    state = [tensor for tensor in first.appeared if tensor.kind == "optimizer state"]
    assert sum(tensor.storage_bytes for tensor in state) == 2 * 4 * (32 * 16 + 16) + 2 * 4
    assert sum(line.num_visits for line in trace.lines if line.source == "optimizer.step()") == 3
    assert {t.kind for line in trace.lines for t in line.went if "zero_grad" in line.source} == {"gradient"}


def test_lines_of_the_users_files_alone_are_recorded() -> None:
    assert is_users_file(__file__)
    libraries = (torch, msgspec, sys.modules["argparse"], loadtune)
    assert not any(map(is_users_file, (*(library.__file__ for library in libraries), "<frozen importlib._bootstrap>")))


def left_behind() -> tuple[object, ...]:
    """Wherever something could be installed that costs each line or each operation."""
    modes = _python_dispatch._get_current_dispatch_mode_stack(), overrides._get_current_function_mode_stack()
    hooks = optimizers._global_optimizer_post_hooks, optimizers._global_optimizer_pre_hooks, gc.callbacks
    tracers = sys.gettrace(), threading.gettrace(), sys.getprofile(), sys._getframe(1).f_trace
    return tracers, *map(len, (*modes, *hooks))


def test_an_exception_goes_on_and_nothing_remains() -> None:
    before = left_behind()
    x = torch.zeros(4 * KIB)

    def failing() -> None:
        y = x + 1
        raise ValueError(y.shape)

    trace = loadtune.trace_memory()
    with pytest.raises(ValueError, match="4096"), trace:
        failing()
    assert left_behind() == before
    assert not weakref.getweakrefs(x.untyped_storage())
    assert found(trace, "y = x").cpu.change_bytes == 16 * KIB
    assert found(trace, "raise ValueError")


def test_a_tracer_that_was_there_is_put_back() -> None:
    seen: list[int] = []

    def debugger(frame: FrameType, event: str, arg: Any) -> Any:
        seen.append(frame.f_lineno)
        return debugger

    before = sys.gettrace()
    sys.settrace(debugger)
    try:
        with loadtune.trace_memory() as trace:
            torch.zeros(3)
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(before)
    assert found(trace, "torch.zeros")


def test_a_trace_inside_a_trace_is_refused_and_the_outer_one_goes_on() -> None:
    with loadtune.trace_memory() as trace:
        with pytest.raises(loadtune.UsageError, match="inside another trace"), loadtune.trace_memory():
            pass
        x = torch.zeros(KIB)
    assert found(trace, "x = torch").cpu.change_bytes == x.nbytes
    with pytest.raises(loadtune.UsageError, match="a second time"), trace:
        pass
    with loadtune.trace_memory():
        pass


def test_text_keeps_to_80_columns_and_json_comes_back() -> None:
    with loadtune.trace_memory() as trace:
        a_rather_long_name_of_a_variable_that_cannot_stand_in_the_table = torch.zeros(4 * KIB, dtype=torch.uint8)
        copies = [a_rather_long_name_of_a_variable_that_cannot_stand_in_the_table.clone() for _ in range(20)]
        copies.clear()
    text = trace.text()
    assert max(map(len, text.splitlines())) <= 80
    assert "20 × Tensor [4096] uint8, 4.00 KiB, cpu" in text
    assert text.splitlines()[-1].startswith("Peak ")
    assert msgspec.json.decode(trace.json(), type=MemoryTrace) == trace.record


class FakeMeter:
    """A GPU whose counters the test sets."""

    device: str | None = "cuda:0"

    def __init__(self) -> None:
        self.reading = Reading(1000, 1000)

    def read(self) -> Reading | None:
        return self.reading

    def restart_peak(self) -> None:
        self.reading = Reading(self.reading.in_use_bytes, self.reading.in_use_bytes)


def test_on_a_gpu_the_allocator_counts_what_no_tensor_explains_is_said_and_peaks_are_of_all_visits() -> None:
    meter = FakeMeter()
    ledger = Ledger(meter)
    ledger.pause()
    for line in (3, 4):
        visit = ledger.begin("train.py", line)
        if line == 3:
            ledger.born(TracedTensor(shape=(100,), dtype="float32", storage_bytes=400, device="cuda:0"))
            meter.reading = Reading(1000 + 512 + 2048, 9000)
        ledger.pause()
        ledger.end(visit)
    first, second = ledger.lines.values()
    assert (first.cuda.change_bytes, first.cuda.peak_bytes, first.cuda.unattributed_bytes) == (2560, 9000, 2048)
    assert (second.cuda.change_bytes, second.cuda.peak_bytes) == (0, 3560)
    assert first.cpu.change_bytes == 0
    for _ in range(200):
        visit = ledger.begin("train.py", 5)
        grown = meter.reading.in_use_bytes + 512
        meter.reading = Reading(grown, grown + 4096)
        ledger.pause()
        ledger.end(visit)
    *_, often = ledger.lines.values()
    assert (often.num_visits, often.cuda.change_bytes) == (200, 512)
    assert (often.cuda.in_use_bytes, often.cuda.last_in_use_bytes) == (3560 + 512, 3560 + 200 * 512)
    assert often.cuda.peak_bytes == 3560 + 200 * 512 + 4096
