"""How well segments of one setting repeat in one training process, and with what their rates go.

    python benchmarks/segments.py [--workload fake-resnet50] [--settings bf16:256:8 bf16:256:12 fp16+fused:256:16]
                                  [--rounds 9] [--segment-s 2.4] [--whole] [--within-s S] [--out FILE.json] [--small]

A setting is PRECISION[+fused][+uint8]:BATCH:WORKERS[:unpinned], in channels_last on a GPU; ``uint8`` sends bytes and
makes floats on the GPU. Every round has each setting once. The order is reversed in every second round and begins one
setting later in the next. ``--whole`` measures all of ``--segment-s``; without it a segment ends when it has seen
enough. ``spread`` is the relative standard deviation between segments, ± the mean half-width that a segment says of
itself. The three correlations are of the rate with CPU seconds a sample in the workers (-1: the speed of the cores
explains the spread), with the GPU's clock, and with what other processes took of the cores.

The second table has, for each training step, milliseconds of the loop: waiting in ``next(loader)``, copies and
computing on the device and its idle time; and for the threads of the training process milliseconds on a core and,
behind a slash, ready to run without getting one (``/proc/PID/task/*/schedstat``).
"""

import argparse
import math
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from workloads import spec_of

from loadtune.bench import BenchClient
from loadtune.host import MonotonicClock, Sampler, read_host
from loadtune.host.gpu import choose_device
from loadtune.records.config import PRECISIONS, LoaderConfig, Recipe, TrialConfig
from loadtune.records.measurement import Measurement, TrialFailure, Window
from loadtune.search.segment import Segment, run_trial

HEADER = ("setting", "n", "samples/s", "spread", "±", "worker, clock, others", "s each", "settled", "measured s")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="fake-resnet50")
    parser.add_argument("--settings", nargs="+", default=["bf16:256:8", "bf16:256:12", "bf16:256:16"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--segment-s", type=float, default=2.4, help="longest measured part")
    parser.add_argument("--whole", action="store_true", help="measure all of --segment-s")
    parser.add_argument("--within-s", type=float, default=math.inf, help="begin no round after that")
    parser.add_argument("--out", type=Path, help="every window, those included that settled")
    parser.add_argument("--small", action="store_true", help="sizes for two CPU cores")
    return parser.parse_args()


def config_of(setting: str, *, on_gpu: bool) -> TrialConfig:
    precision, batch_size, workers, *rest = setting.split(":")
    name, *more = precision.split("+")
    (known,) = (each for each in PRECISIONS if each == name)
    recipe = Recipe(
        precision=known, memory_format="channels_last" if on_gpu else "contiguous", fused_optimizer="fused" in more
    )
    loader = LoaderConfig(batch_size=int(batch_size), num_workers=int(workers), pin_memory=on_gpu and not rest)
    return TrialConfig(loader=loader, recipe=recipe, remedies=("uint8_transfer",) if "uint8" in more else ())


class Whole(Segment):
    """Measures all of its seconds, however sure it is of the rate."""

    def _is_enough(self) -> bool:
        return math.fsum(window.seconds for window in self.kept) >= self._max_s


class Warm(Segment):
    """Ends as soon as it has settled."""

    def _is_enough(self) -> bool:
        return True


Outcome = Measurement | TrialFailure

Times = Mapping[str, tuple[float, float]]
"""By thread: seconds on a core, and seconds ready to run without one."""


def thread_times(pid: int | None) -> Times:
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            name = "main" if task.name == str(pid) else (task / "comm").read_text().strip()
            ran, waited, _ = map(int, (task / "schedstat").read_text().split())
        except OSError:  # the thread has ended
            continue
        found[name] = found[name][0] + ran / 1e9, found[name][1] + waited / 1e9
    return found


def spent(seen: Sequence[Times], run: Measurement) -> Times:
    """In a segment, from its second kept window on, scaled to all of its steps."""
    if len(seen) < 2:
        return {}
    counted = run.windows[len(run.windows) - len(seen) + 1 :]
    scale = sum(window.num_steps for window in run.windows) / max(1, sum(window.num_steps for window in counted))
    return {
        name: tuple(scale * (then - now) for then, now in zip(times, seen[0].get(name, (0.0, 0.0)), strict=True))
        for name, times in seen[-1].items()
    }


def step_row(setting: str, runs: Sequence[Measurement], threads: Sequence[Times]) -> tuple[str, ...]:
    windows = [window for run in runs for window in run.windows]
    steps = sum(window.num_steps for window in windows)

    def each(name: str) -> str:
        known = [value for window in windows if (value := getattr(window, name)) is not None]
        return f"{1e3 * math.fsum(known) / steps:.1f}" if known else "–"

    def of(thread: str) -> str:
        ran, waited = (1e3 * math.fsum(times[thread][part] for times in threads if thread in times) for part in (0, 1))
        return f"{ran / steps:.1f}/{waited / steps:.1f}"

    ready = [window.ready for window in windows if window.ready is not None]
    names = ("main", "pt_data_pin", "pt_autograd_0")
    return (
        setting,
        f"{1e3 * math.fsum(window.seconds for window in windows) / steps:.1f}",
        *map(each, ("wait_s", "copy_s", "compute_s", "idle_s")),
        f"{statistics.fmean(ready):.1f}" if ready else "–",
        *map(of, names),
    )


STEP_HEADER = ("setting", "step", "wait", "copy", "compute", "idle", "ready", "main", "pin", "autograd")


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
    given: argparse.Namespace, run: Callable[[TrialConfig], Outcome], *, on_gpu: bool
) -> dict[str, list[Measurement]]:
    clock = MonotonicClock()
    until, found = clock.now() + given.within_s, {setting: list[Measurement]() for setting in given.settings}
    for number in range(given.rounds):
        if clock.now() > until:
            break
        first = number // 2 % len(given.settings)
        order = [*given.settings[first:], *given.settings[:first]]
        for setting in order if number % 2 == 0 else reversed(order):
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
    threads: dict[TrialConfig, list[Times]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory() as folder,
        BenchClient(spec, device, log_path=Path(folder) / "bench.log") as bench,
        Sampler(device, lambda: bench.pid, host.num_usable_cores) as sampler,
    ):

        def run(config: TrialConfig, kind: type[Segment] = Whole if given.whole else Segment) -> Outcome:
            windows: list[Window] = []
            segment = kind(config.loader, given.segment_s)
            seen: list[Times] = []

            def saw(window: Window) -> None:
                windows.append(window)
                if not segment.kept:  # it settles
                    seen.clear()
                else:
                    seen.append(thread_times(bench.pid))

            outcome = run_trial(bench, sampler, MonotonicClock(), config, segment, saw)
            if isinstance(outcome, Measurement):
                threads[config].append(spent(seen, outcome))
            kept.append({"config": config, "windows": windows, "outcome": outcome, "threads": threads[config][-1:]})
            if given.out:  # at once: what was measured stays where the rest is cut off
                given.out.write_bytes(msgspec.json.encode(kept))
            return outcome

        on_gpu = device.kind == "cuda"
        for setting in given.settings:  # the first of a precision warms it
            run(config_of(setting, on_gpu=on_gpu), Warm)
        threads.clear()
        found = measure(given, run, on_gpu=on_gpu)
    print(" | ".join(HEADER))
    for setting, runs in found.items():
        print(" | ".join(row(setting, runs)) if runs else f"{setting} | 0")
    print(" | ".join(STEP_HEADER))
    for setting, runs in found.items():
        if runs:
            print(" | ".join(step_row(setting, runs, threads[config_of(setting, on_gpu=on_gpu)])))
    return int(not all(found.values()))


if __name__ == "__main__":
    sys.exit(main())
