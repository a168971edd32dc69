"""A run's winner beside the best three of a measured table, in turn in one training process.

    python benchmarks/regret.py WORKLOAD RESULT.json TABLE.json [--rounds 6] [--small]

Each round times all four settings, in an order that is drawn anew. *Regret* is how much slower the winner is than the
setting with the highest mean, by pairs of one round: the mean of the logarithms of their ratios, with its 95% interval.
"""

import argparse
import math
import random
import statistics
import sys
import tempfile
from pathlib import Path

import msgspec
from scipy.stats import t as student
from tables import Machine, Table, mean_rate
from workloads import spec_of

from loadtune import load_result
from loadtune.calibration import start
from loadtune.records.config import TrialConfig
from loadtune.records.measurement import Measurement


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("result", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--small", action="store_true", help="sizes for two CPU cores")
    return parser.parse_args()


def timed(machine: Machine, configs: list[TrialConfig], rounds: int) -> list[list[float]]:
    """Samples/s of each setting, one figure a round; a round in which one failed is left out."""
    chance, found = random.Random(0), list[list[float]]()
    for number in range(rounds):
        rates = dict[TrialConfig, float]()
        for config in chance.sample(configs, len(configs)):
            outcome = machine.time(config)
            if isinstance(outcome, Measurement):
                rates[config] = outcome.samples_per_s
            else:
                print(f"{config}: {outcome.message}", flush=True)
        print(f"round {number}: {[round(rates.get(config, 0)) for config in configs]}", flush=True)
        if len(rates) == len(configs):
            found.append([rates[config] for config in configs])
    return found


def regret(rounds: list[list[float]]) -> tuple[float, float, float]:
    """(Regret, the ends of its interval) of the first setting beside the best of the others."""
    means = [statistics.fmean(math.log(rates[at]) for rates in rounds) for at in range(len(rounds[0]))]
    best = max(range(1, len(means)), key=means.__getitem__)
    logs = [math.log(rates[best] / rates[0]) for rates in rounds]
    middle = statistics.fmean(logs)
    half = float(student.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return middle, middle - half, middle + half


def main() -> int:
    given = arguments()
    spec = spec_of(given.workload, small=given.small, folder=None)
    best = load_result(given.result).best
    if best is None:
        print("the run confirmed no winner")
        return 1
    table = msgspec.json.decode(given.table.read_bytes(), type=Table)
    rows = sorted((row for row in table.rows if row.config != best.config), key=lambda row: -mean_rate(row))
    configs = [best.config, *(row.config for row in rows[:3])]
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(spec, Path(folder), None)
        with machine.bench, machine.sensor:
            start(machine.run)
            rounds = timed(machine, configs, given.rounds)
    for at, config in enumerate(configs):
        rate = statistics.geometric_mean(rates[at] for rates in rounds)
        print(f"{'winner' if at == 0 else 'table '} {rate:12,.0f}/s  {config.loader} {config.precision}")
    middle, low, high = regret(rounds)
    print(f"regret {middle:.1%} ({low:.1%} to {high:.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
