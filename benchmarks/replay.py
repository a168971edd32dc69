"""How far from the best of a measured table a search ends, and after how many trials.

    python benchmarks/replay.py [TABLE …] [--replays 100] [--ways loadtune TPE GP random "workers = cores"] [--most 12]
    python benchmarks/replay.py [TABLE …] --priors

``--priors`` fits the throughput model to every table whole, and prints for each prior what the tables say.

A table is what `tables.py` measured. A trial draws one of the setting's segments. Every way begins with the baseline,
the row nearest to PyTorch's defaults. It ends with the confirmation: its finalists, three more segments each, the best
mean wins. *Regret* is how much slower that is than the best of the table. ``loadtune`` is the search of a run, which
ends when it has seen enough. The others are Optuna's samplers in place of its own, and have as many trials as it took
in the mean. "Every row once" measures the whole table and takes the fastest segment.

Last, what the model says after six trials of the rows that it has not seen: by how much it misses in the median, and
how many rates lie within the 95% interval.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import optuna
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from tables import Table

from loadtune.decide.search import Search, model_job
from loadtune.decide.space import SearchSpace
from loadtune.model.fit import SEGMENT_SD, ThroughputModel, points_at, segments_of
from loadtune.model.resources import COMPUTE, PRIORS, prior_of
from loadtune.records.config import TrialConfig
from loadtune.records.measurement import Measurement
from loadtune.records.result import Trial, measured_of
from loadtune.run.sampler import SearchStudy, ThroughputSampler

TABLES = Path(__file__).parent / "measured"
CONFIRMED, FINALISTS = 3, 4
UNSEEN_AFTER = 6


@dataclass(slots=True)
class Played:
    """A table to play on."""

    table: Table
    rates: dict[TrialConfig, list[Measurement]]
    baseline: TrialConfig

    def true_rate(self, config: TrialConfig) -> float:
        """Geometric mean of its segments."""
        return statistics.geometric_mean(run.samples_per_s for run in self.rates[config])

    @property
    def best_rate(self) -> float:
        return max(self.true_rate(config) for config in self.rates)

    def regret(self, config: TrialConfig) -> float:
        return 1 - self.true_rate(config) / self.best_rate


def read(path: Path) -> Played:
    table = msgspec.json.decode(path.read_bytes(), type=Table)
    rates = {row.config: list(row.runs) for row in table.rows if row.runs}

    def away(config: TrialConfig) -> tuple[object, ...]:
        return (
            config.loader.num_workers,
            config.loader.pin_memory,
            config.precision != "fp32",
            abs(config.batch_size - 64),
        )

    return Played(table, rates, min(rates, key=away))


def space_of(played: Played) -> SearchSpace:
    """Every value that the table has."""
    configs = list(played.rates)
    recipes = {config.precision: config.recipe for config in configs}
    sizes = tuple(sorted({config.batch_size for config in configs}))
    return SearchSpace(
        batch_sizes=sizes,
        num_workers=tuple(sorted({config.loader.num_workers for config in configs})),
        pin_memory=tuple(sorted({config.loader.pin_memory for config in configs})),
        recipes=recipes,
        ceilings=dict.fromkeys(recipes, max(sizes)),
    )


def search_on(played: Played) -> Search:
    table, space = played.table, space_of(played)
    return Search(
        job=model_job(table.facts, table.host, table.device, space.recipes, table.compute),
        space=space,
        yours=played.baseline,
        feasible=lambda configs: [config for config in configs if config in played.rates],
    )


def by_sampler(
    played: Played, most: int, chance: random.Random, make: Callable[[Search, int], BaseSampler]
) -> tuple[int, list[TrialConfig]]:
    """(Trials, finalists) of one replay: what the sampler asks for counts as the nearest row. The throughput model ends
    its search by itself, and its finalists are those that it expects to be best; others' are those that read highest.
    """
    search = search_on(played)
    trials, is_own = search.trials, make is SAMPLERS["loadtune"]
    sampler = make(search, 0 if is_own else chance.randrange(2**31))
    study = SearchStudy(search.space, sampler)
    while len(trials) < most:
        upcoming = sampler.upcoming() if isinstance(sampler, ThroughputSampler) else None
        if isinstance(upcoming, str):
            break
        config = _nearest_row(played, search.space, study.ask(search.first))
        drawn, predicted = chance.choice(played.rates[config]), upcoming and upcoming.predicted
        trials.append(Trial(number=len(trials), config=config, measurement=drawn, predicted=predicted))
        study.tell(trials[-1])
    ranked, seen = search.ranked(), dict[TrialConfig, list[float]]()
    for config, measured in measured_of(trials):
        seen.setdefault(config, []).append(measured.samples_per_s)
    highest = sorted(seen, key=lambda config: -statistics.fmean(seen[config]))[:FINALISTS]
    own = [each for each in (*ranked[:2], search.highest(), search.roomiest()) if each is not None]
    return len(trials), list(dict.fromkeys(own if is_own else highest))


def _nearest_row(played: Played, space: SearchSpace, asked: TrialConfig) -> TrialConfig:
    at = space.point(asked)

    def away(row: TrialConfig) -> float:
        point = space.point(row)
        return sum(
            abs(axis.index(point[name]) - axis.index(at[name])) / max(1, len(axis) - 1)
            for name, axis in space.axes.items()
        )

    return asked if asked in played.rates else min(played.rates, key=away)


def by_cores(played: Played, most: int, chance: random.Random) -> tuple[int, list[TrialConfig]]:
    """As many workers as cores, pinned, the first recipe, the row with the largest batch up to 256."""
    cores, on_gpu = played.table.host.num_usable_cores, played.table.device.kind == "cuda"

    def away(config: TrialConfig) -> tuple[object, ...]:
        loader = config.loader
        return abs(loader.num_workers - cores), loader.pin_memory != on_gpu, abs(loader.batch_size - 256)

    return 1, [min(played.rates, key=away)]


SAMPLERS: dict[str, Callable[[Search, int], BaseSampler]] = {
    "loadtune": lambda search, seed: ThroughputSampler(search),
    "TPE": lambda search, seed: TPESampler(n_startup_trials=5, seed=seed),
    "GP": lambda search, seed: GPSampler(n_startup_trials=5, seed=seed),
    "random": lambda search, seed: RandomSampler(seed),
}
WAYS = {name: partial(by_sampler, make=make) for name, make in SAMPLERS.items()} | {"workers = cores": by_cores}


def replayed(played: Played, way: str, most: int, seed: int) -> tuple[int, float]:
    """(Trials, regret)."""
    chance = random.Random(seed)
    number, picked = WAYS[way](played, most, chance)
    confirmed = {
        config: statistics.fmean(chance.choice(played.rates[config]).samples_per_s for _ in range(CONFIRMED))
        for config in picked
    }
    return number, played.regret(max(confirmed, key=confirmed.__getitem__))


def every_row_once(played: Played, replays: int) -> float:
    """95th percentile of the regret."""
    chance, regrets = random.Random(0), list[float]()
    for _ in range(replays):
        drawn = {config: chance.choice(runs).samples_per_s for config, runs in played.rates.items()}
        regrets.append(played.regret(max(drawn, key=drawn.__getitem__)))
    return float(np.quantile(regrets, 0.95))


def unseen(played: Played, replays: int) -> tuple[float, float]:
    """(Median miss, share within the 95% interval) of rows that were not among the first six trials."""
    misses, inside = list[float](), list[bool]()
    for seed in range(replays):
        search, chance, tried = search_on(played), random.Random(seed), list[tuple[TrialConfig, Measurement]]()
        for number in range(UNSEEN_AFTER):
            asked = search.next()
            if isinstance(asked, str):
                break
            drawn = chance.choice(played.rates[asked.config])
            tried.append((asked.config, drawn))
            search.trials.append(Trial(number=number, config=asked.config, measurement=drawn))
        left = [config for config in played.rates if config not in dict(tried)]
        model = ThroughputModel(search.job, segments_of(tried, search.job))
        found, truth = model.predict(points_at(left, search.job)), np.log([played.true_rate(c) for c in left])
        noise = SEGMENT_SD / np.sqrt([len(played.rates[c]) for c in left])
        misses += list(np.abs(np.expm1(found.mean - truth)))
        inside += list(np.abs(found.mean - truth) <= 1.96 * np.hypot(found.sd, noise))
    return statistics.median(misses), statistics.fmean(inside)


def rows_of(path: Path, given: argparse.Namespace) -> Iterator[str]:
    played = read(path)
    yield f"{path.stem}: {len(played.rates)} rows, the best {played.best_rate:,.0f} samples/s"
    most = given.most
    for way in given.ways:
        replays = given.replays if way != "GP" else max(1, given.replays // 5)
        found = [replayed(played, way, most, seed) for seed in range(replays)]
        regrets = [regret for _, regret in found]
        trials = statistics.fmean(number for number, _ in found)
        most = round(trials) if way == "loadtune" else most
        yield (
            f"  {way:16s} {trials:4.1f} trials, regret {statistics.fmean(regrets):6.1%}, "
            f"95th percentile {np.quantile(regrets, 0.95):6.1%}"
        )
    miss, share = unseen(played, max(1, given.replays // 5))
    yield f"  every row once: 95th percentile {every_row_once(played, 200):.1%}"
    yield f"  unseen rows after {UNSEEN_AFTER} trials: missed by {miss:.1%} in the median, {share:.0%} in the interval"


def priors(paths: Sequence[Path]) -> Iterator[str]:
    """Of each prior: it, and the geometric mean and spread over the tables that made it half as wide at least."""
    found = dict[str, list[float]]()
    for path in paths:
        played = read(path)
        job = search_on(played).job
        model = ThroughputModel(job, segments_of([(c, run) for c, runs in played.rates.items() for run in runs], job))
        learned, spread = model.learned(), model.draws(400, model.segments)[0].std(axis=0)
        names = (*PRIORS, *(f"compute {recipe}" for recipe in job.compute))
        for name, value, sd, before in zip(names, learned, spread, prior_of(job)[1], strict=True):
            if sd < before / 2:
                found.setdefault(name if name in PRIORS else "compute", []).append(float(value))
    for name, prior in (PRIORS | {"compute": COMPUTE}).items():
        logs = found.get(name, [])
        told = f"{np.exp(statistics.fmean(logs)):9.3g}" if logs else "        –"
        told += f" × exp(± {statistics.stdev(logs):.2f})" if len(logs) > 1 else ""
        yield f"{name:14s} {prior.median:9.3g} × exp(± {prior.sd:.2f})   {len(logs)} tables: {told}"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--replays", type=int, default=100)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--priors", action="store_true", help="what the tables say of each prior")
    parser.add_argument("--most", type=int, default=12, help="trials, as --trials of a run")
    return parser.parse_args(words)


def main() -> int:
    given = arguments()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    paths = given.tables or [
        path for path in sorted(TABLES.glob("*.json")) if not path.stem.startswith(("compute", "steps-"))
    ]
    lines = priors(paths) if given.priors else (line for path in paths for line in rows_of(path, given))
    for line in lines:
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
