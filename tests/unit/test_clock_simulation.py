"""What a trial of seconds tells, beside what the same pipeline trains over minutes: workers, perhaps a pinning thread,
and steps."""

import random
import statistics
import sys
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import pytest

from loadtune.records.config import LoaderConfig
from loadtune.records.measurement import Window, samples_per_s
from loadtune.search.segment import SEGMENT_S, WINDOW_S, Segment
from loadtune.training.loop import WindowRule

NUM_WORKERS, PREFETCH = 16, 2
MAX_S = SEGMENT_S
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

    def run(self, seconds: float, seed: int) -> "Pipeline":
        chance, now, unpinned = random.Random(seed), self.begins, list[tuple[float, int]]()
        for number in range(NUM_WORKERS * PREFETCH):
            heappush(unpinned, (self.make_one(chance, number, 0.0), number))
        while now < self.begins + seconds:
            self.asked.append(now)
            self.handed.append(self.hand_out(chance, len(self.handed), unpinned))
            further = len(self.asked) - 1 + NUM_WORKERS * PREFETCH
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
        rule, found, first = WindowRule(WINDOW_S, NUM_WORKERS), [], 1
        for number in range(2, len(self.asked)):
            if rule.ends(self.asked[number] - self.asked[first], number - first):
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
    loader = LoaderConfig(batch_size=1, num_workers=NUM_WORKERS, prefetch_factor=PREFETCH)
    segment = Segment(loader, MAX_S)
    for window in pipeline.run(25.0, seed).windows():
        if not segment.add(window):
            return segment.kept
    raise AssertionError("it wanted more")


def trained_per_s(parts: dict[str, Seconds], kind: type[Pipeline] = Pipeline) -> float:
    minutes = kind(**parts).run(600.0, seed=0)
    return len(minutes.handed) / minutes.handed[-1]


def told(parts: dict[str, Seconds], kind: type[Pipeline] = Pipeline) -> float:
    """What trials tell on average, of what minutes of the same pipeline train."""
    rates = [samples_per_s(trial(kind(**parts), seed)) for seed in range(1, 31)]
    return statistics.fmean(rates) / trained_per_s(parts, kind)


def in_turn(slow: float, fast: float, period: float) -> Seconds:
    return lambda chance, at: slow if at % period < period / 2 else fast


PINNING: dict[str, Seconds] = {"make": about(0.9), "pin": about(0.075, 0.3), "step": about(0.05)}
"""The thread is the wall, by far."""


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(PINNING, id="pinning"),
        pytest.param({"make": about(1.3, 0.2), "pin": about(0.07, 0.3), "step": about(0.05)}, id="workers"),
        pytest.param({"make": about(0.9), "pin": about(0.05), "step": about(0.08)}, id="steps"),
        pytest.param({"make": about(1.15, 0.2), "pin": about(0.07, 0.3), "step": about(0.05)}, id="workers-or-pinning"),
        pytest.param({"make": about(1.1, 0.2), "pin": about(0.068, 0.3), "step": about(0.066, 0.2)}, id="all-alike"),
        pytest.param({"make": about(1.1, 0.2), "pin": in_turn(0.09, 0.05, 1.6), "step": about(0.05)}, id="two-speeds"),
    ],
)
def test_a_trial_tells_what_minutes_of_the_same_pipeline_train(parts: dict[str, Seconds]) -> None:
    assert told(parts) == pytest.approx(1.0, abs=0.02)


TAKING: dict[str, Seconds] = {"make": about(0.9), "pin": about(0.06, 0.3), "step": about(0.015)}
"""The training process is the wall, and spends its time on taking batches over."""


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(TAKING, id="taking"),
        pytest.param({"make": about(0.9), "pin": about(0.075, 0.3), "step": about(0.001)}, id="nothing-but-taking"),
        pytest.param({"make": about(0.9), "pin": about(0.002), "step": about(0.08)}, id="steps"),
        pytest.param({"make": about(0.9), "pin": about(0.04), "step": about(0.04)}, id="taking-and-steps"),
        pytest.param({"make": about(1.2, 0.2), "pin": about(0.06, 0.3), "step": about(0.015)}, id="all-alike"),
    ],
)
def test_a_trial_without_a_pinning_thread_tells_what_minutes_train(parts: dict[str, Seconds]) -> None:
    assert told(parts, kind=WithoutThread) == pytest.approx(1.0, abs=0.02)


def by_the_queue(kept: list[Window]) -> float:
    return samples_per_s([replace(window, num_taken=None) for window in kept])


def late(mean: float, times: float, share: float) -> Seconds:
    """Now and then one that takes so many times as long."""
    return lambda chance, at: mean * chance.lognormvariate(-0.005, 0.1) * (times if chance.random() < share else 1.0)


def test_a_batch_that_is_late_is_not_taken_for_work_of_the_training_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes all others on the way, sets them aside and waits: told 0.87 by a look before each batch alone."""
    monkeypatch.setattr(sys.modules[__name__], "PREFETCH", 4)
    parts: dict[str, Seconds] = {"make": late(0.9, 5.0, 0.03), "pin": about(0.005), "step": about(0.07)}
    assert told(parts, kind=WithoutThread) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("make_s", [1.3, 2.4])
def test_what_the_training_process_takes_says_nothing_where_workers_are_the_wall(make_s: float) -> None:
    parts: dict[str, Seconds] = {"make": about(make_s, 0.2), "pin": about(0.06, 0.3), "step": about(0.015)}
    trials = [trial(WithoutThread(**parts), seed) for seed in range(1, 31)]
    by_queue = statistics.fmean(map(by_the_queue, trials))
    assert statistics.fmean(map(samples_per_s, trials)) == pytest.approx(by_queue, rel=0.005)


@pytest.mark.parametrize("batch_s", [1.4, 3.0])
@pytest.mark.parametrize("faster", [2.0, 0.8])
def test_a_queue_that_was_full_does_not_make_workers_slow(batch_s: float, faster: float) -> None:
    """They have nothing in the making when training begins: told 0.8 to 0.96 where nothing is left out."""
    step_s = faster * batch_s / NUM_WORKERS
    parts: dict[str, Seconds] = {"make": about(batch_s), "pin": about(step_s / 10), "step": about(step_s, 0.03)}
    full = [trial(Pipeline(**parts, begins=60.0), seed) for seed in range(1, 41)]
    rates = [samples_per_s(kept) for kept in full]
    assert statistics.fmean(rates) / trained_per_s(parts) == pytest.approx(1.0, abs=0.03)
