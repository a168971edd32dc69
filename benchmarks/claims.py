"""What a trial of a few seconds tells, beside what a plain training loop reads over tens of seconds.

    python benchmarks/claims.py [--batch-size 256] [--workers 16] [--precisions fp16 bf16] [--unpinned] [--rounds 4]
                                [--timed-s 20] [--within-s S] [--note FILE] [--quick]

ResNet-50 on FakeData, as `peers.py` has it. A trial is a segment as a run times it, in a training process of its own;
the loop (`peers_loop.py`) is a fresh process and shares no line with it. One is gone before the other begins, and which
of the two comes first changes from round to round. Rates are means over the rounds. ``told ÷ loop`` is their geometric
mean with its 95% interval: above 1 the trial promises more than training keeps.

--quick rehearses on a CPU with a tiny model, where it says nothing: FakeData seeds PyTorch for each sample, which has
CUDA and XPU format the stack where they do not run, and the bench's is two calls deeper. Exit code 1: there is no pair.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from memory_grid import FAKE, SMOKE_FAKE
from memory_pool import end_all
from memory_probe import make_slots
from peers_records import Timing
from peers_tools import Setup, answer_of, time_answer
from regret_workloads import spec_of

from loadtune import __version__
from loadtune.bench import BenchClient
from loadtune.host import MonotonicClock, Sampler, read_host
from loadtune.records import (
    Device,
    HostFacts,
    LoaderConfig,
    Measurement,
    Recipe,
    TrialConfig,
    WorkloadSpec,
)
from loadtune.records.intervals import students_t
from loadtune.report.wording import settings_text
from loadtune.study.segment import Segment
from loadtune.study.trial import run_trial

SEGMENT_S = 4.8
"""A segment's most in a run of 10 minutes, the default."""

QUICK = {"batch_size": 64, "workers": 1, "precisions": ["fp32"], "rounds": 1, "timed_s": 2.0}
"""Defaults of a rehearsal."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One trial and one timing of the loop."""

    config: TrialConfig
    trial: Measurement
    loop: Timing

    @property
    def told(self) -> float:
        return self.trial.samples_per_s

    @property
    def read(self) -> float:
        return self.loop.samples_per_s or math.nan


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "fp16", "bf16"), default=["fp16", "bf16"])
    parser.add_argument("--unpinned", action="store_true")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--timed-s", type=float, default=20.0, help="of one timing of the loop at the least")
    parser.add_argument("--within-s", type=float, default=math.inf, help="begin no pair after that")
    parser.add_argument("--note", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tiny model on a CPU")
    given = parser.parse_args()
    return parser.parse_args(namespace=argparse.Namespace(**QUICK)) if given.quick else given


def configs_of(given: argparse.Namespace) -> list[TrialConfig]:
    loader = LoaderConfig(batch_size=given.batch_size, num_workers=given.workers, pin_memory=not given.unpinned)
    recipes = [Recipe(precision=precision, memory_format="channels_last") for precision in given.precisions]
    return [TrialConfig(loader=loader, recipe=recipe) for recipe in recipes]


def spec_for(given: argparse.Namespace) -> WorkloadSpec:
    spec = spec_of("fake-resnet50", small=False, folder=None)
    if given.quick:
        os.environ["OMP_NUM_THREADS"] = "1"  # as the loop's rehearsal has it
        spec = replace(spec, model=f"memory_cells:{SMOKE_FAKE.model}", image_size=32, num_classes=5)
    return spec


def trial_of(spec: WorkloadSpec, host: HostFacts, device: Device, config: TrialConfig) -> Measurement:
    with (
        tempfile.TemporaryDirectory() as folder,
        BenchClient(spec, device, log_path=Path(folder) / "bench.log") as bench,
        Sampler(device, lambda: bench.pid, host.num_usable_cores) as sampler,
    ):
        bench.time_compute(config.recipe, config.batch_size, 0.1)  # warm
        found = run_trial(bench, sampler, MonotonicClock(), config, Segment(config.loader, SEGMENT_S))
        if not isinstance(found, Measurement):
            raise SystemExit(f"{settings_text(config)}: {found.kind}: {found.message}")
        return found


def measure(given: argparse.Namespace, trial: Callable[[TrialConfig], Measurement], setup: Setup) -> list[Pair]:
    clock, pairs = MonotonicClock(), list[Pair]()
    until = clock.now() + given.within_s
    for number in range(given.rounds):
        for config in configs_of(given)[:: -1 if number % 2 else 1]:
            if clock.now() > until:
                return pairs
            if number % 2:
                loop, told = time_answer(setup, answer_of(config)), trial(config)
            else:
                told, loop = trial(config), time_answer(setup, answer_of(config))
            if loop.samples_per_s is None:
                print(f"the loop ended with {loop.error}", flush=True)
                continue
            pairs.append(Pair(config, told, loop))
            print(f"{config.precision}: told {pairs[-1].told:,.0f}, the loop reads {pairs[-1].read:,.0f}", flush=True)
    return pairs


def ratio_text(ratios: Sequence[float]) -> str:
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return f"{math.exp(mean):.2f}"
    half = students_t(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(mean):.2f} ({math.exp(mean - half):.2f} to {math.exp(mean + half):.2f})"


def table(pairs: Sequence[Pair]) -> str:
    lines = ["| configuration | pairs | told | loop | told ÷ loop |", "|---|---|---|---|---|"]
    for config in dict.fromkeys(pair.config for pair in pairs):
        own = [pair for pair in pairs if pair.config == config]
        told, read = (statistics.fmean(rates) for rates in ([p.told for p in own], [p.read for p in own]))
        ratio = ratio_text([pair.told / pair.read for pair in own])
        lines.append(f"| {settings_text(config)} | {len(own)} | {told:,.0f} | {read:,.0f} | {ratio} |")
    return "\n".join(lines)


def each(pairs: Sequence[Pair]) -> str:
    """``its halves``: the loop's first half ÷ its second."""
    lines = ["| configuration | told | loop | its halves |", "|---|---|---|---|"]
    for pair in pairs:
        halves = "–" if pair.loop.drift is None else f"{pair.loop.drift:.2f}"
        lines.append(f"| {settings_text(pair.config)} | {pair.told:,.0f} | {pair.read:,.0f} | {halves} |")
    return "\n".join(lines)


def host_line(host: HostFacts) -> str:
    return (
        f"Host: {host.cpu_name}, {host.num_usable_cores} cores, {host.os}. Python {host.python}, torch {host.torch}, "
        f"driver {host.driver or '–'}, loadtune {__version__}."
    )


def note(given: argparse.Namespace, host: HostFacts, device: Device, pairs: Sequence[Pair]) -> str:
    title = f"# What trials tell beside a plain loop on {device.name}, {datetime.now(UTC):%Y-%m-%d}"
    command = f"--batch-size {given.batch_size} --workers {given.workers} --precisions {' '.join(given.precisions)}"
    command += f"{' --unpinned' if given.unpinned else ''} --rounds {given.rounds} --timed-s {given.timed_s:g}"
    command += f" --within-s {given.within_s:g}" if math.isfinite(given.within_s) else ""
    command = f"Command: `python benchmarks/claims.py {command}{' --quick' if given.quick else ''}`."
    return "\n\n".join([title, host_line(host), command, table(pairs), each(pairs)]) + "\n"


def main() -> int:
    given = arguments()
    host = read_host()
    with tempfile.TemporaryDirectory() as logs:
        (slot,) = make_slots(("cpu",) if given.quick else None, host, Path(logs))
        setup = Setup(
            slot=slot,
            cell=SMOKE_FAKE if given.quick else FAKE,
            quick=given.quick,
            num_cores=host.num_usable_cores,
            limit_s=300.0,
            pypi=None,
            timed_s=given.timed_s,
            max_s=max(60.0, given.timed_s),
        )
        spec = spec_for(given)
        try:
            pairs = measure(given, lambda config: trial_of(spec, host, slot.device, config), setup)
        finally:
            end_all()
    print(table(pairs), each(pairs), sep="\n\n")
    if given.note:
        given.note.write_text(note(given, host, slot.device, pairs))
    return int(not pairs)


if __name__ == "__main__":
    sys.exit(main())
