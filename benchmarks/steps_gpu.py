"""The JPEG job of `inflight_gpu.py` under `loadtune exec`: the steps that it names beside timers around each of them.

    python benchmarks/steps_gpu.py [--workers 2] [--seconds 90] [--timed-s 40] [--batch-size 256]

An ImageFolder of JPEG files that the benchmark makes, with RandomResizedCrop, RandomHorizontalFlip, ToTensor and
Normalize, trains a ResNet-50. `exec` runs it first. Then it runs with timers, without loadtune, and with the workers
that `exec` ended with. Shares are of loading and handing over together. Without a GPU the job is small.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import inflight_gpu
import steps_pipelines
from steps import HANDING, REST, begin_timed, timed
from torch.utils.data import default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torchvision import transforms
from torchvision.datasets import ImageFolder

METHODS = [
    (transforms.RandomResizedCrop, "forward"),
    (transforms.RandomHorizontalFlip, "forward"),
    (transforms.ToTensor, "__call__"),
    (transforms.Normalize, "forward"),
]
FOLDER = "STEPS_TIMED"
"""In the environment of the training with timers: where its workers write seconds."""


def with_timers(arguments):
    """The training script, with timers in its workers: torch makes a worker's fetcher once, in the worker."""
    make = _MapDatasetFetcher.__init__

    def make_timed(self, dataset, auto_collation, collate_fn, drop_last):
        begin_timed(steps_pipelines, [*METHODS, (dataset, "loader")], Path(os.environ[FOLDER]), os.getpid())
        collate_fn = timed(steps_pipelines, collate_fn, default_collate.__name__)
        make(self, dataset, auto_collation, collate_fn, drop_last)

    _MapDatasetFetcher.__init__ = make_timed
    sys.argv = [inflight_gpu.__file__, *arguments]
    inflight_gpu.main()


def job(given, workers, seconds):
    arguments = ["train", "--job", "jpeg", "--workers", str(workers), "--seconds", str(seconds)]
    return [*arguments, "--batch-size", str(given.batch_size)]


def tuned(given):
    """(The account of its loader, what `exec` said last)."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = [sys.executable, "-m", "loadtune", "exec", "--out", folder, "--"]
        command = [*prefix, sys.executable, inflight_gpu.__file__, *job(given, given.workers, given.seconds)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        return json.loads((Path(folder) / "inflight.json").read_text())["loaders"][0], done.stderr


def seconds_of(given, workers):
    """Step → seconds of all workers, by timers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--with-timers", *job(given, workers, given.timed_s)]
        done = subprocess.run(command, env=os.environ | {FOLDER: folder}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        total = Counter()
        for file in Path(folder).glob("seconds-*.json"):
            total.update(json.loads(file.read_text())[0])
    return total


def step_named(name, labels):
    """``ImageFolder: default_loader`` and what it calls are the loader function."""
    found = next((label for label in labels if label in name), None)
    return found or ("default_loader" if ImageFolder.__name__ in name else REST)


def main():
    if sys.argv[1:2] == ["--with-timers"]:
        with_timers(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="that the script asks for")
    parser.add_argument("--seconds", type=float, default=90.0, help="of the training under exec")
    parser.add_argument("--timed-s", type=float, default=40.0, help="of the training with timers")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    account, said = tuned(given)
    print(*(line for line in said.splitlines() if line.startswith("loadtune:")), sep="\n", flush=True)
    workers = account["num_workers"]
    total = seconds_of(given, workers)
    whole_s, seen = math.fsum(total.values()), Counter()
    for step in account["steps"]:
        seen[step_named(step["name"], total)] += step["share"]
    print(f"\nworkers: {given.workers} → {workers}\n\n| step | timers | looks |\n|---|---|---|")
    for label in sorted({*total, *seen, REST, HANDING}, key=lambda label: -total[label]):
        print(f"| {label} | {total[label] / whole_s:.1%} | {seen[label]:.1%} |")
    if given.json:
        given.json.write_text(json.dumps({"account": account, "seconds": total, "said": said}, indent=1))


if __name__ == "__main__":
    main()
