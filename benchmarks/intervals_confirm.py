"""How often the confirmation says "different" of configurations that are alike, and of those that are not. Pure.

Drives the tuner's own `confirm`, `finalists`, `pick_winner`, `is_told` and `not_told_apart` over runs of known rate
with a fake clock. A run's luck is that of its fresh loader; its windows add noise of their own.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtune.records import Finalist, LoaderConfig, Measurement, Recipe, TrialConfig, Window
from loadtune.stages.run import CONFIRM_AT_LEAST, CONFIRM_AT_MOST, TRIAL_SHARE
from loadtune.study.confirm import confirm, finalists
from loadtune.study.rounds import MIN_RUNS
from loadtune.study.winner import is_told, not_told_apart, pick_winner, speedup
from loadtune.testing import FakeClock

BETWEEN_RUNS = 0.065
"""Relative standard deviation from one fresh loader to the next: 6 to 7% on an H200."""
WINDOW_NOISE, NUM_WINDOWS = 0.05, 7
"""Of one window, and windows to a run."""
TRUTH_PER_S = 1000.0
START_S = 5.5
"""What a run of the confirmation takes beside its timed part: four finalists on an H200 took 40 s a round, of which
4.5 s each were timed then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """What was said of identical configurations, as counts of simulated confirmations."""

    num_finalists: int
    schedule: str
    num: int
    num_different: int
    """The speed-up of the winner over the user's own was called different."""
    num_different_unallowed: int
    """The same, had the interval not allowed for the luck of the fastest."""
    num_told_apart: int
    """Some finalist was called slower than the winner."""
    num_rate_held: int
    """The interval of the winner's throughput holds the truth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What there is time for: whole rounds of all finalists, then so many runs more, then second runs that are late."""

    num_whole: int
    num_more: int = 0
    num_late: int = 0


SCHEDULES = {
    "three rounds": Schedule(num_whole=3),
    "two rounds": Schedule(num_whole=2),
    "two rounds, then the leader": Schedule(num_whole=2, num_more=1),
    "one round, then the leader and yours": Schedule(num_whole=1, num_more=2),
    "one round, then the leader and yours, then a new leader": Schedule(num_whole=1, num_more=2, num_late=1),
}
"""The third is three finalists on a busy H200, with 90 s and 12 s a run; the last two where runs take longer than their
trials foretold."""


def alike(num_finalists: int, schedule: str, num: int, seed: int) -> Alike:
    draws = random.Random(seed)
    rates = [TRUTH_PER_S] * num_finalists
    told = [_told(list(_confirmed(rates, SCHEDULES[schedule], draws))) for _ in range(num)]
    return Alike(
        num_finalists=num_finalists,
        schedule=schedule,
        num=num,
        num_different=sum(t[0] for t in told),
        num_different_unallowed=sum(t[1] for t in told),
        num_told_apart=sum(t[2] for t in told),
        num_rate_held=sum(t[3] for t in told),
    )


def _told(outcomes: Sequence[tuple[TrialConfig, Measurement]]) -> tuple[bool, bool, bool, bool]:
    """Different; different without allowance; some told apart; the winner's rate holds the truth."""
    found = finalists(outcomes)
    yours = max((f.config for f in found), key=lambda config: config.loader.num_workers)
    winner = pick_winner(found, yours)
    assert winner is not None
    best, own = (next(f for f in found if f.config == config) for config in (winner.config, yours))
    _, low, _ = speedup(best, own, found, 1)
    return (
        winner.different is True,
        best is not own and low is not None and low > 1.0,
        len(not_told_apart(winner, found)) < len(found) - 1,
        abs(winner.samples_per_s - TRUTH_PER_S) <= winner.samples_per_s * (winner.half_width_fraction or 0.0),
    )


def power(num_finalists: int, num_runs: int, gain: float, num: int, seed: int) -> float:
    """Share of confirmations in which one configuration that is faster by `gain` is called different from yours.

    All other finalists are as fast as yours. Each has the same number of runs, be they more than `confirm` makes.
    """
    draws = random.Random(seed)
    rates = [TRUTH_PER_S * (1 + gain)] + [TRUTH_PER_S] * (num_finalists - 1)
    return sum(_is_told(_drawn(rates, num_runs, draws), rates) for _ in range(num)) / num


def power_in(time_budget_s: float, num_finalists: int, gain: float, num: int, seed: int) -> tuple[float, float]:
    """The same for what `confirm` makes of a time budget, and the mean number of runs of the winner.

    Of the least that it gives: a run that is ahead of its aim has more.
    """
    draws = random.Random(seed)
    run_s, left_s = START_S + TRIAL_SHARE * time_budget_s, CONFIRM_AT_LEAST * time_budget_s
    num_picked = max(2, min(num_finalists, int(left_s / (MIN_RUNS * run_s))))  # as `pick_finalists` does
    late_s = (CONFIRM_AT_MOST - CONFIRM_AT_LEAST) * time_budget_s
    rates = [TRUTH_PER_S * (1 + gain)] + [TRUTH_PER_S] * (num_picked - 1)
    kept = [finalists(list(_confirm(rates, run_s, left_s, draws, late_s))) for _ in range(num)]
    runs = sum(max(len(f.runs) for f in found) for found in kept) / num
    return sum(_is_told(found, rates) for found in kept) / num, runs


def _is_told(found: Sequence[Finalist], rates: Sequence[float]) -> bool:
    winner = pick_winner(found, _config(len(rates)))
    return winner is not None and winner.different is True and winner.config == _config(1)


def _drawn(rates: Sequence[float], num_runs: int, draws: random.Random) -> tuple[Finalist, ...]:
    outcomes = [(_config(at), _run(rate, draws)) for at, rate in enumerate(rates, 1) for _ in range(num_runs)]
    return finalists(outcomes)


def _confirmed(
    rates: Sequence[float], schedule: Schedule, draws: random.Random
) -> Iterator[tuple[TrialConfig, Measurement]]:
    """A run takes 10 s, and there is time for this schedule and half a run more."""
    num_runs = schedule.num_whole * len(rates) + schedule.num_more
    return _confirm(rates, 10.0, 10.0 * num_runs + 5.0, draws, late_s=10.0 * schedule.num_late)


def _confirm(
    rates: Sequence[float], run_s: float, left_s: float, draws: random.Random, late_s: float = 0.0
) -> Iterator[tuple[TrialConfig, Measurement]]:
    """The user's own configuration is the last and the largest: a tie never goes to it, which is the worst case."""
    clock, yours = FakeClock(), _config(len(rates))
    truths = {_config(at): rate for at, rate in enumerate(rates, 1)}
    until_s = clock.now() + left_s

    def run(config: TrialConfig) -> Measurement:
        clock.spend(run_s)
        return _run(truths[config], draws)

    def told(found: Sequence[Finalist]) -> bool:
        return is_told(found, yours)

    for config, outcome in confirm(
        list(truths), run, clock, until_s, yours=yours, answer_by_s=until_s + late_s, told=told
    ):
        assert isinstance(outcome, Measurement)
        yield config, outcome


def _config(num_workers: int) -> TrialConfig:
    return TrialConfig(loader=LoaderConfig(batch_size=64, num_workers=num_workers), recipe=Recipe())


def _run(rate: float, draws: random.Random) -> Measurement:
    """Lognormal luck of the loader, mean 1, and what the windows of one run leave of their own."""
    luck = draws.gauss(-(BETWEEN_RUNS**2) / 2, BETWEEN_RUNS) + draws.gauss(0.0, WINDOW_NOISE / math.sqrt(NUM_WINDOWS))
    window = Window(start_s=0.0, seconds=3200 / (rate * math.exp(luck)), num_steps=64, num_samples=3200)
    return Measurement(windows=(window,), first_batch_s=0.1, seconds=window.seconds)
