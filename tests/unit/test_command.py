"""A script's command line: which word is the script, and whether it starts several ranks."""

import pytest

from loadtune.records.command import several_ranks
from loadtune.records.config import WorkloadSpec


@pytest.mark.parametrize(
    ("command", "name", "ranks"),
    [
        ("python -u code/train.py --config other.py", "train.py", None),
        ("python -m pkg.train -m x", "pkg.train", None),
        ("yolo train -m x batch=16", "yolo", None),
        ("uv run accelerate launch --num_processes 1 train.py --multi_gpu", "train.py", None),
        ("torchrun --standalone --nnodes=1:1 --nproc-per-node 1 -m pkg.train", "pkg.train", None),
        ("srun -N 1 -c 16 python train.py -n 8", "train.py", None),
        ("torchrun --nproc_per_node 8 train.py", "train.py", "--nproc_per_node 8"),
        ("python -m torch.distributed.run --nproc-per-node=gpu train.py", "train.py", "--nproc-per-node=gpu"),
        ("mpirun -np 4 ./program", "mpirun", "-np 4"),
        ("mpirun python train.py", "train.py", "mpirun"),
    ],
)
def test_the_script_names_the_job_and_launchers_say_how_many_ranks(command: str, name: str, ranks: str | None) -> None:
    spec = WorkloadSpec(command=tuple(command.split()))
    assert (spec.title, spec.label, spec.named_optimizer) == (name, name, None)
    assert several_ranks(spec.command) == ranks
