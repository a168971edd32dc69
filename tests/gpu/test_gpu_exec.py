"""A training on a GPU under `loadtune exec`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.tensor([index])

if __name__ == "__main__":
    seen = []
    loader = DataLoader(Rows(), 16, num_workers=1, pin_memory=True, persistent_workers=True)
    for _ in range(2):
        for batch in loader:
            seen += batch.cuda(non_blocking=True).flatten().tolist()
    assert seen == 2 * list(range(4000))
"""


def test_persistent_workers_that_were_replaced_are_quiet_at_exit(tmp_path: Path) -> None:
    """Torch up to 2.11 registers workers of a pinned, persistent loader for the interpreter's exit."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "loadtune", "exec", "--", sys.executable, "train.py"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert ended.returncode == 0, ended.stderr
    lines = ended.stderr.splitlines()
    assert any("1 → " in line for line in lines), lines
    assert [line for line in lines if not line.startswith("loadtune:")] == []
