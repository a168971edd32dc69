"""``loadtune run -- torchrun …`` on a simulated node, beside the same script with settings that were typed.

    python benchmarks/script_ranks.py --ranks 8

Ranks train a small model over gloo; samples and steps sleep, so that cores are no limit. Prints seconds of the run, its
answer, what is said at each step, and samples/s of all ranks at each point of a grid, by the script's own clock.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loadtune.store import load_result

SCRIPT = """
import argparse, os, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--steps", type=int, default=1 << 20)
given = parser.parse_args()

class Rows(Dataset):
    def __len__(self):
        return 1 << 16
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((64,), 1.0), index % 3

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
rows = Rows()
loader = DataLoader(rows, given.batch_size, sampler=DistributedSampler(rows), num_workers=given.workers)
begun = 0.0
for number, (inputs, labels) in enumerate(loader):
    if number == given.steps // 4:
        begun = time.monotonic()
    if number == given.steps:
        break
    time.sleep(0.05 + 0.0002 * len(inputs))
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    samples = dist.get_world_size() * given.batch_size * (number - given.steps // 4)
    print("samples/s", samples / (time.monotonic() - begun))
dist.barrier()
"""


def torchrun(ranks, script, *options):
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), str(script), *options]


def typed(ranks, script, size, workers, steps):
    """Samples/s of all ranks."""
    options = ["--batch-size", str(size), "--workers", str(workers), "--steps", str(steps)]
    done = subprocess.run(torchrun(ranks, script, *options), capture_output=True, text=True)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("samples/s")]
    return float(lines[0][1]) if lines else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--time-budget", type=float, default=180.0)
    parser.add_argument("--steps", type=int, default=120, help="of each point of the grid")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        options = ["--device", "cpu", "--time-budget", str(given.time_budget), "--out", f"{folder}/found"]
        options += ["--max-batch-size", str(max(given.sizes)), "--precision", "fp32"]
        command = [sys.executable, "-m", "loadtune", "run", *options, "--", *torchrun(given.ranks, script)]
        begun = time.monotonic()
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE)
        print(done.stdout, f"exit code {done.returncode}, {time.monotonic() - begun:.0f} s", sep="\n", flush=True)
        (found,) = Path(f"{folder}/found").glob("*/*/result.json")
        result = load_result(found)
        points = list(itertools.product(given.sizes, given.workers))
        if result.best is not None:
            best = result.best.config.loader
            told = given.ranks * result.best.throughput.value
            print(f"told: batch {best.batch_size}, {best.num_workers} workers: {told:.0f} samples/s", flush=True)
            points = [(best.batch_size, best.num_workers), *points]
        for size, workers in points:
            rate = typed(given.ranks, script, size, workers, given.steps)
            print(f"typed: batch {size}, {workers} workers: {rate and round(rate)} samples/s", flush=True)


if __name__ == "__main__":
    main()
