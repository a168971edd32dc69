"""Two ranks under torchrun see what they would see without a tuner, and one of them speaks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtune.inflight import files

JOB = Path(__file__).parents[2] / "benchmarks" / "inflight_ranks.py"
SIZES = ("--steps", "60", "--sample", "0.003", "--step", "0.002", "--short", "5")


def started(*arguments: str, out: Path | None = None) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    tuned = () if out is None else (sys.executable, "-m", "loadtune", "exec", "--out", str(out), "--")
    command = [*tuned, *launcher, str(JOB), *SIZES, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def ended(run: subprocess.Popen[str]) -> tuple[list[str], list[str]]:
    """Ranks with the digests of what they saw, and what was said of them."""
    told, said = run.communicate()
    assert run.returncode == 0, said[-3000:]
    digests = sorted(line.rpartition(" ")[0] for line in told.splitlines() if ": rank " in line)
    return digests, [line for line in said.splitlines() if line.startswith("loadtune: ")]


def test_uneven_ranks_of_ddp_accelerate_and_lightning_train_the_same_and_rank_0_speaks(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    ways = ("--how", "ddp", "accelerate", "lightning")
    plain, tuned = started(*ways), started(*ways, out=tmp_path)
    without, _ = ended(plain)
    digests, said = ended(tuned)
    assert len(digests) == 6
    assert digests == without
    found = files.read(tmp_path / files.RESULT_FILE)
    assert sorted((each.name, each.rank) for each in found) == sorted(
        (name, rank) for name in {each.name for each in found} for rank in (0, 1)
    )
    assert any(each.switches or each.state == "starting" for each in found)
    assert all(any(each.name in line for line in said) for each in found), said  # whatever the script ended amid
    few = next((line for line in said if "too few batches" in line), "")  # those are of no rank
    assert sum("  rank 1: " in line for line in said) == sum(each.name not in few for each in found if each.rank), said
