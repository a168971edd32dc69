"""The tracer names the line that did it."""

import gc
import sys
import threading
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
from loadtune.footprint.trace import Tracing, is_users_file
from loadtune.footprint.trace_ledger import CudaReading, Ledger, MemoryTrace, TracedLine, TracedTensor

KIB = 1024
LEAK: list[torch.Tensor] = []


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    LEAK.clear()
    gc.collect()
    yield
    LEAK.clear()


def found(trace: Tracing, source: str) -> TracedLine:
    """The one record of the line that begins like this."""
    lines = [line for line in trace.lines if line.source.startswith(source)]
    assert len(lines) == 1, [line.source for line in trace.lines]
    return lines[0]


def test_a_line_that_allocates_and_a_line_that_frees() -> None:
    with loadtune.trace_memory() as trace:
        x = torch.zeros(4 * KIB, dtype=torch.uint8)
        del x
    made, freed = found(trace, "x = torch"), found(trace, "del x")
    assert (made.cpu.change_bytes, freed.cpu.change_bytes) == (4 * KIB, -4 * KIB)
    assert made.file == __file__
    assert made.cuda is None
    (tensor,) = made.appeared
    assert (tensor.shape, tensor.dtype, tensor.storage_bytes) == ((4 * KIB,), "uint8", 4 * KIB)
    assert (tensor.device, tensor.kind) == ("cpu", "Tensor")
    assert freed.went == (tensor,)
    assert (tensor.made_file, tensor.made_line) == (__file__, made.line)


def test_in_use_counts_what_was_there_before_and_its_end() -> None:
    old = torch.zeros(8 * KIB, dtype=torch.uint8)
    with loadtune.trace_memory() as trace:
        view = old[:10]
        del old, view
    assert trace.record.before_bytes >= 8 * KIB
    assert found(trace, "view =").cpu.in_use_bytes == trace.record.before_bytes
    gone = found(trace, "del old")
    assert gone.cpu.change_bytes == -8 * KIB
    assert gone.went[0].made_file is None


def test_rebinding_frees_the_old_one_and_both_stand_in_the_peak() -> None:
    with loadtune.trace_memory() as trace:
        x = torch.zeros(4 * KIB, dtype=torch.uint8)
        x = x + 1
    line = found(trace, "x = x + 1")
    assert line.cpu.change_bytes == 0
    assert line.cpu.peak_bytes - line.cpu.in_use_bytes == 4 * KIB
    assert [tensor.made_line for tensor in line.went] == [line.line - 1]
    assert len(line.appeared) == 1


def leaking() -> None:
    LEAK.append(torch.zeros(2 * KIB, dtype=torch.uint8))


def test_a_leak_is_named_in_the_function_that_leaks_and_its_visits_are_one_record() -> None:
    with loadtune.trace_memory() as trace:
        for _ in range(10):
            leaking()
    line = found(trace, "LEAK.append")
    assert (line.function, line.num_visits, line.cpu.change_bytes) == ("leaking", 10, 2 * KIB)
    assert line.cpu.last_in_use_bytes - line.cpu.in_use_bytes == 9 * 2 * KIB
    assert found(trace, "leaking()").cpu.change_bytes == 0
    assert "ran 10 times" in trace.text()


def test_in_place_operations_and_views_change_nothing() -> None:
    with loadtune.trace_memory() as trace:
        x = torch.zeros(4 * KIB)
        x.add_(1)
        y = x.view(2, -1).t()
        x[0] = 3
        del x
        y.mul_(2)
    for source in ("x.add_", "y = x.view", "x[0]", "del x", "y.mul_"):
        line = found(trace, source)
        assert (line.cpu.change_bytes, line.appeared, line.went) == (0, (), ()), source


def test_a_called_function_has_its_own_lines_and_what_it_drops_goes_on_the_calling_line() -> None:
    def work() -> None:
        scratch = torch.zeros(4 * KIB, dtype=torch.uint8)
        scratch.add_(1)

    with loadtune.trace_memory() as trace:
        work()
    assert found(trace, "scratch = ").function == "work"
    call = found(trace, "work()")
    assert call.cpu.change_bytes == -4 * KIB
    assert len(call.went) == 1


def test_a_comprehension_belongs_to_its_line_and_a_generator_to_its_own() -> None:
    def produce() -> Iterator[torch.Tensor]:
        for size in (1, 2):
            yield torch.zeros(size * KIB, dtype=torch.uint8)

    with loadtune.trace_memory() as trace:
        some = [torch.zeros(KIB, dtype=torch.uint8) for _ in range(3)]
        others = list(produce())
    assert found(trace, "some =").cpu.change_bytes == 3 * KIB
    assert sum(line.cpu.change_bytes for line in trace.lines if line.function == "produce") == 3 * KIB
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


def test_memory_that_no_operation_made_is_first_seen_where_it_is_used() -> None:
    storage = torch.UntypedStorage(4 * KIB)
    with loadtune.trace_memory() as trace:
        x = torch.empty(0, dtype=torch.uint8)
        x.set_(storage)
    assert [tensor.storage_bytes for tensor in found(trace, "x.set_").appeared] == [4 * KIB]


def test_lines_of_the_users_files_alone_are_recorded() -> None:
    assert is_users_file(__file__)
    for other in (torch.__file__, msgspec.__file__, sys.modules["argparse"].__file__, loadtune.__file__):
        assert not is_users_file(other or "")
    assert not is_users_file("<frozen importlib._bootstrap>")


def left_behind() -> tuple[object, ...]:
    """Wherever something could be installed that costs each line or each operation."""
    frame = sys._getframe(1)
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    tools = () if monitoring is None else tuple(map(monitoring.get_tool, range(6)))
    modes = _python_dispatch._get_current_dispatch_mode_stack(), overrides._get_current_function_mode_stack()
    hooks = len(optimizers._global_optimizer_post_hooks), len(optimizers._global_optimizer_pre_hooks)
    tracers = sys.gettrace(), threading.gettrace(), sys.getprofile(), frame.f_trace
    return tracers, tools, hooks, len(gc.callbacks), *map(len, modes)


def test_nothing_remains_afterwards() -> None:
    before = left_behind()
    x = torch.zeros(3)
    with loadtune.trace_memory():
        x = x + 1
    assert left_behind() == before
    import weakref

    assert not weakref.getweakrefs(x.untyped_storage())


def test_an_exception_goes_on_and_nothing_remains() -> None:
    before = left_behind()

    def failing() -> None:
        x = torch.zeros(4 * KIB)
        raise ValueError(x.shape)

    trace = loadtune.trace_memory()
    with pytest.raises(ValueError, match="4096"), trace:
        failing()
    assert left_behind() == before
    assert found(trace, "x = torch").cpu.change_bytes == 16 * KIB
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
        self.reading = CudaReading(1000, 1000)

    def read(self) -> CudaReading | None:
        return self.reading

    def restart_peak(self) -> None:
        self.reading = CudaReading(self.reading.allocated_bytes, self.reading.allocated_bytes)


def test_on_a_gpu_the_allocator_counts_and_what_no_tensor_explains_is_said() -> None:
    meter = FakeMeter()
    ledger = Ledger(meter)
    ledger.start()
    visit = ledger.begin("train.py", 3, "step")
    ledger.born(TracedTensor(shape=(100,), dtype="float32", storage_bytes=400, device="cuda:0"))
    meter.reading = CudaReading(1000 + 512 + 2048, 9000)
    ledger.pause()
    ledger.end(visit)
    following = ledger.begin("train.py", 4, "step")
    ledger.pause()
    ledger.end(following)
    first, second = ledger.lines.values()
    assert first.cuda is not None
    assert second.cuda is not None
    assert (first.cuda.change_bytes, first.cuda.peak_bytes, first.cuda.unattributed_bytes) == (2560, 9000, 2048)
    assert (second.cuda.change_bytes, second.cuda.peak_bytes) == (0, 3560)
    assert first.cpu.change_bytes == 0


def test_on_a_gpu_the_peak_of_a_line_is_the_largest_of_its_visits() -> None:
    meter = FakeMeter()
    ledger = Ledger(meter)
    ledger.start()
    for _ in range(200):
        visit = ledger.begin("train.py", 3, "step")
        grown = meter.reading.allocated_bytes + 512
        meter.reading = CudaReading(grown, grown + 4096)
        ledger.pause()
        ledger.end(visit)
    (line,) = ledger.lines.values()
    assert line.cuda is not None
    assert (line.num_visits, line.cuda.change_bytes) == (200, 512)
    assert (line.cuda.in_use_bytes, line.cuda.last_in_use_bytes) == (1512, 1000 + 200 * 512)
    assert line.cuda.peak_bytes == 1000 + 200 * 512 + 4096
