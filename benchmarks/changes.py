"""Changes of the settings and of the cores, predicted by the throughput model and measured afterwards.

    python benchmarks/changes.py [WORKLOAD] [--trials 8] [--rounds 2] [--within-s S] [--small] [--out FILE.json]

First a search as in a run, of so many trials at most. Then the model predicts what each change does to the best of it:
settings, and half of the cores (another training process, held to them). Each is measured in turn with the best. *Miss*
is measured gain ÷ predicted gain, minus 1. Exit code 1: fewer than half of the measured gains lie within the predicted
95% interval.
"""

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
from tables import Machine
from workloads import spec_of

from loadtune import stages
from loadtune.model.answers import change
from loadtune.model.fit import ThroughputModel
from loadtune.model.resources import Job
from loadtune.records import Estimate, LoaderConfig, Measurement, Trial, TrialConfig, WorkloadSpec
from loadtune.stages.searching import search_of
from loadtune.study.space import SearchSpace
from loadtune.study.throughput import points_at, segments_of


class Measured(msgspec.Struct, frozen=True):
    """One change."""

    name: str
    predicted: Estimate
    """Gain: throughput with it ÷ without."""
    gains: tuple[float, ...]
    """One a round."""

    @property
    def gain(self) -> float:
        return statistics.geometric_mean(self.gains)

    @property
    def held(self) -> bool:
        return self.predicted.low <= self.gain <= self.predicted.high


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", default="fake-resnet50")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--within-s", type=float, default=math.inf)
    parser.add_argument("--small", action="store_true", help="sizes for two CPU cores")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def searched(machine: Machine, space: SearchSpace, most: int) -> tuple[Job, list[tuple[TrialConfig, Measurement]]]:
    """The trials of a search that begins with PyTorch's defaults."""
    assert machine.run.found.facts is not None
    first = next(iter(space.recipes.values()))
    machine.run.found.yours = TrialConfig(loader=LoaderConfig(batch_size=64), recipe=first)
    search, found = search_of(machine.run, machine.run.found.facts, space), list[tuple[TrialConfig, Measurement]]()
    for number in range(most):
        asked = search.next(most - number)
        if asked is None:
            break
        outcome = machine.time(asked.config)
        measured = outcome if isinstance(outcome, Measurement) else None
        failure = None if measured else outcome
        search.saw(
            Trial(
                number=number,
                config=asked.config,
                origin=asked.origin,
                measurement=measured,
                failure=failure,  # type: ignore[arg-type]
                predicted=asked.predicted,
            )
        )
        if measured is not None and asked.config == space.as_modelled(asked.config):
            found.append((asked.config, measured))
            print(f"trial {number}: {measured.samples_per_s:,.0f}/s {asked.config.loader}", flush=True)
    return search.job, found


def settings(best: TrialConfig, space: SearchSpace, job: Job) -> Iterator[tuple[str, TrialConfig]]:
    """Of the best: more and fewer workers, the other pinning, another batch, another precision."""
    loader = best.loader
    more, fewer = (2 * loader.num_workers, loader.num_workers // 2) if loader.num_workers else (2, 1)
    yield f"{more} workers", replace(best, loader=replace(loader, num_workers=more))
    yield f"{fewer} workers", replace(best, loader=replace(loader, num_workers=fewer))
    if loader.num_workers:
        yield (
            "0 workers",
            replace(best, loader=LoaderConfig(batch_size=loader.batch_size, pin_memory=loader.pin_memory)),
        )
    if job.on_gpu:
        pinned = replace(loader, pin_memory=not loader.pin_memory)
        yield "unpinned" if loader.pin_memory else "pinned", replace(best, loader=pinned)
    sizes = {"half the batch": loader.batch_size // 2, "a quarter of the batch": loader.batch_size // 4}
    sizes |= {"twice the batch": 2 * loader.batch_size}
    for name, size in list(sizes.items()):
        if 1 < size <= space.ceilings[best.precision]:
            yield name, replace(best, loader=replace(loader, batch_size=size))
    other = next((recipe for precision, recipe in space.recipes.items() if precision != best.precision), None)
    if other is not None:
        yield str(other.precision), replace(best, recipe=other)


def main() -> int:
    given, begun = arguments(), time.monotonic()
    spec, cores = spec_of(given.workload, small=given.small, folder=None), sorted(os.sched_getaffinity(0))
    with ExitStack() as open_:
        machine = opened(spec, open_)
        space = machine.space()
        job, found = searched(machine, space, given.trials)
        rates = [measured.samples_per_s for _, measured in found]
        model = ThroughputModel(job, segments_of(found, rates, job))
        best = max(found, key=lambda each: float(model.predict(points_at([each[0]], job)).mean[0]))[0]
        here = points_at([best], job)
        print(f"best: {best.loader} {best.precision}, after {time.monotonic() - begun:.0f} s", flush=True)
        tried = [
            (name, machine, config, change(model, here, points_at([config], job))[1])
            for name, config in settings(best, space, job)
        ]
        if len(cores) > 1:
            os.sched_setaffinity(0, cores[: len(cores) // 2])
            on_half = opened(spec, open_)
            stages.start(on_half.run)
            os.sched_setaffinity(0, cores)
            fewer = replace(job, num_cores=job.num_cores / 2)
            tried.append(("half the cores", on_half, best, change(model, here, job=fewer)[1]))
        result = measured_in_turn(machine, best, tried, given.rounds, begun + given.within_s)
    if given.out:
        given.out.write_bytes(msgspec.json.encode(result))
    print("| change | predicted gain (95% interval) | measured | miss |\n|---|---|---|---|")
    for each in result:
        span = f"{each.predicted.value:.2f} ({each.predicted.low:.2f} to {each.predicted.high:.2f})"
        print(f"| {each.name} | {span} | {each.gain:.2f} | {each.gain / each.predicted.value - 1:+.0%} |")
    misses = [abs(each.gain / each.predicted.value - 1) for each in result]
    print(f"Median miss {statistics.median(misses):.0%}; {sum(each.held for each in result)} of {len(result)} within.")
    return int(2 * sum(each.held for each in result) < len(result))


def opened(spec: WorkloadSpec, open_: ExitStack) -> Machine:
    machine = Machine(spec, Path(open_.enter_context(tempfile.TemporaryDirectory())))
    open_.enter_context(machine.bench)
    open_.enter_context(machine.sensor)
    return machine


def measured_in_turn(
    machine: Machine,
    best: TrialConfig,
    tried: list[tuple[str, Machine, TrialConfig, Estimate]],
    rounds: int,
    until: float,
) -> list[Measured]:
    """Each change beside the best, in an order that is drawn anew for each round."""
    gains: dict[str, list[float]] = {name: [] for name, *_ in tried}
    chance = random.Random(0)
    for _ in range(rounds):
        before = rate_of(machine, best)
        for name, where, config, _predicted in chance.sample(tried, len(tried)):
            if time.monotonic() > until:
                break
            rate, after = rate_of(where, config), rate_of(machine, best)
            if rate and before and after:
                gains[name].append(rate / math.sqrt(before * after))
            before = after
    return [Measured(name, predicted, tuple(gains[name])) for name, _, _, predicted in tried if gains[name]]


def rate_of(machine: Machine, config: TrialConfig) -> float | None:
    outcome = machine.time(config)
    return outcome.samples_per_s if isinstance(outcome, Measurement) else None


if __name__ == "__main__":
    sys.exit(main())
