"""Microseconds of the tuner in each step, by its own clock, with batches of 1 and of 800 leaves: a Markdown table.

    python benchmarks/inflight_hook.py [--steps 10000] [--step 0.0005]

The loader has no worker, or two. Starting workers is in it where the tuner does so.
"""

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset

import loadtune
from loadtune.inflight import account


class Numbers(Dataset):
    def __init__(self, length, leaves):
        self.length, self.leaves = length, leaves

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return list(range(self.leaves))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--step", type=float, default=0.0005, help="seconds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    loadtune.install()
    print("| leaves | workers | µs a step |\n|---|---|---|")
    for leaves in (1, 800):
        for num_workers in (0, 2):
            loader = DataLoader(Numbers(given.steps, leaves), batch_size=None, num_workers=num_workers)
            for _ in loader:
                time.sleep(given.step)
            found = account.accounts()[-1]
            workers = " → ".join(str(each) for each in (num_workers, *(one["num_workers"] for one in found.switches)))
            print(f"| {leaves} | {workers} | {found.hook_s / found.num_batches * 1e6:.0f} |", flush=True)


if __name__ == "__main__":
    main()
