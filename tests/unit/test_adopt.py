"""Handing out a winner: only a confirmed one, and never in silence on another machine."""

import dataclasses
from pathlib import Path

import pytest
from page_rig import GOLDEN as KEPT
from page_rig import golden

import loadtune.host.machine
from loadtune import MachineMismatchError, MachineMismatchWarning, ResultError, best_loader_kwargs
from loadtune.records.config import TuneConfig
from loadtune.records.facts import Device, HostFacts
from loadtune.records.result import Result
from loadtune.store import write_result


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch) -> Result:
    """Kept on the very machine it is read on."""
    kept = golden()
    move_to(kept.host, monkeypatch)
    return kept


def move_to(host: HostFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loadtune.host.machine, "read_host", lambda: host, raising=False)


def test_another_machine_is_a_warning_that_names_each_difference(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = dataclasses.replace(result.host, num_usable_cores=8, torch="2.12.0", gpus=())
    move_to(other, monkeypatch)
    with pytest.warns(MachineMismatchWarning) as caught:
        assert best_loader_kwargs(KEPT)["num_workers"] == 16
    message = str(caught[0].message)
    for difference in ("GPU: NVIDIA H200, here none", "usable cores: 16, here 8", "torch: 2.11.0, here 2.12.0"):
        assert difference in message
    assert caught[0].filename == __file__  # the caller's line, not ours
    with pytest.raises(MachineMismatchError, match=r"torch: 2\.11\.0, here 2\.12\.0"):
        best_loader_kwargs(KEPT, strict=True)


def test_a_cpu_result_on_a_machine_with_a_gpu_is_told(
    result: Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = dataclasses.replace(result.host, gpus=())
    on_cpu = dataclasses.replace(result, host=host, device=Device(kind="cpu", name="Xeon"))
    path = write_result(on_cpu, tmp_path)
    with pytest.raises(MachineMismatchError, match="measured on the CPU, here NVIDIA H200"):
        best_loader_kwargs(path, strict=True)
    move_to(host, monkeypatch)
    assert best_loader_kwargs(path, strict=True)


def test_no_batch_size_of_yours_is_told(result: Result, tmp_path: Path) -> None:
    path = write_result(dataclasses.replace(result, config=TuneConfig(), best_at_your_batch=None), tmp_path)
    with pytest.raises(ResultError, match="--batch-size"):
        best_loader_kwargs(path, keep_batch_size=True)
