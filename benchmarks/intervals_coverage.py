"""How often the interval that a run states holds its true rate, with the stopping rule in force. Pure.

Step times are cut into windows by the bench's own `WindowRule` and fed to the tuner's own `StoppingRule` until it ends
the run, as `run_trial` does. The truth is samples ÷ expected seconds of a step: what an endless run would read.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from intervals_steps import StepTimes

from loadtune.bench.windows import WindowRule
from loadtune.records import TuneConfig, Window, half_width_fraction, samples_per_s
from loadtune.stages.run import TRIAL_SHARE
from loadtune.study.stopping import LATEST, StoppingRule
from loadtune.study.stopping_rules import Hopeless
from loadtune.study.trial import WINDOW_S

BATCH_SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What became of the runs of one process."""

    steps: StepTimes
    max_s: float
    num_runs: int
    num_held: int
    """Runs whose interval holds the truth."""
    half_width_fraction: float
    """Median."""
    seconds: float
    """Mean, of the windows that count."""
    verdicts: Counter[str]

    @property
    def held(self) -> float:
        return self.num_held / self.num_runs


def cover(steps: StepTimes, max_s: float, num_runs: int, seed: int) -> Coverage:
    truth = BATCH_SIZE / steps.mean_s
    rules = [run_of(row, steps.num_workers, max_s) for row in _rows(steps, max_s, num_runs, seed)]
    widths = [half_width_fraction(rule.kept) or 0.0 for rule in rules]
    rates = [samples_per_s(rule.kept) for rule in rules]
    return Coverage(
        steps=steps,
        max_s=max_s,
        num_runs=num_runs,
        num_held=sum(abs(rate - truth) <= width * rate for rate, width in zip(rates, widths, strict=True)),
        half_width_fraction=float(np.median(widths)),
        seconds=float(np.mean([sum(w.seconds for w in rule.kept) for rule in rules])),
        verdicts=Counter(rule.verdict or "ran out of steps" for rule in rules),
    )


def given_up(steps: StepTimes, share: float, num_runs: int, seed: int) -> float:
    """Share of runs of the search that end as hopeless where the truth is this share of the incumbent's rate."""
    best = BATCH_SIZE / steps.mean_s / share
    max_s = TRIAL_SHARE * TuneConfig().time_budget_s
    rules = [run_of(row, steps.num_workers, max_s, best) for row in _rows(steps, max_s, num_runs, seed)]
    return sum(rule.verdict == Hopeless.verdict for rule in rules) / num_runs


def run_of(step_s: Iterable[float], num_workers: int, max_s: float, best: float | None = None) -> StoppingRule:
    """The stopping rule after it ended a run of these steps."""
    rule = StoppingRule(num_workers=num_workers, max_s=max_s, best=best)
    for window in windows_of(step_s, num_workers):
        if not rule.add(window):
            break
    return rule


def windows_of(step_s: Iterable[float], num_workers: int) -> Iterator[Window]:
    """Windows that abut, as the bench cuts them."""
    ends = WindowRule(WINDOW_S, num_workers).ends
    start_s, seconds, num_steps = 0.0, 0.0, 0
    for step in step_s:
        seconds, num_steps = seconds + step, num_steps + 1
        if ends(seconds, num_steps):
            yield Window(start_s=start_s, seconds=seconds, num_steps=num_steps, num_samples=num_steps * BATCH_SIZE)
            start_s, seconds, num_steps = start_s + seconds, 0.0, 0


def _rows(steps: StepTimes, max_s: float, num_runs: int, seed: int) -> Iterator[list[float]]:
    """More steps than any run takes: the latest end, a round before and after, and what the noise may take from it."""
    rounds = 4 * max(1, steps.num_workers)
    num_steps = int(1.5 * (LATEST * max_s + 2 * WINDOW_S) / steps.mean_s) + rounds + 10
    generator = np.random.default_rng(seed)
    for begun in range(0, num_runs, _AT_ONCE):
        yield from steps.draw(min(_AT_ONCE, num_runs - begun), num_steps, generator).tolist()


_AT_ONCE = 250
"""Runs drawn together, to bound the memory."""
