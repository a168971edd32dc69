"""What measuring costs a training step: windows with all instruments against bare ones, alternating.

    python benchmarks/overhead.py [--device cuda] [--note benchmarks/results/DATE-HOST-overhead.md]
    python benchmarks/overhead.py --device cpu --model mobilenet_v3_small --image-size 64 --batch-sizes 8

The batch is resident, so that a step is as short as it can be and nothing is noisy that need not be; the queue whose
depth is read is that of a real loader with full queues. A bare window is the loop of any script: take a batch, move it,
step; one synchronisation at its end. An instrumented one is the bench's own: CUDA events in each step, the queue's
depth, the wait, a look at the controller's socket, and the events read and a message sent at its end. Each pair has the
two in another order than the pair before, and the median of the pairs' ratios counts.

A machine's speed drifts within tenths of a second, so windows are a single step long: of windows that do the same,
pairs of one step agreed five times better than pairs of six (0.4 against 2.4%, a hundred steps each on two cores). What
follows a window's synchronisation, its events read and its message sent, is timed apart and counts with its share of
the 0.4 s that a window of a trial lasts. ``by itself`` is what a step's instruments take where the step does nothing.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import Pipe
from pathlib import Path
from typing import cast

import torch
from scipy.stats import binom

from loadtune import __version__
from loadtune.bench.endless_loader import EndlessLoader
from loadtune.bench.line import Line
from loadtune.bench.loader import TimedLoop
from loadtune.bench.training import ResidentModel, Trainer, resident_batch
from loadtune.bench.windows import WindowRule
from loadtune.host import read_host
from loadtune.records import LoaderConfig, Recipe, WorkloadSpec
from loadtune.study.trial import WINDOW_S
from loadtune.workload import Batch, Workload, build_workload, collate_samples, fetch_samples

GOAL = 0.01
"""Share of a step that measuring it may take."""


class ResidentLoader(EndlessLoader):
    """Hands out one resident batch for ever; its workers fill their queue and wait."""

    def __init__(self, workload: Workload, config: LoaderConfig, batch: Batch) -> None:
        super().__init__(workload, config)
        super().next_batch()
        self._batch = batch

    def next_batch(self) -> Batch:
        return self._batch


class NoSteps:
    """A trainer whose steps do nothing."""

    def __init__(self, trainer: Trainer) -> None:
        self.device, self.synchronize, self.num_halvings = trainer.device, trainer.synchronize, trainer.num_halvings

    def to_device(self, batch: Batch) -> Batch:
        return batch

    def step(self, batch: Batch) -> None:
        pass


class OneStep(WindowRule):
    """Ends a window after a step."""

    def __init__(self) -> None:
        super().__init__(0.0, 0)

    def ends(self, elapsed_s: float, num_steps: int) -> bool:
        return num_steps >= 1


@dataclass(frozen=True)
class Pair:
    """Seconds of one step each, and of what the instrumented one's window takes beside it."""

    bare_s: float
    instrumented_s: float
    beside_s: float

    @property
    def overhead(self) -> float:
        return self.instrumented_s / self.bare_s - 1


@dataclass(frozen=True)
class Outcome:
    batch_size: int
    pairs: Sequence[Pair]
    empty_pairs: Sequence[Pair]
    """Of steps that do nothing."""

    @property
    def step_s(self) -> float:
        """Bare."""
        return statistics.median(pair.bare_s for pair in self.pairs)

    @property
    def beside_s(self) -> float:
        return statistics.median(pair.beside_s for pair in self.pairs)

    @property
    def by_itself_s(self) -> float:
        return statistics.median(pair.instrumented_s - pair.bare_s for pair in self.empty_pairs)

    @property
    def median(self) -> float:
        return statistics.median(pair.overhead for pair in self.pairs) + self.beside_s / WINDOW_S

    @property
    def interval(self) -> tuple[float, float]:
        """Of the median, 95%, by order statistics: whatever the noise is distributed like."""
        ordered = sorted(pair.overhead for pair in self.pairs)
        low = int(binom.ppf(0.025, len(ordered), 0.5))
        beside = self.beside_s / WINDOW_S
        return ordered[low] + beside, ordered[len(ordered) - 1 - low] + beside

    @property
    def row(self) -> str:
        low, high = self.interval
        return (
            f"| {self.batch_size} | {self.step_s * 1000:.2f} | {self.batch_size / self.step_s:,.0f} | "
            f"{self.median:+.2%} | {low:+.2%} to {high:+.2%} | {len(self.pairs)} | "
            f"{self.beside_s * 1e6:.0f} µs, {self.beside_s / WINDOW_S:.2%} | {self.by_itself_s * 1e6:.0f} µs |"
        )


class Alternating:
    """One resident batch, one loader, two ways to step."""

    def __init__(self, trainer: Trainer | NoSteps, loader: ResidentLoader) -> None:
        self.trainer, self.loader = trainer, loader
        self._controller, bench = Pipe()
        self._line = Line(bench)
        self._loop = TimedLoop(cast(Trainer, trainer), loader, self._line)

    def bare_s(self, num_steps: int = 1) -> float:
        self.trainer.synchronize()
        started = time.monotonic()
        for _ in range(num_steps):
            batch = self.loader.next_batch()
            self.trainer.step(self.trainer.to_device(batch))
        self.trainer.synchronize()
        return time.monotonic() - started

    def instrumented_s(self) -> tuple[float, float]:
        """Seconds of a step, and of what its window takes beside it."""
        self._loop.begin()
        started = time.monotonic()
        window = self._loop.window(OneStep())
        assert window is not None
        self._line.window(window)
        ended, synchronised = time.monotonic(), window.start_s + window.seconds
        while self._controller.poll(0):
            self._controller.recv()
        return synchronised - started, ended - synchronised

    def pairs(self, number: int) -> list[Pair]:
        found = []
        for at in range(number):
            if at % 2:
                instrumented, bare_s = self.instrumented_s(), self.bare_s()
            else:
                bare_s, instrumented = self.bare_s(), self.instrumented_s()
            found.append(Pair(bare_s, *instrumented))
        return found


def measure(workload: Workload, device: torch.device, batch_size: int, given: argparse.Namespace) -> Outcome:
    recipe = Recipe(precision="fp16", memory_format="channels_last") if device.type == "cuda" else Recipe()
    trainer = Trainer(ResidentModel(workload, device), recipe, workload)
    batch = resident_batch(collate_samples(fetch_samples(workload.dataset, range(8)), range(8)), batch_size, trainer)
    config = LoaderConfig(batch_size=batch_size, num_workers=given.num_workers, pin_memory=device.type == "cuda")
    loader = ResidentLoader(workload, config, batch)
    try:
        ways = Alternating(trainer, loader)
        ways.bare_s(20)  # kernels chosen, the scale found, the loader's queue filled meanwhile
        ways.pairs(10)
        return Outcome(batch_size, ways.pairs(given.pairs), Alternating(NoSteps(trainer), loader).pairs(200))
    finally:
        loader.close()
        trainer.close()


HEAD = (
    "batch | step ms | samples/s, bare | overhead, median | 95% interval | pairs | a window beside its steps | "
    "a step by itself"
)


def verdict(outcomes: Sequence[Outcome]) -> str:
    """An interval that is wider than the goal on both sides says nothing about it."""
    if any(high - low > 2 * GOAL for low, high in (outcome.interval for outcome in outcomes)):
        return "cannot be told, the machine is too noisy"
    return "met" if all(outcome.interval[1] <= GOAL for outcome in outcomes) else "not met"


def note(outcomes: Sequence[Outcome], device: torch.device, model: str) -> str:
    host = read_host()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else host.cpu_name
    table = "\n".join([f"| {HEAD} |", "|" + "---|" * (HEAD.count("|") + 1), *(outcome.row for outcome in outcomes)])
    return (
        f"# What measuring costs a step of {model} on {name}, {datetime.now(UTC):%Y-%m-%d}\n\n"
        f"host: {host.cpu_name}, {host.num_usable_cores} cores, {platform.platform()}. driver: {host.driver or '–'}. "
        f"Python: {host.python}. CUDA: {torch.version.cuda or '–'}. loadtune: {__version__}. "
        f"torch: {torch.__version__}.\n\n"
        f"Command: `python benchmarks/{' '.join([Path(__file__).name, *sys.argv[1:]])}`.\n\n"
        f"The goal, at most {GOAL:.0%} with the whole interval: {verdict(outcomes)}.\n\n{table}\n\n"
        f"{(__doc__ or '').split('--batch-sizes 8')[1].strip()}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--num-workers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--note", type=Path)
    given = parser.parse_args()
    device = torch.device(given.device)
    workload = build_workload(WorkloadSpec(model=given.model, image_size=given.image_size))
    outcomes = []
    print(f"| {HEAD} |")
    for batch_size in given.batch_sizes:
        outcomes.append(measure(workload, device, batch_size, given))
        print(outcomes[-1].row, flush=True)
    if given.note:
        given.note.write_text(note(outcomes, device, given.model), encoding="utf-8")
    print(f"At most {GOAL:.0%}: {verdict(outcomes)}.")
    sys.exit(verdict(outcomes) != "met")


if __name__ == "__main__":
    main()
