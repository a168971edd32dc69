"""The search: the user's own settings are tried first, then what the throughput model proposes, by expected improvement
(`model.answers`). It ends when nothing more is worth a trial, or when the final needs the time left. Pure: `study`
drives it.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from loadtune.changes.stack import Stack
from loadtune.decide.final import LOOKS, MIN_RUNS, NEAR, roomiest, size
from loadtune.decide.space import SearchSpace
from loadtune.model.answers import ENOUGH, HELD, of_segment, propose
from loadtune.model.fit import ThroughputModel, points_at, segments_of
from loadtune.model.resources import PRIORS, Array, Job, compute_s
from loadtune.model.workers import prefetch_bytes
from loadtune.records.config import LoaderConfig, Precision, Recipe, TrialConfig
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.records.measurement import GAIN, SAME, ComputePoint, Measurement, TrialFailure, Window, samples_per_s
from loadtune.records.result import Trial, measured_of
from loadtune.records.statistics import Interval

MOST = 400
"""Configurations that a proposal weighs: those with the highest predicted throughput that can be tried in time."""

OTHERS = 2
"""Contestants of a usual final beside those that are in every one."""

FEWEST_RUNS = 2 + 2 * MIN_RUNS
"""Of an answer: a trial of the user's settings and of another configuration, and both `MIN_RUNS` times in the final."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """A configuration to try."""

    config: TrialConfig
    predicted: Interval | None = None
    expected: float = math.inf
    """Improvement over the best so far, on the logarithm. Infinite: nobody knows."""


@dataclass(slots=True)
class Search:
    """Call `next`, try what it returns, and append the outcome to `trials`.

    What the final needs stays with it: `MIN_RUNS` runs of the best configuration, and of the user's own. A trial that
    is expected to gain less than `GAIN` leaves what the first look at a usual final takes. The first one that is
    proposed may leave one of each, where there is no time for more.
    """

    job: Job
    space: SearchSpace
    yours: TrialConfig | None
    """The user's own settings, tried before the model is asked. None: the space has no such point."""
    feasible: Callable[[Sequence[TrialConfig]], Sequence[TrialConfig]] = lambda configs: configs
    """Those of them that can run, by all that is known now."""
    left_s: Callable[[], float] = lambda: math.inf
    """Seconds in which the run may still measure."""
    batch_size: int | None = None
    """That the user gave, at which the final has two contestants. None: none."""
    trials: list[Trial] = field(default_factory=list)
    """Also those of before an interruption. What failed is for `feasible` to know."""
    broken: str | None = None
    """Why the model cannot be fitted. None: it can. Without it configurations are ranked as they were measured."""
    _fitted: ThroughputModel | None = None
    _num_fitted: int = -1
    _all: list[TrialConfig] = field(default_factory=list)

    @property
    def first(self) -> TrialConfig | None:
        """The user's own settings, where they are to be tried now."""
        if self.yours is None or self.yours in dict(measured_of(self.trials)):
            return None
        return self.yours if self.feasible([self.yours]) else None

    def next(self) -> Next | str:
        """What to try next; or why nothing is left that is worth a trial, for people. Empty: only for want of time."""
        if (first := self.first) is not None:
            return Next(config=first) if (1 + MIN_RUNS) * self.lasts_s(first) <= self.left_s() else ""
        configs, ran = self.able(), dict(self._known)
        places = [at for at, config in enumerate(configs) if config in ran]
        if len(places) == len(configs):
            return "every configuration that can run was tried"
        if (model := self.model()) is None:
            return str(self.broken)
        return self._proposed(model, configs, places) if places else self._quickest(model, configs)

    def _quickest(self, model: ThroughputModel, configs: Sequence[TrialConfig]) -> Next | str:
        """Of those expected to be best, where nothing ran yet, or what ran no longer fits."""
        points = points_at(configs, self.job)
        mean = model.mean(points)
        needed_s = self._needs_s(self._takes_s(configs, np.exp(mean)), self._beside_s(configs), 0.0, 1)
        at = int(np.where(mean >= mean.max() + math.log(1 - SAME), needed_s, math.inf).argmin())
        asked = Next(config=configs[at], predicted=of_segment(model.predict(points[[at]]), 0))
        return asked if needed_s[at] <= self.left_s() else ""

    def _proposed(self, model: ThroughputModel, configs: Sequence[TrialConfig], places: Sequence[int]) -> Next | str:
        """By the model, beside those at these places, which were tried."""
        left_s, points = self.left_s(), points_at(configs, self.job)
        mean, most = model.mean(points), model.most(points)
        took_s = self._takes_s(configs, np.exp(mean))
        best_at, beside_s = places[int(mean[places].argmax())], self._beside_s(configs)
        best_s = float(took_s[best_at])
        longer = self._needs_s(took_s, beside_s, best_s, MIN_RUNS) > left_s
        own = self.space.nearest(self.yours) if self.yours else None
        if longer.all() and all(configs[at] == own for at in places):
            longer = self._needs_s(took_s, beside_s, best_s, 1) > left_s
        faster = np.minimum(mean, most) > mean[places].max() + math.log1p(SAME)
        highest = np.argsort(np.where(longer, math.inf, -mean))[:MOST].tolist()
        weighed = sorted({*(at for at in highest if not longer[at]), *places})
        tried = [weighed.index(at) for at in places]
        spare_s = left_s - MIN_RUNS * (best_s + float(beside_s[best_at]))
        at, predicted, expected = propose(model, points[weighed], tried, took_s[weighed], spare_s, most[weighed])
        if expected < SAME and (longer & faster).any():
            return ""
        held = [trial.held for trial in self.trials if trial.held is not None]
        if expected < ENOUGH and len(held) >= HELD and all(held[-HELD:]):
            return "no other configuration is likely to be faster"
        if expected < 0 or (
            expected < GAIN and self._needs_s(took_s, beside_s, best_s, LOOKS[0], OTHERS)[weighed[at]] > left_s
        ):
            return ""
        return Next(config=configs[weighed[at]], predicted=predicted, expected=expected)

    def _needs_s(self, took_s: Array, beside_s: Array, best_s: float, num_runs: int, num_others: int = 0) -> Array:
        """Seconds for a trial of each, and for a final of so many runs of it, or of the best so far where that lasts
        longer, and of those beside it."""
        round_s = np.maximum(took_s, best_s) + beside_s + num_others * self.trial_s
        return np.asarray(took_s + num_runs * round_s)

    def final_s(self, num_runs: int) -> float:
        """Seconds that the final needs for so many runs of the best so far, and of those beside it."""
        best = next(iter(self.ranked()), None)
        return 0.0 if best is None else num_runs * (self.lasts_s(best) + float(self._beside_s([best])[0]))

    def ranked(self) -> list[TrialConfig]:
        """What was tried, best first, as the model expects it to be; what it does not know, as it was measured."""
        others = {config: measured.score for config, measured in measured_of(self.trials) if not self.space.has(config)}
        scores = self._by_expectation(list(dict(self._known))) | others
        return sorted(scores, key=lambda config: -scores[config])

    def best_at(self, batch_size: int) -> list[TrialConfig]:
        """With this batch size, tried or not: the best that the model expects, the smallest that is as good, and then
        the others, best first."""
        ranked = self._by_expectation([c for c in self.able() if c.batch_size == batch_size and not c.remedies])
        return list(dict.fromkeys([*list(ranked)[:1], *_smallest(ranked), *ranked]))

    def highest(self) -> TrialConfig | None:
        """What read highest without changes of the code, whatever the model makes of it. None: nothing ran."""
        tried = {config: measured.samples_per_s for config, measured in measured_of(self.trials) if not config.remedies}
        return max(self.feasible(list(tried)), key=tried.__getitem__, default=None)

    def roomiest(self, than: Sequence[TrialConfig] = ()) -> TrialConfig | None:
        """The smallest of those that the model expects to be near the best, tried or not, and to leave the device the
        most headroom; without changes of the code. None: one of ``than`` leaves as much."""
        rates = self._by_expectation([c for c in self.able() if not c.remedies])
        least = NEAR * max(rates.values(), default=0.0)
        near = {config: rate for config, rate in rates.items() if rate >= least}
        roomy = {config: near[config] for config in roomiest(near, self.compute_rates(list(near)))}
        return None if roomy.keys() & set(than) else next(iter(_smallest(roomy)), None)

    def compute_rates(self, configs: Sequence[TrialConfig]) -> dict[TrialConfig, float]:
        """Compute-only samples/s, without those with changes of the code. Empty on a CPU, whose cores load, too."""
        known = [c for c in configs if self.job.on_gpu and c.precision in self.job.compute and not c.remedies]
        seconds = compute_s(self.job, points_at(known, self.job), np.array(PRIORS["small"].median))
        return dict(zip(known, (1 / seconds).tolist(), strict=True))

    def changed(self) -> TrialConfig | None:
        """The best expected with changes of the code, of those that ran if any did. None: there is none."""
        able = [config for config in self.able() if config.remedies]
        ran = [config for config, _ in measured_of(self.trials) if config in able]
        return next(iter(self._by_expectation(ran or able)), None)

    def model(self) -> ThroughputModel | None:
        """Fitted to what was tried. None: that cannot be, see `broken`."""
        known = self._known
        if self._num_fitted != len(known):
            self._fitted, self.broken, self._num_fitted = None, None, len(known)
            try:
                self._fitted = ThroughputModel(self.job, segments_of(known, self.job))
            except (ValueError, ArithmeticError) as error:  # numpy's LinAlgError is a ValueError
                self.broken = f"the throughput model does not fit what was measured ({error})"
        return self._fitted

    def able(self) -> Sequence[TrialConfig]:
        """All that the model knows of, that fits into memory and has not failed."""
        self._all = self._all or list(self.space.modelled())
        return self.feasible(self._all)

    def _by_expectation(self, configs: Sequence[TrialConfig]) -> dict[TrialConfig, float]:
        """Best first, each with its expected rate; without those that could not be run twice in the time left."""
        rates = self._rates(configs)
        took_s, most_s = self._takes_s(configs, rates), self.left_s() / MIN_RUNS
        known, order = dict(self._known), np.argsort(-rates, kind="stable")
        return {configs[at]: float(rates[at]) for at in order if took_s[at] <= most_s or configs[at] in known}

    @property
    def _known(self) -> list[tuple[TrialConfig, Measurement]]:
        """What the model can be fitted to, each at its point of the space: the baseline with workers that outlive an
        epoch, as all others have. That changes no rate."""
        tried = measured_of(self.trials)
        return [(self.space.nearest(config), measured) for config, measured in tried if self.space.has(config)]

    @property
    def trial_s(self) -> float:
        """Of those that were measured, on average; 1 before the first."""
        return statistics.fmean([measured.seconds for _, measured in measured_of(self.trials)] or [1.0])

    def lasts_s(self, config: TrialConfig) -> float:
        """As long as its trial; without one as the model expects, or else as trials last."""
        if own := [measured.seconds for other, measured in measured_of(self.trials) if other == config]:
            return statistics.fmean(own)
        if config.precision not in self.space.recipes or self.model() is None:
            return self.trial_s
        near = [self.space.nearest(config)]
        return float(self._takes_s(near, self._rates(near))[0])

    def _takes_s(self, configs: Sequence[TrialConfig], rates: Array) -> Array:
        """Of a trial of each at these samples/s: the shortest segment, and what those so far took beyond theirs."""
        tried, measured = zip(*known, strict=True) if (known := self._known) else ((), ())
        shortest_s = expected_seconds(tried, np.array([each.samples_per_s for each in measured]), self.job.sample_s)
        more_s = np.mean([each.seconds for each in measured] - shortest_s) if known else 0.0
        return expected_seconds(configs, rates, self.job.sample_s) + max(0.0, float(more_s))

    def _beside_s(self, configs: Sequence[TrialConfig]) -> Array:
        """Of a round of the final beside its best contestant, if that is each of these: the user's own, the two best at
        the user's batch size, of which the best may be one, and one with changes of the code."""
        own_s = self.trial_s if self.yours is None else self.lasts_s(self.yours)
        others = [] if self.batch_size is None else [c for c in self.best_at(self.batch_size) if c != self.yours][:2]
        at_batch = [self.lasts_s(config) for config in others]
        changed_s = self.trial_s if self.space.codes else 0.0
        is_one = np.array([config.batch_size == self.batch_size for config in configs])
        return own_s + changed_s + math.fsum(at_batch) - np.where(is_one, max(at_batch, default=0.0), 0.0)

    def _rates(self, configs: Sequence[TrialConfig]) -> Array:
        """Expected samples/s. Without a model as they were measured, and 0 where they were not."""
        if (model := self.model()) is not None:
            return np.exp(model.mean(points_at(configs, self.job)))
        measured = {config: run.samples_per_s for config, run in self._known}
        return np.array([measured.get(config, 0.0) for config in configs])


def _smallest(ranked: Mapping[TrialConfig, float]) -> list[TrialConfig]:
    """Of those that are as good as the first, the one with the fewest workers, then the smallest batch; or nothing."""
    best = max(ranked.values(), default=0.0)
    return sorted((config for config, rate in ranked.items() if rate >= (1 - SAME) * best), key=size)[:1]


# What is known before the first trial, as the throughput model takes it


def model_job(
    facts: WorkloadFacts,
    host: HostFacts,
    device: Device,
    recipes: Mapping[Precision, Recipe],
    compute_points: Sequence[ComputePoint],
    stack: Stack | None = None,
) -> Job:
    """What is known before the first trial, also with each change of the ``stack``. A precision that was not timed
    counts as the first one that was."""
    curves = dict[str, tuple[tuple[float, float], ...]]()
    for precision, recipe in recipes.items():
        timed = sorted((point.batch_size, point.samples_per_s) for point in compute_points if point.recipe == recipe)
        curves[precision] = tuple((float(size), 1 / rate) for size, rate in dict(timed).items())  # the fastest of each
    known = next(curve for curve in curves.values() if curve)
    job = Job(
        sample_s=facts.sample_s,
        sample_cpu_s=facts.sample_s if facts.sample_cpu_s is None else facts.sample_cpu_s,
        sample_bytes=float(facts.sample_bytes),
        num_cores=max(1, host.num_usable_cores) / facts.num_ranks,
        on_gpu=device.kind == "cuda",
        compute={precision: curve or known for precision, curve in curves.items()},
        syncing=frozenset(str(precision) for precision, recipe in recipes.items() if recipe.waits_each_step),
    )
    return job if stack is None else replace(job, changed=stack.jobs(job))


def rules_out(tried: TrialConfig, failure: TrialFailure, config: TrialConfig, facts: WorkloadFacts) -> bool:
    """Whether the failure of a trial says that a configuration cannot run either."""
    if tried.remedies and not failure.is_of_memory:
        return set(tried.remedies) <= set(config.remedies)
    if tried.remedies and tried.remedies != config.remedies:
        return False
    if failure.kind == "non_finite_loss":
        return tried.precision in ("fp32", config.precision)
    if failure.kind == "oom":  # in its precision, as ceilings are
        return config.precision == tried.precision and config.batch_size >= tried.batch_size
    if failure.is_of_memory:
        return prefetch_bytes(config.loader, facts.sample_bytes) >= prefetch_bytes(tried.loader, facts.sample_bytes)
    return config == tried


# One segment of training under one configuration


START_S = 0.025
"""Of one worker: on two CPU cores 148 of them took 3.4 s to start."""

LEAST_S = 3.0
"""Of a segment whose batches take no time: switching, settling, measuring."""

WARM_STEPS = 2
"""Ahead of a batch size that is new to a recipe."""

ROUNDS = 15
"""Rounds of the workers that a segment spans where there is time: over fewer, eight workers read 9% apart (H200)."""

FEWEST_STEPS, FEWEST_WINDOWS = 2, 3
"""That are measured: fewer say next to nothing. Where steps are long two windows have to do."""

SETTLING = 2.0
"""Times the seconds that a segment is measured at most: locking the pages of a queue of 16 workers takes 2 to 5 s."""


class Segment:
    """Call `add` with each window; it returns whether to go on.

    **Settling** ends once every worker delivered and the last window locked no pages and skipped no step. After
    `SETTLING` times ``max_s`` seconds it ends once every worker delivered (`settled` is then False). Without workers
    the first window may count. A queue that grows or shrinks is corrected for.

    **Measuring** lasts until every worker delivered once more. It lasts half of ``max_s`` and until every worker
    delivered `ROUNDS` times, but no longer than ``max_s`` for that.
    """

    def __init__(self, loader: LoaderConfig, max_s: float, limit_s: float = math.inf) -> None:
        """``limit_s``: seconds after which a segment that has not seen enough ends all the same, as `gave_up`."""
        self.kept: list[Window] = []
        self.settled = True
        self.gave_up = False
        self._measuring = loader.num_workers == 0
        self._seen_s, self._num_steps = 0.0, 0
        self._loader, self._max_s, self._limit_s = loader, max_s, limit_s

    def add(self, window: Window) -> bool:
        """Take one window; False once enough was seen, or it takes too long."""
        may_settle = self._seen_s < SETTLING * self._max_s or self._num_steps < self._loader.num_workers
        self._seen_s, self._num_steps = self._seen_s + window.seconds, self._num_steps + window.num_steps
        if self._measuring and not (window.is_settling and may_settle):
            self.kept.append(window)
            if self._is_enough():
                return False
        else:  # where pages are locked later on, what was kept before is left out too: all that counts is one stretch
            self.kept.clear()
            self.settled = not window.is_settling and self._num_steps >= self._loader.num_workers
            self._measuring = self.settled or not may_settle
        self.gave_up = self._seen_s > self._limit_s
        return not self.gave_up

    def _is_enough(self) -> bool:
        seconds, num_steps = sum(w.seconds for w in self.kept), sum(w.num_steps for w in self.kept)
        if len(self.kept) < FEWEST_STEPS or num_steps < self._loader.num_workers or samples_per_s(self.kept) <= 0:
            return False
        is_long = seconds >= self._max_s / 2 and num_steps >= ROUNDS * max(1, self._loader.num_workers)
        return seconds >= self._max_s or (is_long and len(self.kept) >= FEWEST_WINDOWS)


def expected_seconds(
    configs: Sequence[TrialConfig], rates: NDArray[np.float64], sample_s: float
) -> NDArray[np.float64]:
    """What the shortest segment of each takes at these samples/s, a worker loading a sample in ``sample_s``: start and
    fill, a round of the workers that settles, and one that is measured."""
    loaders = [config.loader for config in configs]
    settings = [(each.batch_size, each.num_workers, max(FEWEST_STEPS, each.num_workers)) for each in loaders]
    batches, workers, measured = np.array(settings, float).reshape(-1, 3).T
    with np.errstate(divide="ignore"):  # a rate of 0 takes for ever
        step_s = (workers + measured + WARM_STEPS) / rates
    return np.asarray(LEAST_S + START_S * workers + batches * (sample_s * (workers > 0) + step_s))
