"""Every batch size is compiled, also beyond the number at which PyTorch goes on without; here by dynamo alone."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from workload_rig import workload_of

from loadtune.bench import BenchClient
from loadtune.bench.compiling import Compiler
from loadtune.bench.endless_loader import EndlessLoader
from loadtune.bench.failures import failure_from
from loadtune.bench.loader import TrainingLoop
from loadtune.bench.protocol import COMPILING, Answer, Phase
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.measurement import ComputePoint, TrainingRun, TrialFailure

PYTORCHS_LIMIT = 8


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Those entered; PyTorch's settings are as before afterwards, and nothing is left to the compiler's back end."""
    import torch._dynamo as dynamo

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    handler = dynamo.callback.callback_handler
    before = list(handler.start_callbacks), list(handler.end_callbacks)
    dynamo.reset()
    usual = dynamo.config.patch(
        recompile_limit=PYTORCHS_LIMIT,
        accumulated_recompile_limit=256,
        fail_on_recompile_limit_hit=False,
        suppress_errors=True,
    )
    with usual:
        dynamo.utils.counters.clear()
        yield []
    handler.start_callbacks[:], handler.end_callbacks[:] = before


def line_of(phases: list[str]) -> Any:
    line = SimpleNamespace(phase="warm-up")

    def enter(phase: str) -> None:
        line.phase = phase
        phases.append(phase)

    line.enter = enter
    return line


def train(module: nn.Module, batch_size: int) -> None:
    module(torch.ones(batch_size, 4)).sum().backward()


def test_each_of_many_sizes_has_a_graph_of_its_own(phases: list[str]) -> None:
    compiler = Compiler(nn.Linear(4, 2), line_of(phases))
    sizes = range(2, 2 + 2 * PYTORCHS_LIMIT)
    for batch_size in sizes:
        train(compiler.module, batch_size)
    assert compiler.num_graphs == len(sizes)
    num_compiled = compiler.num_compiled
    for batch_size in sizes:
        train(compiler.module, batch_size)
    assert compiler.num_compiled == num_compiled, "each stays compiled"
    assert compiler.num_graphs == len(sizes)


def test_compiling_is_a_phase_and_takes_time(phases: list[str]) -> None:
    line = line_of(phases)
    compiler = Compiler(nn.Linear(4, 2), line)
    train(compiler.module, 2)
    assert phases[:2] == [COMPILING, "warm-up"]
    assert line.phase == "warm-up"
    assert compiler.seconds > 0
    assert compiler.num_compiled * 2 == len(phases)


def test_what_cannot_be_compiled_is_told_and_the_phase_is_over(phases: list[str]) -> None:
    class Torn(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs.view(-1, 3))

    line = line_of(phases)
    compiler = Compiler(Torn(4, 2), line)
    with pytest.raises(Exception) as info:  # noqa: PT011
        train(compiler.module, 2)
    failure = failure_from(info.value, line.phase)
    assert line.phase == "warm-up"
    assert failure.kind == "unsupported"
    assert failure.message.startswith("torch.compile failed: ")


@pytest.mark.parametrize(("last_compiled", "expected"), [(1, TrainingRun), (4, TrialFailure)])
def test_a_rate_with_compiling_in_it_is_none(last_compiled: int, expected: type) -> None:
    """The first step on a batch of the loader is no part of a window; the fourth is."""
    num_steps = 0
    dataset = [(torch.zeros(2), 0)] * 64

    def step(batch: Any) -> None:
        nonlocal num_steps
        num_steps += 1

    trainer: Any = SimpleNamespace(
        device=torch.device("cpu"),
        receive=lambda batch: batch,
        accumulate=1,
        num_samples=lambda batch: len(batch[0]),
        step=step,
        synchronize=lambda: None,
        num_halvings=lambda: 0.0,
        loss_is_finite=lambda: None,
        num_compiled=lambda: min(num_steps, last_compiled),
    )
    workload = workload_of(dataset)
    line: Any = SimpleNamespace(
        enter=lambda phase: None, pulse=lambda: None, window=lambda window: None, stop_asked=lambda: num_steps > 5
    )
    loop = TrainingLoop(lambda config: EndlessLoader(workload, config.loader))
    config = TrialConfig(loader=LoaderConfig(batch_size=2), recipe=Recipe(compile=True))
    run = loop.time_training(trainer, config, 0.0, line, begins=lambda: None)
    loop.end()
    assert type(run) is expected


class Silent:
    """Stands for a `BenchProcess` that says which phase it is in, nothing for a while, and then its answer."""

    pid = 0
    log = SimpleNamespace(size=lambda: 0, cut=lambda: None, tail=lambda num_lines=0: "")

    def __init__(self, phase: str, silent_s: float) -> None:
        self._phase, self._silent_s = phase, silent_s
        self._said_s: float | None = None

    def send(self, message: object) -> None: ...

    def receive(self, timeout_s: float) -> Any:
        if self._said_s is None:
            self._said_s = time.monotonic()
            return Phase(self._phase)
        time.sleep(0.01)
        if time.monotonic() - self._said_s < self._silent_s:
            return None
        return Answer(value=ComputePoint(recipe=Recipe(compile=True), batch_size=2, windows=()), healthy=True)

    def has_exited(self) -> bool:
        return False

    def dump_stacks(self, workers: Any = ()) -> None: ...

    def loading(self) -> tuple[()]:
        return ()

    def close(self, goodbye: object = None) -> int:
        return 0


@pytest.mark.parametrize(("phase", "expected"), [(COMPILING, ComputePoint), ("warm-up", TrialFailure)])
def test_silence_while_compiling_is_no_hang(
    phase: str, expected: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtune.bench.client.BenchProcess", lambda *given: Silent(phase, silent_s=0.3))
    with BenchClient(WorkloadSpec(), Device(kind="cpu", name="cpu"), log_path=tmp_path / "log", hang_s=0.05) as bench:
        assert type(bench.time_compute(Recipe(compile=True), 2, 0.1)) is expected
