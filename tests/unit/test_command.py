"""A script's command line: which word is the script."""

import pytest

from loadtune.records.config import WorkloadSpec


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -u code/train.py --config other.py", "train.py"),
        ("python -m pkg.train -m x", "pkg.train"),
        ("yolo train -m x batch=16", "yolo"),
        ("uv run accelerate launch --num_processes 1 train.py --multi_gpu", "train.py"),
        ("torchrun --standalone --nnodes=1:1 --nproc-per-node 1 -m pkg.train", "pkg.train"),
        ("python -m torch.distributed.run --nproc-per-node=gpu train.py", "train.py"),
        ("mpirun ./program", "mpirun"),
    ],
)
def test_the_script_names_the_job(command: str, name: str) -> None:
    spec = WorkloadSpec(command=tuple(command.split()))
    assert (spec.title, spec.label, spec.named_optimizer) == (name, name, None)
