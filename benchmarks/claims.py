"""What segments of a few seconds tell, beside what a plain training loop reads over a minute.

    python benchmarks/claims.py [--settings bf16:256:8 bf16:256:16 fp32:256:16] [--rounds 4] [--timed-s 60]
                                [--within-s S] [--out FILE.jsonl] [--quick]

ResNet-50 on FakeData, as `peers.py` has it; a setting is written as for `segments.py`. Told is the geometric mean of
two segments of one warm training process, one before and one after the loop, which is a fresh process and shares no
line with it (`peers_loop.py`). While the loop trains, the other process waits. Settings come in random order within a
round. ``told ÷ loop`` is the geometric mean of the pairs' with its 95% interval: above 1 a segment promises more than
training keeps. With --out each pair is added to the file, and the table is of all that are in it.

--quick rehearses on a CPU with a tiny model, where it says nothing: FakeData seeds PyTorch for each sample, which has
CUDA and XPU format the stack where they do not run, and the segment's is two calls deeper. Exit code 1: no pair.
"""

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from memory_grid import FAKE, SMOKE_FAKE
from memory_pool import end_all
from memory_probe import make_slots
from peers_tools import Setup, answer_of, time_answer
from segments import config_of
from workloads import spec_of

from loadtune.bench import BenchClient
from loadtune.host import MonotonicClock, Sampler, read_host
from loadtune.host.devices import choose_device
from loadtune.records import Device, HostFacts, Measurement, TrialConfig
from loadtune.records.intervals import students_t
from loadtune.search.segment import Segment, run_trial

SEGMENT_S = 4.8
"""A segment's most in a run of 10 minutes, the default."""

QUICK = {"settings": ["fp32:64:1"], "rounds": 1, "timed_s": 2.0}
"""Defaults of a rehearsal."""


class Pair(msgspec.Struct, frozen=True):
    """Two segments and the loop between them, samples/s."""

    setting: str
    before: float
    after: float
    loop: float
    halves: float | None
    """The loop's first half ÷ its second."""

    @property
    def told(self) -> float:
        return math.sqrt(self.before * self.after)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", default=["bf16:256:8", "bf16:256:16", "fp32:256:16"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--timed-s", type=float, default=60.0, help="of one timing of the loop at the least")
    parser.add_argument("--within-s", type=float, default=math.inf, help="begin no pair after that")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tiny model on a CPU")
    given = parser.parse_args()
    return parser.parse_args(namespace=argparse.Namespace(**QUICK)) if given.quick else given


def measure(
    given: argparse.Namespace, trial: Callable[[TrialConfig], float], setup: Setup, say: Callable[[Pair], None]
) -> None:
    order, clock = random.Random(), MonotonicClock()
    until = clock.now() + given.within_s
    for _ in range(given.rounds):
        for setting in order.sample(given.settings, len(given.settings)):
            if clock.now() > until:
                return
            config = config_of(setting, on_gpu=not given.quick)
            before, loop = trial(config), time_answer(setup, answer_of(config))
            if loop.samples_per_s is None:
                print(f"{setting}: the loop ended with {loop.error}", flush=True)
            else:
                say(Pair(setting, before, trial(config), loop.samples_per_s, loop.drift))


def ratio_text(ratios: Sequence[float]) -> str:
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return f"{math.exp(mean):.3f}"
    half = students_t(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(mean):.3f} ({math.exp(mean - half):.3f} to {math.exp(mean + half):.3f})"


def table(pairs: Sequence[Pair]) -> str:
    lines = ["| setting | pairs | told | loop | told ÷ loop | each |", "|---|---|---|---|---|---|"]
    for setting in dict.fromkeys(pair.setting for pair in pairs):
        own = [pair for pair in pairs if pair.setting == setting]
        ratios = [pair.told / pair.loop for pair in own]
        told, read = (statistics.fmean(rates) for rates in ([p.told for p in own], [p.loop for p in own]))
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"| {setting} | {len(own)} | {told:,.0f} | {read:,.0f} | {ratio_text(ratios)} | {each} |")
    return "\n".join([*lines, f"All pairs: {ratio_text([pair.told / pair.loop for pair in pairs])}"])


def kept_pairs(given: argparse.Namespace, host: HostFacts, device: Device, logs: Path) -> list[Pair]:
    spec = spec_of("fake-resnet50", small=False, folder=None)
    if given.quick:
        os.environ["OMP_NUM_THREADS"] = "1"  # as the loop's rehearsal has it
        spec = replace(spec, model=f"memory_cells:{SMOKE_FAKE.model}", image_size=32, num_classes=5)
    decoder = msgspec.json.Decoder(Pair)
    there = bool(given.out and given.out.exists())
    pairs = [decoder.decode(line) for line in given.out.read_bytes().splitlines()] if there else []

    def say(pair: Pair) -> None:
        pairs.append(pair)
        print(f"{pair.setting}: {pair.before:,.0f}, loop {pair.loop:,.0f}, {pair.after:,.0f}", flush=True)
        if given.out:
            with given.out.open("ab") as file:
                file.write(msgspec.json.encode(pair) + b"\n")

    with (
        BenchClient(spec, device, log_path=logs / "bench.log") as bench,
        Sampler(device, lambda: bench.pid, host.num_usable_cores) as sampler,
    ):

        def trial(config: TrialConfig) -> float:
            found = run_trial(bench, sampler, MonotonicClock(), config, Segment(config.loader, SEGMENT_S))
            if not isinstance(found, Measurement):
                raise SystemExit(f"{found.kind}: {found.message}")
            return found.samples_per_s

        for setting in given.settings if given.rounds else ():  # warm, so that the memory in use stays the same
            trial(config_of(setting, on_gpu=not given.quick))
        (slot,) = make_slots(("cpu",) if given.quick else None, host, logs)
        setup = Setup(
            slot=slot,
            cell=SMOKE_FAKE if given.quick else FAKE,
            quick=given.quick,
            num_cores=host.num_usable_cores,
            limit_s=300.0,
            pypi=None,
            timed_s=given.timed_s,
            max_s=2 * given.timed_s,
        )
        try:
            measure(given, trial, setup, say)
        finally:
            end_all()
    return pairs


def main() -> int:
    given, host = arguments(), read_host()
    with tempfile.TemporaryDirectory() as logs:
        pairs = kept_pairs(given, host, choose_device(host, "cpu" if given.quick else None), Path(logs))
    print(table(pairs) if pairs else "no pair")
    return int(not pairs)


if __name__ == "__main__":
    sys.exit(main())
