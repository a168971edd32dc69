"""What a trial costs beyond its timed windows: the same configuration again and again, with a fresh loader each time.

    python benchmarks/trial_overhead.py [--batch-size 256] [--num-workers 16] [--alternate]

``first batch`` is the workers' start and one batch, which the user's own training pays as well; ``rest`` is ours: model
reset, warm-up, teardown, memory given back. With ``--alternate`` every other trial has half the batch, so that nothing
pinned can be used again. Rates are shown to see that what is kept between trials does not change them.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from loadtune.bench import BenchClient
from loadtune.host import choose_device, read_host
from loadtune.records import LoaderConfig, Recipe, TrainingRun, TrialConfig, Window, WorkloadSpec

WINDOW_S = 0.4


def watch_for(num_windows: int) -> Callable[[Window], bool]:
    seen: list[Window] = []

    def watch(window: Window) -> bool:
        seen.append(window)
        return len(seen) < num_windows

    return watch


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--num-workers", type=int, default=16)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--alternate", action="store_true")
    return parser.parse_args()


def run_trial(bench: BenchClient, config: TrialConfig, num_windows: int) -> None:
    started = time.monotonic()
    run = bench.time_training(config, WINDOW_S, watch_for(num_windows))
    seconds = time.monotonic() - started
    if not isinstance(run, TrainingRun):
        print(f"{config.batch_size:6} {run.kind}: {run.message}")
        return
    timed = sum(window.seconds for window in run.windows)
    rates = " ".join(f"{window.num_samples / window.seconds:.0f}" for window in run.windows)
    rest = seconds - timed - run.first_batch_s
    print(f"{config.batch_size:6}{seconds:8.2f} s{timed:8.2f} s{run.first_batch_s:12.2f} s{rest:8.2f} s   {rates}")


def main() -> None:
    given = arguments()
    device = choose_device(read_host(), None)
    recipe = Recipe()
    if device.kind == "cuda":
        recipe = Recipe(precision="fp16", memory_format="channels_last", fused_optimizer=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        BenchClient(WorkloadSpec(model=given.model), device, log_path=Path(folder) / "bench.log") as bench,
    ):
        print(f"{device.name}, torch {bench.describe().torch}, {given.model}, {given.num_workers} workers")
        print(f"{'batch':>6}{'trial':>10}{'timed':>10}{'first batch':>14}{'rest':>10}   samples/s of each window")
        for number in range(given.trials):
            batch_size = given.batch_size // 2 if given.alternate and number % 2 else given.batch_size
            loader = LoaderConfig(
                batch_size=batch_size, num_workers=given.num_workers, pin_memory=device.kind == "cuda"
            )
            run_trial(bench, TrialConfig(loader=loader, recipe=recipe), given.windows)


if __name__ == "__main__":
    main()
