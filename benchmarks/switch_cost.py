"""What a switch costs, for each way of starting workers and for a small and a large dataset.

    python benchmarks/switch_cost.py [--workers 2] [--paths 1281167]

A loop takes a batch every 10 ms and switches from 1 worker to more. ``blocked``: the longest time that the main thread
spent on the switch at one go. Under forkserver and spawn a dataset is pickled, which keeps the loop from running: where
that takes longer than half of the limit of 0.5 s, a switch waits for the end of the epoch. ``--no-limit`` shows what it
would have cost.
"""

import argparse
import math
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

from loadtune.stream.start import pickle_s
from loadtune.stream.switching import MAX_BLOCKED_S, SwitchingLoader


class Paths(Dataset[torch.Tensor]):
    """As an image folder's: a list of paths."""

    def __init__(self, num_paths: int) -> None:
        self.samples = [f"/data/train/n{number % 1000:08}/image_{number:08}.JPEG" for number in range(num_paths)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), float(len(self.samples[index])))


def switched(method: str, dataset: Dataset[torch.Tensor], num_workers: int, limit_s: float) -> str:
    own = DataLoader(dataset, batch_size=8, num_workers=1, multiprocessing_context=method)
    loader = SwitchingLoader(own, max_blocked_s=limit_s)
    iterator = iter(loader)
    for _ in range(50):
        next(iterator)
    switch, longest_s, began = loader.switch(num_workers=num_workers), 0.0, time.monotonic()
    while switch is not None and switch.delivers_s is None and time.monotonic() - began < 90:
        asked = time.monotonic()
        next(iterator)
        longest_s = max(longest_s, time.monotonic() - asked)
        time.sleep(0.01)
        if switch.start_s is None and switch.blocked_s == 0 and time.monotonic() - began > 10:
            break
    loader.close()
    if switch is None or switch.delivers_s is None:
        return "waits for the end of the epoch"
    return (
        f"blocked {switch.max_blocked_s * 1000:.0f} ms (in all {switch.blocked_s * 1000:.0f}), longest next() "
        f"{longest_s * 1000:.0f} ms, ready after {switch.start_s:.2f} s, delivers after {switch.delivers_s:.2f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--paths", type=int, default=1_281_167)
    parser.add_argument("--no-limit", action="store_true")
    given = parser.parse_args()
    limit_s = math.inf if given.no_limit else MAX_BLOCKED_S
    for num_paths in (10_000, given.paths):
        dataset = Paths(num_paths)
        took_s, half = pickle_s(dataset, MAX_BLOCKED_S / 2), MAX_BLOCKED_S / 2
        takes = f"more than {half:.2f}" if math.isinf(took_s) else f"{took_s:.2f}"
        print(f"{num_paths:,} paths, pickling takes {takes} s", flush=True)
        for method in ("fork", "forkserver", "spawn"):
            print(f"  {method}: {switched(method, dataset, given.workers, limit_s)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
