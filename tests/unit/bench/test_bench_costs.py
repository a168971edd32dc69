"""Checkpoints that have no room."""

import shutil
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loadtune.bench.saving import time_saving
from loadtune.records import LoaderConfig, TrialFailure


def test_a_checkpoint_without_room_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(1000, 0, 1000))
    state = {"model": {"weight": torch.zeros(100)}, "optimizer": {"state": [torch.zeros(100)]}}
    trainer: Any = SimpleNamespace(step=lambda batch: None, state=lambda: state)
    nothing: Any = SimpleNamespace(enter=lambda phase: None)
    failure = time_saving(trainer, nothing, nothing, LoaderConfig(batch_size=2), tmp_path, 1.0, nothing)
    assert isinstance(failure, TrialFailure)
    assert failure.kind == "unsupported"
    assert failure.message.startswith("A checkpoint takes 800 B; ")
    assert failure.message.endswith("may take 500 B at most.")
    assert not list(tmp_path.iterdir())
