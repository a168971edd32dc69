"""Two ranks under torchrun see what they would see without a tuner, and one of them speaks."""

import os
import socket
import sys
from pathlib import Path

import pytest
from forked import Forked, finished

from loadtune.inflight.account import RESULT_FILE, read_accounts

JOB = Path(__file__).parents[2] / "benchmarks" / "inflight_ranks.py"
SIZES = ("--steps", "60", "--sample", "0.003", "--step", "0.002", "--short", "5")


def digests_of(told: str) -> list[str]:
    """Ranks with the digests of what they saw."""
    return sorted(line.rpartition(" ")[0] for line in told.splitlines() if ": rank " in line)


def without_a_tuner(told: Path, *words: str) -> list[str]:
    """The ranks as torchrun would start them, but forked from this process, which has imported torch."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": str(listener.getsockname()[1])}
    shared |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none", **os.environ}
    with told.open("w") as out:
        ranks = [
            Forked([sys.executable, *words], env=shared | {"RANK": rank, "LOCAL_RANK": rank}, stdout=out, stderr=out)
            for rank in "01"
        ]
    assert [rank.wait() for rank in ranks] == [0, 0], told.read_text()[-3000:]
    return digests_of(told.read_text())


def test_uneven_ranks_of_ddp_accelerate_and_lightning_train_the_same_and_rank_0_speaks(tmp_path: Path) -> None:
    for package in ("lightning.pytorch", "accelerate"):  # once for all processes
        pytest.importorskip(package)
    words = (str(JOB), *SIZES, "--how", "ddp", "accelerate", "lightning")
    without = without_a_tuner(tmp_path / "told", *words)
    exec_ = [sys.executable, "-m", "loadtune", "exec", "--out", str(tmp_path), "--", sys.executable]
    command = [*exec_, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    tuned = finished(command, tmp_path / "tuned", env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert tuned.returncode == 0, tuned.stderr[-3000:]
    digests, said = digests_of(tuned.stdout), [line for line in tuned.stderr.splitlines() if line[:10] == "loadtune: "]
    assert len(digests) == 6
    assert digests == without
    found = read_accounts(tmp_path / RESULT_FILE)
    assert sorted((each.name, each.rank) for each in found) == sorted(
        (name, rank) for name in {each.name for each in found} for rank in (0, 1)
    )
    assert any(each.switches or each.state == "starting" for each in found)
    assert all(any(each.name in line for line in said) for each in found), said  # whatever the script ended amid
    few = next((line for line in said if "too few batches" in line), "")  # those are of no rank
    assert sum("  rank 1: " in line for line in said) == sum(each.name not in few for each in found if each.rank), said
