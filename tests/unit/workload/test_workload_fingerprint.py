"""The code of a workload is told from other code, and is the same wherever nothing of it changed."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from loadtune.records.config import WorkloadSpec
from loadtune.records.facts import CodePart
from loadtune.workload.build import build_workload, code_of

JOB = """
import json
from parts.net import make
from torch.utils.data import TensorDataset
import torch

def data():
    return TensorDataset(torch.zeros(64, 4), torch.zeros(64, dtype=torch.long))

def model():
    return make()
"""

NET = """
from torch import nn

class Named(nn.Module):
    def forward(self, inputs):
        return inputs

def make():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Named(), nn.Linear(8, 2))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "net.py").write_text(NET)
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def code(**names: str) -> dict[str, str]:
    for name in ("job", "parts", "parts.net"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode  # a source that changed within a second looks old
    try:
        parts = code_of(build_workload(WorkloadSpec(**{"dataset": "job:data", "model": "job:model"} | names)))
    finally:
        sys.dont_write_bytecode = kept
    assert all(isinstance(part, CodePart) and len(part.sha256) == 64 for part in parts)
    return {part.name: part.sha256 for part in parts}


def changed(then: dict[str, str], now: dict[str, str]) -> list[str]:
    assert then.keys() == now.keys()
    return [name for name, digest in now.items() if then[name] != digest]


def test_files_of_the_users_are_named_as_they_are_imported_and_what_changed_is_told(folder: Path) -> None:
    then = code()
    assert {"job.py", "parts/__init__.py", "parts/net.py", "the model's layers"} <= set(then)
    assert not any(name.startswith(("torch/", "json/", "loadtune/", "numpy/", "torchvision/")) for name in then)
    assert changed(then, code()) == []
    (folder / "job.py").write_text(JOB.replace("def data():", "def data():\n    import time"))
    assert changed(then, code()) == ["job.py"]
    (folder / "job.py").write_text(JOB)
    (folder / "parts" / "net.py").write_text(NET.replace("ReLU", "GELU"))
    assert changed(then, code()) == ["parts/net.py", "the model's layers"]


def test_a_named_module_counts_wherever_it_is_installed(folder: Path) -> None:
    assert "torchvision/models/__init__.py" in code(dataset="FakeData", model="torchvision.models:resnet18")
    assert not any("torchvision" in name for name in code(dataset="FakeData", model="resnet18"))


def test_what_torch_compile_writes_is_no_code_of_the_users(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code()
    written = folder / "kernel.py"
    written.write_text("x = 1\n")
    for name in ("torch._inductor.runtime.compile_tasks.abc", "kernel"):
        module = ModuleType(name)
        module.__file__ = str(written)
        monkeypatch.setitem(sys.modules, name, module)
    assert set(code()) - set(before) == {"kernel.py"}
