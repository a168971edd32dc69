"""How well segments of one setting repeat in one training process, and with what their rates go.

    python benchmarks/segments.py [--workload fake-resnet50] [--settings bf16:256:8 bf16:256:12 fp16+fused:256:16]
                                  [--rounds 9] [--segment-s 2.4] [--within-s S] [--out FILE.json] [--small]

A setting is PRECISION[+fused]:BATCH:WORKERS[:unpinned], in channels_last on a GPU. Every round has each setting once,
in random order. ``spread`` is the relative standard deviation between segments, ± the mean half-width that a segment
says of itself. The three correlations are of the rate with CPU seconds a sample in the workers (-1: the speed of the
cores explains the spread), with the GPU's clock, and with what other processes took of the cores.
"""

import argparse
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from workloads import spec_of

from loadtune.bench import BenchClient
from loadtune.host import MonotonicClock, Sampler, read_host
from loadtune.host.devices import choose_device
from loadtune.records import PRECISIONS, LoaderConfig, Measurement, Recipe, TrialConfig, TrialFailure, Window
from loadtune.study.segment import Segment
from loadtune.study.trial import run_trial

HEADER = ("setting", "n", "samples/s", "spread", "±", "worker, clock, others", "s each", "settled", "measured s")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="fake-resnet50")
    parser.add_argument("--settings", nargs="+", default=["bf16:256:8", "bf16:256:12", "bf16:256:16"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--segment-s", type=float, default=2.4, help="longest measured part")
    parser.add_argument("--within-s", type=float, default=math.inf, help="begin no round after that")
    parser.add_argument("--out", type=Path, help="every window, those included that settled")
    parser.add_argument("--small", action="store_true", help="sizes for two CPU cores")
    return parser.parse_args()


def config_of(setting: str, *, on_gpu: bool) -> TrialConfig:
    precision, batch_size, workers, *rest = setting.split(":")
    name, _, fused = precision.partition("+")
    (known,) = (each for each in PRECISIONS if each == name)
    recipe = Recipe(
        precision=known, memory_format="channels_last" if on_gpu else "contiguous", fused_optimizer=bool(fused)
    )
    loader = LoaderConfig(batch_size=int(batch_size), num_workers=int(workers), pin_memory=on_gpu and not rest)
    return TrialConfig(loader=loader, recipe=recipe)


def correlation(rates: Sequence[float], figures: Sequence[float | None]) -> str:
    known = [(rate, figure) for rate, figure in zip(rates, figures, strict=True) if figure is not None]
    if len(known) < 3 or len({figure for _, figure in known}) == 1:
        return "–"
    return f"{statistics.correlation([rate for rate, _ in known], [figure for _, figure in known]):+.1f}"


def worker_cpu_s(run: Measurement) -> float | None:
    """CPU seconds a sample."""
    seen = run.telemetry
    return None if seen is None or not seen.workers_cpu_cores else seen.workers_cpu_cores / run.samples_per_s


def row(setting: str, runs: Sequence[Measurement]) -> tuple[str, ...]:
    rates = [run.samples_per_s for run in runs]
    spread = statistics.stdev(rates) / statistics.fmean(rates) if len(rates) > 1 else math.nan
    causes = (
        [worker_cpu_s(run) for run in runs],
        [run.telemetry.gpu_sm_clock_hz if run.telemetry else None for run in runs],
        [run.telemetry.others_cpu_cores if run.telemetry else None for run in runs],
    )
    return (
        setting,
        str(len(runs)),
        f"{statistics.fmean(rates):,.0f}",
        f"{spread:.1%}",
        f"{statistics.fmean(run.half_width_fraction or math.nan for run in runs):.1%}",
        ", ".join(correlation(rates, figures) for figures in causes),
        f"{statistics.fmean(run.seconds for run in runs):.1f}",
        f"{sum(not run.noisy for run in runs)}",
        f"{statistics.fmean(math.fsum(w.seconds for w in run.windows) for run in runs):.1f}",
    )


def measure(
    given: argparse.Namespace, run: Callable[[TrialConfig], Measurement | TrialFailure], *, on_gpu: bool
) -> dict[str, list[Measurement]]:
    order, clock = random.Random(0), MonotonicClock()
    until, found = clock.now() + given.within_s, {setting: list[Measurement]() for setting in given.settings}
    for setting in given.settings:  # the first of a precision warms it
        run(config_of(setting, on_gpu=on_gpu))
    for _ in range(given.rounds):
        if clock.now() > until:
            break
        for setting in order.sample(given.settings, len(given.settings)):
            outcome = run(config_of(setting, on_gpu=on_gpu))
            if isinstance(outcome, Measurement):
                found[setting].append(outcome)
            else:
                print(f"{setting}: {outcome.kind}: {outcome.message}", flush=True)
    return found


def main() -> int:
    given, host = arguments(), read_host()
    device = choose_device(host, None)
    spec = spec_of(given.workload, small=given.small, folder=None)
    kept: list[dict[str, object]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        BenchClient(spec, device, log_path=Path(folder) / "bench.log") as bench,
        Sampler(device, lambda: bench.pid, host.num_usable_cores) as sampler,
    ):

        def run(config: TrialConfig) -> Measurement | TrialFailure:
            windows: list[Window] = []
            segment = Segment(config.loader, given.segment_s)
            outcome = run_trial(bench, sampler, MonotonicClock(), config, segment, windows.append)
            kept.append({"config": config, "windows": windows, "outcome": outcome})
            if given.out:  # at once: what was measured stays where the rest is cut off
                given.out.write_bytes(msgspec.json.encode(kept))
            return outcome

        found = measure(given, run, on_gpu=device.kind == "cuda")
    print(" | ".join(HEADER))
    for setting, runs in found.items():
        print(" | ".join(row(setting, runs)) if runs else f"{setting} | 0")
    return int(not all(found.values()))


if __name__ == "__main__":
    sys.exit(main())
