"""How often ``loadtune compare --measure`` is wrong, and how often it can tell: simulated runs through its own rule.

    python benchmarks/check_errors.py [CHECKS]

A baseline of three finalists with three runs each, then runs now until the rule tells, eight at the most. Noise between
runs is log-normal. Rows: spread then, spread now, what is left of the rate; columns: shares of the checks.
"""

import argparse
import math
import random

from loadtune.checking import outcome_of
from loadtune.records.measurement import Measurement, Window
from loadtune.report.compare import mean_of, ratio_of

TOLERANCE = 0.05
MOST_RUNS = 8


def run_at(rate: float) -> Measurement:
    window = Window(start_s=0.0, seconds=1.0, num_steps=1, num_samples=round(1e6 * rate))
    return Measurement(windows=(window,), first_batch_s=0.0, seconds=1.0)


def check(random_: random.Random, spread_then: float, spread_now: float, truth: float) -> str:
    finalists = [[run_at(math.exp(random_.gauss(0, spread_then))) for _ in range(3)] for _ in range(3)]
    then, runs, outcome = mean_of(finalists[0], finalists), list[Measurement](), "unclear"
    while len(runs) < MOST_RUNS and outcome == "unclear":
        runs.append(run_at(truth * math.exp(random_.gauss(0, spread_now))))
        outcome = outcome_of(ratio_of(then, mean_of(runs)), len(runs), TOLERANCE)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="?", type=int, default=1000, help="simulated checks of each row")
    num_checks = parser.parse_args().checks
    random_ = random.Random(0)
    print(f"{'then':>5} {'now':>5} {'left':>5} {'held':>6} {'fell':>6} {'unclear':>8}")
    for then, now in ((0.02, 0.02), (0.02, 0.06), (0.06, 0.02), (0.06, 0.06)):
        for truth in (1.0, 1 - TOLERANCE, 0.90, 0.85, 0.70):
            found = [check(random_, then, now, truth) for _ in range(num_checks)]
            shares = [found.count(outcome) / num_checks for outcome in ("held", "fell", "unclear")]
            print(f"{then:5.0%} {now:5.0%} {truth:5.0%} {shares[0]:6.1%} {shares[1]:6.1%} {shares[2]:8.1%}")


if __name__ == "__main__":
    main()
