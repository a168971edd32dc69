"""What a trial of seconds tells, beside what the same pipeline trains over minutes: workers, perhaps a pinning thread,
and steps."""

import random
import statistics
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any

import pytest

from loadtune.decide.search import Segment
from loadtune.records.config import LoaderConfig
from loadtune.records.measurement import Window, samples_per_s
from loadtune.run.state import SEGMENT_S, WINDOW_S
from loadtune.training.loop import window_ends

NUM_WORKERS = 16
Seconds = Callable[[random.Random, float], float]
"""Of one batch that begins at this time."""


def about(mean: float, spread: float = 0.1) -> Seconds:
    return lambda chance, at: mean * chance.lognormvariate(-spread * spread / 2, spread)


@dataclass
class Pipeline:
    """A loader of workers, behind them a thread that pins what is made first, behind it steps that train in order."""

    make: Seconds
    pin: Seconds
    step: Seconds
    begun: list[float] = field(default_factory=list)
    made: list[float] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)
    """By the pinning thread, in its order."""
    pinned: dict[int, float] = field(default_factory=dict)
    """By number of the batch, in the thread's order."""
    asked: list[float] = field(default_factory=list)
    handed: list[float] = field(default_factory=list)
    free: float = 0.0
    """When the thread is."""
    begins: float = 0.0
    """When the first batch is asked for: late, and the queue is full."""
    prefetch: int = 2

    def run(self, seconds: float, seed: int) -> "Pipeline":
        chance, now, unpinned = random.Random(seed), self.begins, list[tuple[float, int]]()
        for number in range(NUM_WORKERS * self.prefetch):
            heappush(unpinned, (self.make_one(chance, number, 0.0), number))
        while now < self.begins + seconds:
            self.asked.append(now)
            self.handed.append(self.hand_out(chance, len(self.handed), unpinned))
            further = len(self.asked) - 1 + NUM_WORKERS * self.prefetch
            heappush(unpinned, (self.make_one(chance, further, self.handed[-1]), further))
            now = self.handed[-1] + self.step(chance, self.handed[-1])
        return self

    def hand_out(self, chance: random.Random, number: int, unpinned: list[tuple[float, int]]) -> float:
        """When this batch is there for who has just asked for it."""
        while number not in self.pinned:
            self.pin_one(chance, *heappop(unpinned))
        return max(self.asked[-1], self.pinned[number])

    def make_one(self, chance: random.Random, number: int, asked: float) -> float:
        self.begun.append(max(asked, self.made[number - NUM_WORKERS] if number >= NUM_WORKERS else 0.0))
        self.made.append(self.begun[-1] + self.make(chance, self.begun[-1]))
        return self.made[-1]

    def pin_one(self, chance: random.Random, made: float, number: int) -> None:
        self.taken.append(max(made, self.free))
        self.free = self.pinned[number] = self.taken[-1] + self.pin(chance, self.taken[-1])

    def windows(self) -> list[Window]:
        found, first = [], 1
        for number in range(2, len(self.asked)):
            if window_ends(WINDOW_S, NUM_WORKERS, self.asked[number] - self.asked[first], number - first):
                found.append(self.window(first, number))
                first = number
        return found

    def window(self, first: int, last: int) -> Window:
        start, end = self.asked[first], self.asked[last]
        return Window(
            start_s=start,
            seconds=end - start,
            num_steps=last - first,
            num_samples=last - first,
            wait_s=sum(self.handed[i] - self.asked[i] for i in range(first, last)),
            queue_start=self.ahead(first),
            queue_end=self.ahead(last),
            num_pinned=sum(start < pinned <= end for pinned in self.pinned.values()),
            least_unpinned=min(self.unpinned(self.asked[i]) for i in range(first, last)),
        )

    def ahead(self, number: int) -> float:
        """Batches made and not handed out when this one is asked for, those in the making by how far they are."""
        now = self.asked[number]
        whole = sum(made <= now for made in self.made[number:])
        making = zip(self.begun[number:], self.made[number:], strict=True)
        return whole + sum((now - begun) / (made - begun) for begun, made in making if begun < now < made)

    def unpinned(self, now: float) -> int:
        return sum(made <= now for made in self.made) - bisect_right(self.taken, now)


class WithoutThread(Pipeline):
    """The training process takes batches from the workers itself; what `pin` takes is its own time."""

    def hand_out(self, chance: random.Random, number: int, unpinned: list[tuple[float, int]]) -> float:
        self.free = self.asked[-1]
        super().hand_out(chance, number, unpinned)
        return self.free

    def window(self, first: int, last: int) -> Window:
        told = super().window(first, last)
        looks = [*self.asked[first:last], *self.handed[first:last]]
        least = min(self.unpinned(look) for look in looks)
        return replace(told, num_pinned=None, least_unpinned=None, num_taken=told.num_pinned, least_untaken=least)


def trial(pipeline: Pipeline, seed: int) -> list[Window]:
    """The windows that count."""
    loader = LoaderConfig(batch_size=1, num_workers=NUM_WORKERS, prefetch_factor=pipeline.prefetch)
    segment = Segment(loader, SEGMENT_S)
    for window in pipeline.run(25.0, seed).windows():
        if not segment.add(window):
            return segment.kept
    raise AssertionError("it wanted more")


def in_turn(slow: float, fast: float, period: float) -> Seconds:
    return lambda chance, at: slow if at % period < period / 2 else fast


def late(mean: float, times: float, share: float) -> Seconds:
    """Now and then one that takes so many times as long."""
    return lambda chance, at: mean * chance.lognormvariate(-0.005, 0.1) * (times if chance.random() < share else 1.0)


def begun_late(batch_s: float, faster: float) -> tuple[Seconds, Seconds, Seconds]:
    """Workers have nothing in the making when training begins: told 0.8 to 0.96 where nothing is left out."""
    step_s = faster * batch_s / NUM_WORKERS
    return about(batch_s), about(step_s / 10), about(step_s, 0.03)


@pytest.mark.parametrize(
    ("kind", "parts", "more", "leeway"),
    [
        pytest.param(kind, parts, more, leeway, id=f"{kind.__name__}-{name}")
        for kind, name, parts, more, leeway in [
            (Pipeline, "pinning", (about(0.9), about(0.075, 0.3), about(0.05)), {}, 0.02),
            (Pipeline, "workers", (about(1.3, 0.2), about(0.07, 0.3), about(0.05)), {}, 0.02),
            (Pipeline, "all-alike", (about(1.1, 0.2), about(0.068, 0.3), about(0.066, 0.2)), {}, 0.02),
            (Pipeline, "two-speeds", (about(1.1, 0.2), in_turn(0.09, 0.05, 1.6), about(0.05)), {}, 0.02),
            (Pipeline, "full-queue-fast-workers", begun_late(1.4, 2.0), {"begins": 60.0}, 0.03),
            (Pipeline, "full-queue-slow-workers", begun_late(3.0, 0.8), {"begins": 60.0}, 0.03),
            (WithoutThread, "nothing-but-taking", (about(0.9), about(0.075, 0.3), about(0.001)), {}, 0.02),
            (WithoutThread, "steps", (about(0.9), about(0.002), about(0.08)), {}, 0.02),
            (WithoutThread, "taking-and-steps", (about(0.9), about(0.04), about(0.04)), {}, 0.02),
            (WithoutThread, "all-alike", (about(1.2, 0.2), about(0.06, 0.3), about(0.015)), {}, 0.02),
            # Told 0.87 by a look before each batch alone: it takes all others on the way, sets them aside and waits.
            (WithoutThread, "late-batch", (late(0.9, 5.0, 0.03), about(0.005), about(0.07)), {"prefetch": 4}, 0.03),
        ]
    ],
)
def test_a_trial_tells_what_minutes_of_the_same_pipeline_train(
    kind: type[Pipeline], parts: tuple[Seconds, Seconds, Seconds], more: dict[str, Any], leeway: float
) -> None:
    minutes = kind(*parts, prefetch=more.get("prefetch", 2)).run(600.0, seed=0)
    told = statistics.fmean(samples_per_s(trial(kind(*parts, **more), seed)) for seed in range(1, 31))
    assert told / (len(minutes.handed) / minutes.handed[-1]) == pytest.approx(1.0, abs=leeway)
