"""How often a confirmation calls a configuration different from itself.

    python benchmarks/same.py [--confirmations 20] [--segment-s 1.5] [--workers 1 2] [--batch-size N]
                              [--within-s S]

Each confirmation has two entries of the same loader settings, told apart by a field that means nothing for them
(`persistent_workers` in an epoch without an end). It goes in rounds as a run's does, segments of one training process,
with its planned looks. At most 2 of 60 may be called different. ResNet-18 on FakeData of 32 pixels on a CPU, ResNet-50
on a GPU.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loadtune.bench import BenchClient
from loadtune.host import MonotonicClock, read_host
from loadtune.host.devices import choose_device
from loadtune.records import LoaderConfig, Measurement, Recipe, TrialConfig, TrialFailure, WorkloadSpec
from loadtune.study.alternation import alternate
from loadtune.study.confirm import finalists
from loadtune.study.segment import Segment
from loadtune.study.trial import run_trial
from loadtune.study.winner import speedup, undecided
from loadtune.testing import FakeClock, FakeSensor


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--confirmations", type=int, default=20)
    parser.add_argument("--segment-s", type=float, default=1.5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch-size", type=int, help="default: 256 on a GPU, else 16")
    parser.add_argument("--within-s", type=float, default=1e9, help="begin no confirmation after that")
    return parser.parse_args()


def confirmed(bench: BenchClient, config: TrialConfig, segment_s: float, seed: int) -> str:
    """``different`` or not, with the ratio and its interval."""
    other = replace(config, loader=replace(config.loader, persistent_workers=not config.loader.persistent_workers))
    clock = MonotonicClock()

    def run(each: TrialConfig) -> Measurement | TrialFailure:
        return run_trial(bench, FakeSensor(FakeClock()), clock, each, Segment(each.loader, segment_s))

    outcomes = list(
        alternate(
            [config, other],
            run,
            clock,
            clock.now() + 1e6,
            needed=lambda seen, able: able,
            undecided=lambda seen: undecided(finalists(seen), config),
            seed=seed,
        )
    )
    found = finalists(outcomes)
    one, two = (next(f for f in found if f.config == each) for each in (config, other))
    ratio, low, high = speedup(two, one, found, 1)
    verdict = "same" if (low or 0.0) <= 1.0 <= (high or 9e9) else "DIFFERENT"
    return f"{verdict} {ratio:.3f} ({low:.3f} to {high:.3f}), {len(one.runs)} rounds"


def main() -> int:
    given = arguments()
    host = read_host()
    device = choose_device(host, None)
    on_gpu = device.kind == "cuda"
    image_size, batch_size = None if on_gpu else 32, given.batch_size or (256 if on_gpu else 16)
    spec = WorkloadSpec(model="resnet50" if on_gpu else "resnet18", image_size=image_size)
    recipe = Recipe(precision="bf16", memory_format="channels_last") if on_gpu else Recipe()
    clock, told = MonotonicClock(), list[str]()
    until = clock.now() + given.within_s
    with (
        tempfile.TemporaryDirectory() as folder,
        BenchClient(spec, device, log_path=Path(folder) / "bench.log") as bench,
    ):
        for number in range(given.confirmations):
            if clock.now() > until:
                break
            workers = given.workers[number % len(given.workers)]
            loader = LoaderConfig(batch_size=batch_size, num_workers=workers, pin_memory=on_gpu)
            told.append(confirmed(bench, TrialConfig(loader=loader, recipe=recipe), given.segment_s, number))
            print(f"{number + 1}: {workers} workers: {told[-1]}", flush=True)
    print(summary(told))
    return 0


def summary(told: Sequence[str]) -> str:
    return f"{sum(each.startswith('DIFFERENT') for each in told)} of {len(told)} called different"


if __name__ == "__main__":
    sys.exit(main())
