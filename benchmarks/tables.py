"""Measure a table of settings of one workload on this machine, for the replays of the throughput model.

    python benchmarks/tables.py WORKLOAD --out FILE [--rows 28] [--near 12] [--rounds 2] [--within-s S]
                                [--max-batch-size N] [--small]

First the calibration: the seconds of a sample, and training steps without a loader at four batch sizes of each
precision. Then ``--rows`` settings far from each other and ``--near`` more beside the best three, each once a round as
a segment of one training process, in an order that is drawn anew for each round. Called again with the same FILE it
goes on where it was. Exit code 3: not complete.

A table keeps what a replay reads: of each segment sums of its windows and of its workers, and figures to seven digits.
"""

import argparse
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from workloads import spec_of

from loadtune.decide.search import Segment
from loadtune.decide.space import SearchSpace
from loadtune.host.machine import choose_device, machine_probes, read_host
from loadtune.host.telemetry import Sampler
from loadtune.model.workers import fits_host
from loadtune.records.config import TrialConfig, TuneConfig, WorkloadSpec
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.records.measurement import ComputePoint, Measurement, Telemetry, TrialFailure, Window
from loadtune.run.calibration import calibrate, search_space, start
from loadtune.run.state import Run, State
from loadtune.training.client import TrainingClient

SIZES = (16, 64, 256, 1024)
"""Batch sizes of the compute curve, where they fit; a larger one where the search goes beyond 4 times the last."""

COMPUTE_S, SEGMENT_S = 0.5, 2.4

SUMS = ("seconds", "num_steps", "num_samples", "wait_s", "copy_s", "compute_s", "num_pinned", "num_taken")
"""Fields of a window that are summed over those that are alike."""

DIGITS = 7


class Row(msgspec.Struct, frozen=True):
    """One setting and every segment of it."""

    config: TrialConfig
    runs: tuple[Measurement, ...] = ()


class Table(msgspec.Struct, frozen=True):
    """What was measured, and on what."""

    name: str
    created: str
    host: HostFacts
    device: Device
    workload: WorkloadSpec
    facts: WorkloadFacts
    compute: tuple[ComputePoint, ...]
    rows: tuple[Row, ...] = ()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=28)
    parser.add_argument("--near", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--within-s", type=float, default=math.inf)
    parser.add_argument("--max-batch-size", type=int)
    parser.add_argument("--small", action="store_true", help="sizes for two CPU cores")
    parser.add_argument("--jpegs", type=Path, help="folder of the JPEG files that are made")
    return parser.parse_args()


class Machine:
    """A training process, its sensor, and the stages of a run before the search."""

    def __init__(self, spec: WorkloadSpec, folder: Path, max_batch_size: int | None) -> None:
        self.host = read_host()
        self.device = choose_device(self.host, None)
        self.training = TrainingClient(spec, self.device, log_path=folder / "training.log")
        self.sensor = Sampler(machine_probes(self.device, lambda: self.training.pid))
        config = TuneConfig(workload=spec, max_batch_size=max_batch_size)
        state = State(config, self.host, self.device, "table")
        self.run = Run(state, time.monotonic, self.training, self.sensor, folder, read_host)

    def space(self) -> SearchSpace:
        """Also tells `run` of facts, recipes and memory ceilings."""
        facts = start(self.run)
        calibrate(self.run, facts)
        return search_space(self.run, facts)

    def curve(self, space: SearchSpace) -> Iterator[ComputePoint]:
        """Steps without a loader, at every precision."""
        for precision, recipe in space.recipes.items():
            top = min(space.ceilings[precision], max(space.batch_sizes))
            for size in sorted({*(size for size in SIZES if size < top), top}):
                point = self.training.time_compute(recipe, size, COMPUTE_S)
                if isinstance(point, ComputePoint):
                    yield point

    def time(self, config: TrialConfig) -> Measurement | TrialFailure:
        return self.run.run_trial(config, Segment(config.loader, SEGMENT_S))


def apart(space: SearchSpace, able: list[TrialConfig], count: int) -> list[TrialConfig]:
    """Each the one farthest from those before it; the first by chance."""
    left = random.Random(0).sample(able, len(able))
    picked = left[:1]
    while len(picked) < min(count, len(left)):
        picked.append(max(left, key=lambda config: min(distance(space, config, other) for other in picked)))
    return picked


def beside(space: SearchSpace, able: list[TrialConfig], rows: list[Row], count: int) -> list[TrialConfig]:
    """Those nearest to the best three that are not among the rows."""
    best = sorted(rows, key=lambda row: -mean_rate(row))[:3]
    have = {row.config for row in rows}
    left = [config for config in random.Random(1).sample(able, len(able)) if config not in have]
    return sorted(left, key=lambda config: min(distance(space, config, row.config) for row in best))[:count]


def distance(space: SearchSpace, one: TrialConfig, other: TrialConfig) -> float:
    """Each axis counts 1 from end to end."""
    first, second = space.point(one), space.point(other)
    steps = [
        (axis.index(first[name]) - axis.index(second[name])) / max(1, len(axis) - 1)
        for name, axis in space.axes.items()
    ]
    return math.sqrt(math.fsum(step**2 for step in steps))


def mean_rate(row: Row) -> float:
    return math.fsum(run.samples_per_s for run in row.runs) / max(1, len(row.runs))


def write(table: Table, path: Path) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    plain = msgspec.to_builtins(table)
    part.write_bytes(msgspec.json.encode(plain | {name: lean(plain[name]) for name in ("compute", "rows")}) + b"\n")
    part.replace(path)


def lean(value: Any) -> Any:
    """Without fields that are None or empty, which is their default, and with figures to `DIGITS` digits."""
    if isinstance(value, dict):
        return {name: lean(each) for name, each in value.items() if each is not None and each not in ([], {}, ())}
    if isinstance(value, list | tuple):
        return [lean(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def main() -> int:
    given, begun = arguments(), time.monotonic()
    spec = spec_of(given.workload, small=given.small, folder=given.jpegs)
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(spec, Path(folder), given.max_batch_size)
        with machine.training, machine.sensor:
            space = machine.space()
            facts = machine.run.state.facts
            assert facts is not None
            if given.out.exists():
                table = msgspec.json.decode(given.out.read_bytes(), type=Table)
            else:
                table = Table(
                    name=f"{given.workload}{'-small' if given.small else ''}",
                    created=datetime.now(UTC).isoformat(timespec="seconds"),
                    host=machine.host,
                    device=machine.device,
                    workload=spec,
                    facts=facts,
                    compute=tuple(replace(each, windows=summed(each.windows)) for each in machine.curve(space)),
                )
            able = [config for config in space.modelled() if fits_host(config.loader, facts.sample_bytes, machine.host)]
            print(f"calibrated in {time.monotonic() - begun:.0f} s; {len(able)} settings", flush=True)
            table = fill(machine, space, able, table, given, begun + given.within_s)
    done = bool(table.rows) and all(len(row.runs) >= given.rounds for row in table.rows)
    for row in sorted(table.rows, key=lambda row: -mean_rate(row))[:5]:
        print(f"{mean_rate(row):,.0f}/s {row.config.loader} {row.config.precision}, {len(row.runs)} runs")
    print(f"{len(table.rows)} rows in {time.monotonic() - begun:.0f} s{'' if done else ', not complete'}")
    return 0 if done else 3


def fill(
    machine: Machine, space: SearchSpace, able: list[TrialConfig], table: Table, given: argparse.Namespace, until: float
) -> Table:
    """Round after round; those beside the best join in the first."""
    order = random.Random(table.created)
    rows = {row.config: row for row in table.rows}
    for number in range(given.rounds):
        turns = [apart(space, able, given.rows)] if number == 0 else [list(rows)]
        for turn in turns:
            for config in order.sample(turn, len(turn)):
                row = rows.get(config, Row(config))
                if len(row.runs) > number or time.monotonic() > until:
                    continue
                outcome = machine.time(config)
                if isinstance(outcome, Measurement):
                    rows[config] = Row(config, (*row.runs, slim(outcome)))
                    table = msgspec.structs.replace(table, rows=tuple(rows.values()))
                    write(table, given.out)
                else:
                    print(f"{config}: {outcome.message}", flush=True)
            if number == 0 and len(turns) == 1 and len(rows) < given.rows + given.near:
                turns.append(beside(space, able, list(rows.values()), given.near))
    return table


def slim(measured: Measurement) -> Measurement:
    """What the search and the throughput model read of it."""
    seen = measured.telemetry
    return Measurement(
        windows=summed(measured.windows),
        first_batch_s=measured.first_batch_s,
        seconds=measured.seconds,
        telemetry=seen and Telemetry(seconds=seen.seconds, workers_cpu_cores=seen.workers_cpu_cores),
        refill_s=measured.refill_s,
    )


def summed(windows: tuple[Window, ...]) -> tuple[Window, ...]:
    """One window for all in which batches were queued for the pinning thread, or for the training process, and one for
    all others: rates and the parts of a step depend on nothing else."""
    kinds: dict[object, list[Window]] = {}
    for window in windows:
        queued = window.num_pinned, window.least_unpinned, window.least_untaken
        kinds.setdefault(tuple(map(bool, queued)), []).append(window)
    return tuple(map(_sum, kinds.values()))


def _sum(windows: list[Window]) -> Window:
    def total(name: str) -> Any:
        values = [getattr(window, name) for window in windows]
        return None if None in values else sum(values)

    start, end = total("queue_start"), total("queue_end")
    return Window(
        start_s=0.0,
        **{name: total(name) for name in SUMS},
        queue_start=None if start is None else 0.0,
        queue_end=None if start is None or end is None else end - start,
        least_unpinned=windows[0].least_unpinned and 1,
        least_untaken=windows[0].least_untaken and 1,
    )


if __name__ == "__main__":
    sys.exit(main())
