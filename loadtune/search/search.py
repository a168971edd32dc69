"""Which configuration is tried next, and when enough were tried. Pure.

The throughput model proposes by expected improvement (`model.answers`). The user's settings come first, then another
run's winner where one was given. What the model does not know, such as prefetch_factor, is tried at the end: the best
configuration with one setting changed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loadtune.model.answers import WORTH, Proposal, is_enough, propose
from loadtune.model.fit import SEGMENT_SD, ThroughputModel
from loadtune.model.resources import Array, Job, Points
from loadtune.records.config import Objective, TrialConfig
from loadtune.records.interval import Interval
from loadtune.records.measurement import Measurement
from loadtune.records.result import Trial, TrialOrigin
from loadtune.search.segment import expected_seconds
from loadtune.search.space import MODELLED, SearchSpace, is_alike, size
from loadtune.search.throughput import points_at, segments_of

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
    first: Sequence[Next]
    """Tried before the model is asked."""
    feasible: Callable[[Sequence[TrialConfig]], Sequence[TrialConfig]] = lambda configs: configs
    """Those of them that can run, by all that is known now."""
    left_s: Callable[[], float] = lambda: math.inf
    """Seconds of the run. What was not tried is of no use to it where two segments of it would take longer."""
    objective: Objective = "samples-per-s"
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
            self._held.append(bool(trial.predicted.holds(self._score(measured))))

    def next(self, room: int, left_s: float = math.inf) -> Next | None:
        """What to try next. None: nothing is left that is worth a trial.

        ``room``: trials that there is still time for. The last of them are kept for what the model does not know.
        ``left_s``: seconds for them. A configuration whose queue could not be turned over once in it is not tried, nor
        one that could not be measured again afterwards.
        """
        self.ended = ""
        seen = {*self._failed, *(config for config, _ in self._tried)}
        waiting = [each for each in self.first if each.config not in seen and self.feasible([each.config])]
        return next(iter(waiting), None) or self._proposed(seen, room, left_s) or self._changed(seen)

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
            mean, most = model.mean(everywhere), self._most(model, everywhere)
            longer = self._seconds(configs, np.exp(mean)) > left_s
            faster = np.minimum(mean, most) > mean[places].max() + math.log1p(WORTH)
            self.too_long = [configs[at] for at in np.flatnonzero(longer & faster)]
            highest = np.argsort(np.where(longer, math.inf, -mean))[:MOST].tolist()
            weighed = sorted({*(at for at in highest if not longer[at]), *places})
            able, tried = [configs[at] for at in weighed], [weighed.index(at) for at in places]
            points = points_at(able, self.job)
            return able, propose(
                model, points, tried, lambda rates: self._seconds(able, rates), left_s, self._most(model, points)
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
        predicted = _predicted(found.log_rate, found.sd, self._unit())
        return Next(config=configs[found.index], origin="search", predicted=predicted, expected=found.expected)

    def _most(self, model: ThroughputModel, points: Points) -> Array | float:
        """What none of them can exceed, on the logarithm. Of samples per joule nothing is known."""
        return model.most(points) if self.objective == "samples-per-s" else math.inf

    def _guessed(self, configs: Sequence[TrialConfig]) -> Next | None:
        """Without any measurement to compare with: what the calibrations alone say is fastest."""
        found = ThroughputModel(self.job).predict(points_at(configs, self.job))
        took_s = self._seconds(configs, np.exp(found.mean))
        at = int(np.where(found.mean >= found.mean.max() + math.log(AS_GOOD), took_s, math.inf).argmin())
        sd = math.hypot(float(found.sd[at]), SEGMENT_SD)
        known = self.objective == "samples-per-s"  # the power is not, before anything ran
        predicted = _predicted(float(found.mean[at]), sd, 1.0) if known else None
        return Next(config=configs[at], origin="search", predicted=predicted)

    def _changed(self, seen: set[TrialConfig]) -> Next | None:
        """The best configuration with one setting that the model does not know at another value."""
        plain = (config for config in self.ranked() if not config.remedies)
        best = next((config for config in plain if config == self.space.as_modelled(config)), None)
        variants = [] if best is None else self._variants(best)
        return next((Next(config=each, origin="search", expected=0.0) for each in variants if each not in seen), None)

    def _variants(self, config: TrialConfig) -> Sequence[TrialConfig]:
        """With one setting changed that the model does not know: one value of each setting first, then the others. Not
        again what was tried beside an earlier best."""
        point, turns = self.space.point(config), list[tuple[int, TrialConfig]]()
        given = [each.config for each in self.first]
        changed = [self.space.point(c) for c, _ in self._tried if not self.is_modelled(c) and c not in given]
        for name, axis in self.space.axes.items():
            if name not in MODELLED:
                at, known = axis.index(point[name]), {each[name] for each in changed}
                others = (*axis[at + 1 :], *axis[:at])
                turns += [(turn, self.space.at({**point, name: v})) for turn, v in enumerate(others) if v not in known]
        return self.feasible([each for _, each in sorted(turns, key=lambda each: each[0]) if each != config])

    def ranked(self) -> list[TrialConfig]:
        """What was tried, best first, as the model expects it to be; what it does not know, as it was measured.

        The baseline stands here with workers that outlive an epoch, as all others do: that changes no rate.
        """
        known = dict.fromkeys(self.space.as_modelled(c) for c, _ in self._tried if self.is_modelled(c))
        others = {c: m.score(self.objective) for c, m in self._tried if not self.is_modelled(c)}
        found = sorted([*self._by_expectation(list(known)), *others.items()], key=lambda each: -each[1])
        return [config for config, _ in found]

    def best_at(self, batch_size: int) -> list[TrialConfig]:
        """With this batch size, tried or not: the best that the model expects, the smallest that is as good, and then
        the others, best first."""
        ranked = self._by_expectation([c for c in self.able() if c.batch_size == batch_size and not c.remedies])
        by_score = [config for config, _ in ranked]
        return list(dict.fromkeys([*by_score[:1], *_smallest(ranked), *by_score]))

    def highest(self) -> TrialConfig | None:
        """What read highest without changes of the code, whatever the model makes of it. None: nothing ran."""
        tried = {config: self._score(measured) for config, measured in self._tried if not config.remedies}
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
        took_s = self._seconds(configs, np.array(scores) * self._unit()) if any(scores) else scores
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
        return float(self._seconds([config], np.array([score * self._unit()]))[0]) if score > 0 else 0.0

    def _seconds(self, configs: Sequence[TrialConfig], rates: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(divide="ignore"):  # without the model, what was not tried has the rate 0 and takes for ever
            return expected_seconds([config.loader for config in configs], rates, self.job.sample_s)

    def _expected(self, configs: Sequence[TrialConfig]) -> list[float]:
        known = self._known()
        if not configs or not known:
            return [0.0 for _ in configs]
        found = self._asked(lambda model: model.predict(points_at(configs, self.job)).mean)
        if found is None:
            measured = {self.space.as_modelled(config): self._score(measurement) for config, measurement in known}
            return [measured.get(config, 0.0) for config in configs]
        return [float(rate) for rate in np.exp(found) / self._unit()]

    def _asked(self, ask: Callable[[ThroughputModel], T]) -> T | None:
        """What the model answers. None: what was measured cannot be fitted, see `broken`."""
        try:
            if self._fitted is None:
                known, unit = self._known(), self._unit()
                rates = [self._score(measured) * unit for _, measured in known]
                self._fitted = ThroughputModel(self.job, segments_of(known, rates, self.job))
            return ask(self._fitted)
        except (ValueError, ArithmeticError) as error:  # numpy's LinAlgError is a ValueError
            self.broken = f"the throughput model does not fit what was measured ({error})"
            return None

    def _score(self, measured: Measurement) -> float:
        """In flight: what starting workers costs an epoch is added where configurations are ranked."""
        return measured.samples_per_s if self.objective == "samples-per-s" else measured.score(self.objective)

    def _unit(self) -> float:
        """Samples/s of one unit of the score: the power in the median of the trials, in watts, or 1. By how much power
        differs from setting to setting is left to the model's discrepancy."""
        if self.objective == "samples-per-s":
            return 1.0
        return float(np.median([measured.samples_per_s / self._score(measured) for _, measured in self._known()]))

    def is_modelled(self, config: TrialConfig) -> bool:
        """Whether the model knows all that it differs in; how long workers live changes no rate."""
        return is_alike(self.space.as_modelled(config), config)


def _predicted(log_rate: float, sd: float, unit: float) -> Interval:
    low, score, high = (math.exp(log_rate + times * sd) / unit for times in (-1.96, 0, 1.96))
    return Interval(value=score, low=low, high=high)


def _smallest(ranked: Sequence[tuple[TrialConfig, float]]) -> list[TrialConfig]:
    """Of those that are as good as the first, the one with the fewest workers, then the smallest batch; or nothing."""
    near = [config for config, score in ranked if score >= AS_GOOD * ranked[0][1]]
    return sorted(near, key=size)[:1]
