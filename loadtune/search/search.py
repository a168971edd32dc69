"""Which configuration is tried next, and when enough were tried. Pure.

The throughput model proposes by expected improvement (`model.answers`), after the user's own settings. What the model
does not know, prefetch_factor, is tried at the end on the best configuration.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loadtune.model.answers import WORTH, Proposal, is_enough, propose
from loadtune.model.fit import SEGMENT_SD, Segments, ThroughputModel, points_of
from loadtune.model.resources import Job, Points
from loadtune.records.config import Precision, Recipe, TrialConfig
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.records.interval import Interval
from loadtune.records.measurement import ComputePoint, Measurement
from loadtune.records.result import Trial, TrialOrigin
from loadtune.search.segment import expected_seconds
from loadtune.search.space import WAITS, SearchSpace, is_alike, size

T = TypeVar("T")

MOST = 400
"""Configurations that a proposal weighs: those with the highest predicted throughput that can be tried in time."""

MIN_RUNS = 2
"""Of whoever is named the winner, where time allows: one run has no interval, and the fastest of several was lucky."""

AS_GOOD = 0.99
"""Share of the best expected score from which on a smaller configuration is worth a place in the confirmation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """A configuration to try."""

    config: TrialConfig
    origin: TrialOrigin
    predicted: Interval | None = None
    expected: float = math.inf
    """Improvement over the best so far, on the logarithm. Infinite: nobody knows."""


@dataclass(slots=True)
class Search:
    """Call `next`, try what it returns, and tell the outcome to `saw`."""

    job: Job
    space: SearchSpace
    yours: TrialConfig | None
    """The user's own settings, tried before the model is asked. None: the space has no such point."""
    feasible: Callable[[Sequence[TrialConfig]], Sequence[TrialConfig]] = lambda configs: configs
    """Those of them that can run, by all that is known now."""
    left_s: Callable[[], float] = lambda: math.inf
    """Seconds of the run. What was not tried is of no use to it where two segments of it would take longer."""
    _tried: list[tuple[TrialConfig, Measurement]] = field(default_factory=list)
    _failed: set[TrialConfig] = field(default_factory=set)
    _held: list[bool] = field(default_factory=list)
    _fitted: ThroughputModel | None = None
    _all: list[TrialConfig] | None = None
    too_long: list[TrialConfig] = field(default_factory=list)
    """Predicted to be faster, but too long for the time that was left when the last proposal was made."""
    ended: str = ""
    """Why nothing more is proposed, for people; empty: only for want of time. Known after `next` returned None."""
    broken: str | None = None
    """Why the model does not answer. None: it does. Without it configurations are ranked as they were measured."""

    def saw(self, trial: Trial) -> None:
        """An outcome, also one of before an interruption."""
        self._fitted = self.broken = None
        measured = trial.measurement
        if measured is None:
            self._failed.add(trial.config)
            return
        self._tried.append((trial.config, measured))
        if trial.predicted is not None and trial.origin == "search":
            self._held.append(bool(trial.predicted.holds(measured.samples_per_s)))

    def next(self, room: int, left_s: float = math.inf) -> Next | None:
        """What to try next. None: nothing is left that is worth a trial.

        ``room``: trials that there is still time for. The last of them are kept for what the model does not know.
        ``left_s``: seconds for them. A configuration whose queue could not be turned over once in it is not tried, nor
        one that could not be measured again afterwards.
        """
        self.ended = ""
        seen = {*self._failed, *(config for config, _ in self._tried)}
        if self.yours is not None and self.yours not in seen and self.feasible([self.yours]):
            return Next(config=self.yours, origin="yours")
        return self._proposed(seen, room, left_s) or self._changed(seen)

    def _proposed(self, seen: set[TrialConfig], room: int, left_s: float) -> Next | None:
        configs, ran = self.able(), {self.space.as_modelled(config) for config, _ in self._known()}
        places = [at for at, config in enumerate(configs) if config in ran]
        if len(places) == len(configs):
            self.ended = "every configuration that can run was tried"
            return None
        if not places:  # nothing ran yet, or what ran no longer fits
            return self._guessed(configs)
        left_s = min(left_s, self.left_s() / (2 + MIN_RUNS))  # it is run twice more, and the user's own beside it

        def proposed(model: ThroughputModel) -> tuple[list[TrialConfig], Proposal]:
            everywhere = points_at(configs, self.job)
            mean, most = model.mean(everywhere), model.most(everywhere)
            longer = self._seconds(configs, np.exp(mean)) > left_s
            faster = np.minimum(mean, most) > mean[places].max() + math.log1p(WORTH)
            self.too_long = [configs[at] for at in np.flatnonzero(longer & faster)]
            highest = np.argsort(np.where(longer, math.inf, -mean))[:MOST].tolist()
            weighed = sorted({*(at for at in highest if not longer[at]), *places})
            able, tried = [configs[at] for at in weighed], [weighed.index(at) for at in places]
            points = points_at(able, self.job)
            return able, propose(
                model, points, tried, lambda rates: self._seconds(able, rates), left_s, model.most(points)
            )

        asked = self._asked(proposed)
        if asked is None:
            self.ended = str(self.broken)
            return None
        configs, found = asked
        if self.too_long and found.expected < WORTH:
            return None
        if is_enough(found, self._held):
            self.ended = "no other configuration is likely to be faster"
            return None
        if room <= sum(each not in seen for each in self._variants(configs[found.best])):
            return None
        predicted = _predicted(found.log_rate, found.sd)
        return Next(config=configs[found.index], origin="search", predicted=predicted, expected=found.expected)

    def _guessed(self, configs: Sequence[TrialConfig]) -> Next | None:
        """Without any measurement to compare with: what the calibrations alone say is fastest."""
        found = ThroughputModel(self.job).predict(points_at(configs, self.job))
        took_s = self._seconds(configs, np.exp(found.mean))
        at = int(np.where(found.mean >= found.mean.max() + math.log(AS_GOOD), took_s, math.inf).argmin())
        sd = math.hypot(float(found.sd[at]), SEGMENT_SD)
        return Next(config=configs[at], origin="search", predicted=_predicted(float(found.mean[at]), sd))

    def _changed(self, seen: set[TrialConfig]) -> Next | None:
        """The best configuration with another prefetch_factor, which the model does not know."""
        plain = (config for config in self.ranked() if not config.remedies)
        best = next((config for config in plain if config == self.space.as_modelled(config)), None)
        variants = [] if best is None else self._variants(best)
        return next((Next(config=each, origin="search", expected=0.0) for each in variants if each not in seen), None)

    def _variants(self, config: TrialConfig) -> Sequence[TrialConfig]:
        """With each other prefetch_factor that is searched and was not tried, beside an earlier best neither."""
        point, known = self.space.point(config), {config.loader.prefetch_factor}
        known |= {c.loader.prefetch_factor for c, _ in self._tried if not self.is_modelled(c) and c != self.yours}
        others = [each for each in self.space.prefetch_factors if each not in known]
        variants = [self.space.at({**point, "prefetch_factor": each}) for each in others]
        return self.feasible([each for each in variants if each != config])

    def ranked(self) -> list[TrialConfig]:
        """What was tried, best first, as the model expects it to be; what it does not know, as it was measured.

        The baseline stands here with workers that outlive an epoch, as all others do: that changes no rate.
        """
        known = dict.fromkeys(self.space.as_modelled(c) for c, _ in self._tried if self.is_modelled(c))
        others = {c: m.score for c, m in self._tried if not self.is_modelled(c)}
        found = sorted([*self._by_expectation(list(known)), *others.items()], key=lambda each: -each[1])
        return [config for config, _ in found]

    def best_at(self, batch_size: int) -> list[TrialConfig]:
        """With this batch size, tried or not: the best that the model expects, the smallest that is as good, and then
        the others, best first."""
        ranked = self._by_expectation([c for c in self.able() if c.batch_size == batch_size and not c.remedies])
        best_first = [config for config, _ in ranked]
        return list(dict.fromkeys([*best_first[:1], *_smallest(ranked), *best_first]))

    def highest(self) -> TrialConfig | None:
        """What read highest without changes of the code, whatever the model makes of it. None: nothing ran."""
        tried = {config: measured.samples_per_s for config, measured in self._tried if not config.remedies}
        return max(self.feasible(list(tried)), key=tried.__getitem__, default=None)

    def smallest(self) -> TrialConfig | None:
        """The smallest configuration that the model expects to be as good as any, tried or not."""
        return next(iter(_smallest(self._by_expectation([c for c in self.able() if not c.remedies]))), None)

    def changed(self) -> TrialConfig | None:
        """The best expected with changes of the code, of those that ran if any did. None: there is none."""
        able = [config for config in self.able() if config.remedies]
        ran = [config for config, _ in self._tried if config in able]
        return next((config for config, _ in self._by_expectation(ran or able)), None)

    def model(self) -> ThroughputModel | None:
        """Fitted to what was tried. None: nothing was, or it cannot be fitted."""
        return self._asked(lambda model: model) if self._known() else None

    def _known(self) -> list[tuple[TrialConfig, Measurement]]:
        """The trials that the model can be fitted to."""
        return [(config, measured) for config, measured in self._tried if self.is_modelled(config)]

    def able(self) -> list[TrialConfig]:
        """All that the model knows of, that fits into memory and has not failed."""
        if self._all is None:
            self._all = list(self.space.modelled())
        return [config for config in self.feasible(self._all) if config not in self._failed]

    def _by_expectation(self, configs: Sequence[TrialConfig]) -> list[tuple[TrialConfig, float]]:
        """Best first, each with its expected score; without those that could not be run twice in the time left."""
        scores = self._expected(configs)
        tried, most_s = {config for config, _ in self._known()}, self.left_s() / MIN_RUNS
        took_s = self._seconds(configs, np.array(scores)) if any(scores) else scores
        found = [
            (config, score)
            for config, score, seconds in zip(configs, scores, took_s, strict=True)
            if seconds <= most_s or self.space.as_modelled(config) in tried
        ]
        return sorted(found, key=lambda each: -each[1])

    def expected_s(self, config: TrialConfig) -> float:
        """What measuring it takes, by the model. 0: its precision was not searched, or the model does not answer."""
        if config.precision not in self.space.recipes:
            return 0.0
        score = self._expected([self.space.as_modelled(config)])[0]
        return float(self._seconds([config], np.array([score]))[0]) if score > 0 else 0.0

    def _seconds(self, configs: Sequence[TrialConfig], rates: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(divide="ignore"):  # without the model, what was not tried has the rate 0 and takes for ever
            return expected_seconds([config.loader for config in configs], rates, self.job.sample_s)

    def _expected(self, configs: Sequence[TrialConfig]) -> list[float]:
        known = self._known()
        if not configs or not known:
            return [0.0 for _ in configs]
        found = self._asked(lambda model: model.predict(points_at(configs, self.job)).mean)
        if found is None:
            measured = {self.space.as_modelled(config): measurement.samples_per_s for config, measurement in known}
            return [measured.get(config, 0.0) for config in configs]
        return [float(rate) for rate in np.exp(found)]

    def _asked(self, ask: Callable[[ThroughputModel], T]) -> T | None:
        """What the model answers. None: what was measured cannot be fitted, see `broken`."""
        try:
            if self._fitted is None:
                self._fitted = ThroughputModel(self.job, segments_of(self._known(), self.job))
            return ask(self._fitted)
        except (ValueError, ArithmeticError) as error:  # numpy's LinAlgError is a ValueError
            self.broken = f"the throughput model does not fit what was measured ({error})"
            return None

    def is_modelled(self, config: TrialConfig) -> bool:
        """Whether the model knows all that it differs in; how long workers live changes no rate."""
        return is_alike(self.space.as_modelled(config), config)


def _predicted(log_rate: float, sd: float) -> Interval:
    low, rate, high = (math.exp(log_rate + times * sd) for times in (-1.96, 0, 1.96))
    return Interval(value=rate, low=low, high=high)


def _smallest(ranked: Sequence[tuple[TrialConfig, float]]) -> list[TrialConfig]:
    """Of those that are as good as the first, the one with the fewest workers, then the smallest batch; or nothing."""
    near = [config for config, score in ranked if score >= AS_GOOD * ranked[0][1]]
    return sorted(near, key=size)[:1]


# What a run found, as the throughput model takes it


def job_of(
    facts: WorkloadFacts,
    host: HostFacts,
    device: Device,
    recipes: Mapping[Precision, Recipe],
    compute_points: Sequence[ComputePoint],
) -> Job:
    """What is known before the first trial. A precision that was not timed counts as the first one that was."""
    curves = {precision: _curve(compute_points, recipe) for precision, recipe in recipes.items()}
    known = next(curve for curve in curves.values() if curve)
    return Job(
        sample_s=facts.sample_s,
        sample_cpu_s=facts.sample_s if facts.sample_cpu_s is None else facts.sample_cpu_s,
        sample_bytes=float(facts.sample_bytes),
        num_cores=float(max(1, host.num_usable_cores)),
        on_gpu=device.kind == "cuda",
        compute={str(precision): curve or known for precision, curve in curves.items()},
        syncing=frozenset(str(precision) for precision, recipe in recipes.items() if recipe.waits_each_step),
    )


def _curve(points: Sequence[ComputePoint], recipe: Recipe) -> tuple[tuple[float, float], ...]:
    """(Batch size, seconds a sample), smallest batch first; of several timings the fastest."""
    rates: dict[int, float] = {}
    for point in points:
        if point.recipe == recipe:
            rates[point.batch_size] = max(point.samples_per_s, rates.get(point.batch_size, 0.0))
    return tuple((float(size), 1 / rate) for size, rate in sorted(rates.items()))


def points_at(configs: Sequence[TrialConfig], job: Job) -> Points:
    recipes, codes = list(job.compute), [each.changes for each in job.codes]
    settings = [(c.batch_size, c.loader.num_workers, c.loader.pin_memory, recipes.index(c.precision)) for c in configs]
    return points_of(settings, [codes.index(config.remedies) for config in configs])


def segments_of(trials: Sequence[tuple[TrialConfig, Measurement]], job: Job) -> Segments:
    return Segments(
        points=points_at([config for config, _ in trials], job),
        rates=np.array([measured.samples_per_s for _, measured in trials]),
        make_s=np.array([_make_s(config, measured) for config, measured in trials]),
        device_s=np.array([_device_s(measured) for _, measured in trials]),
        pin_s=np.array([_pin_s(config, measured) for config, measured in trials]),
        cpu_s=np.array([_cpu_s(config, measured, job) for config, measured in trials]),
        num=np.ones(len(trials)),
    )


def _make_s(config: TrialConfig, measured: Measurement) -> float:
    """Wall seconds for a sample of a worker, or of the training process with 0 workers; NaN where that was not seen.

    Without workers training waits for the loader as long as that takes, and, where it pins, for that too.
    """
    if not config.loader.num_workers and not config.loader.pin_memory:
        num_samples = sum(window.num_samples for window in measured.windows)
        return sum(window.wait_s for window in measured.windows) / num_samples or float("nan")
    num_made = sum(worker.num_made for worker in measured.workers)
    if not num_made:
        return float("nan")
    return sum(worker.made_s for worker in measured.workers) / num_made / config.batch_size


def _device_s(measured: Measurement) -> float:
    """Seconds a sample in which the device copied and computed; NaN where that was not measured."""
    windows = measured.windows
    if any(window.copy_s is None or window.compute_s is None for window in windows):
        return float("nan")
    busy_s = sum((window.copy_s or 0.0) + (window.compute_s or 0.0) for window in windows)
    return busy_s / sum(window.num_samples for window in windows)


def _pin_s(config: TrialConfig, measured: Measurement) -> float:
    """Seconds a sample of the pinning thread, over the windows in which batches were always queued for it; NaN where
    there are none, or it pinned nothing."""
    busy = [window for window in measured.windows if window.num_pinned and (window.least_unpinned or 0) > 0]
    num_pinned = sum(window.num_pinned or 0 for window in busy)
    if not num_pinned or not config.loader.pin_memory or not config.loader.num_workers:
        return float("nan")
    return sum(window.seconds for window in busy) / num_pinned / config.batch_size


def _cpu_s(config: TrialConfig, measured: Measurement, job: Job) -> float:
    """CPU seconds a sample of the workers; NaN where there are none, it was not read, or samples hardly wait: then
    `_make_s` is as much."""
    seen, hardly_waits = measured.telemetry, job.sample_s < WAITS * job.sample_cpu_s
    if not config.loader.num_workers or hardly_waits or seen is None or not seen.workers_cpu_cores:
        return float("nan")
    return seen.workers_cpu_cores / measured.samples_per_s
