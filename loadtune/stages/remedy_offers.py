"""Which remedies are worth trying on top of what was kept, and what each is predicted to gain."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from loadtune.errors import OutOfTimeError
from loadtune.model.fit import ThroughputModel
from loadtune.model.resources import Job
from loadtune.records import (
    ComputePoint,
    Examined,
    Finalist,
    LeftOut,
    Measurement,
    TrialConfig,
    TrialFailure,
    WorkloadFacts,
)
from loadtune.remedies import FEWEST_EXAMINED, REMEDIES, Remedy, Situation, num_examined
from loadtune.report.wording import FAILURE_TEXT
from loadtune.stages.bottleneck import known_of
from loadtune.stages.run import Run
from loadtune.stages.searching import search_of
from loadtune.study.bottleneck import model_of
from loadtune.study.remedies import WORTH_TRYING, Offer, learned, offer
from loadtune.study.space import SearchSpace

T = TypeVar("T")

EXAMINE_S = 5.0
"""What it takes to examine all remedies, beside the loading of samples that it takes: as seen on an H100."""

DOES_NOT_APPLY = "it does not apply to this job with the best settings"
NOT_PREDICTED = "its gain cannot be predicted; --remedies all tries it"
LITTLE_THROUGHPUT = f"less than {WORTH_TRYING - 1:.0%} more throughput is expected"
NO_TIME = "too little of the time budget was left"

COMPUTE_S = 1.0
"""For timing a changed recipe without a loader."""


@dataclass(frozen=True, slots=True)
class Time:
    """What offers have to fit into."""

    left_s: Callable[[], float]
    try_s: float
    """That trying one takes at the least."""


@dataclass(slots=True)
class Offers:
    run: Run
    facts: WorkloadFacts
    searched: SearchSpace
    winner: Finalist
    model: ThroughputModel | None = None
    """None: it knows too little of this job."""
    job: Job | None = None
    """With the remedies that were kept."""
    able: Callable[[TrialConfig], bool] = lambda config: True
    """Whether it can run, by all that is known of memory."""
    others: Sequence[TrialConfig] = ()
    """Other settings that can run."""
    points: dict[TrialConfig, ComputePoint] = field(default_factory=dict)
    """Recipes that were timed without a loader."""
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    lacked_time: bool = False
    crashed: dict[str, str] = field(default_factory=dict)
    """Remedies that crashed, and how."""

    def __post_init__(self) -> None:
        search = search_of(self.run, self.facts, self.searched)
        in_order = self.winner.config.loader.in_order
        self.able = lambda config: bool(search.feasible([replace(config, remedies=())]))
        self.others = [each for each in search.able() if each.loader.in_order == in_order]
        known = known_of(self.run, self.facts, self.searched, self.winner)
        if known is not None:
            self.model = model_of(known)
            self.job = self.model.job

    def on_top_of(self, situation: Situation, tried: Collection[str], time: Time) -> list[Offer]:
        """Those that were not tried and apply on top of what was kept, the most promising first."""
        able = list[Remedy]()
        self.left_out, self.lacked_time = {}, False
        for remedy in REMEDIES.values():
            if remedy.name in tried:
                continue
            offered = self._guarded(remedy.name, partial(remedy.offer, situation))
            if remedy.name in self.crashed or offered is None:
                self._leave_out(self._left(remedy, self.crashed.get(remedy.name, DOES_NOT_APPLY)))
            else:
                able.append(remedy)
        if not able:
            return []
        if time.left_s() < self._examine_s(able) + time.try_s:
            self.lacked_time = True
            for remedy in able:
                self._leave_out(self._left(remedy, NO_TIME))
            return []
        offers = list[Offer]()
        for remedy, each in zip(able, self._examine(situation.config, [remedy.name for remedy in able]), strict=True):
            found = self._guarded(remedy.name, partial(self._offer, remedy, each, situation, time))
            found = found or self._left(remedy, self.crashed.get(remedy.name))
            if isinstance(found, LeftOut):
                self._leave_out(found)
            else:
                offers.append(found)
        return sorted(offers, key=lambda each: -each.expected_gain)

    def _examine(self, config: TrialConfig, names: Sequence[str]) -> Sequence[Examined]:
        """All at once; where that fails, one by one, so that only what fails by itself is left out."""
        seen = self.run.bench.examine(config, tuple(names))
        if not isinstance(seen, TrialFailure):
            return seen
        if len(names) > 1:
            return [each for name in names for each in self._examine(config, [name])]
        self.crashed[names[0]] = f"{FAILURE_TEXT[seen.kind]}: {seen.message.rstrip('.')}"
        return [Examined(name=names[0], refused=self.crashed[names[0]])]

    def _guarded(self, name: str, work: Callable[[], T]) -> T | None:
        """None also where this remedy crashes, which is not looked at again then."""
        try:
            return work()
        except OutOfTimeError:
            raise
        except Exception as error:
            self.crashed[name] = f"crashed: {type(error).__name__}: {error}"
            return None

    def _offer(self, remedy: Remedy, seen: Examined, situation: Situation, time: Time) -> Offer | LeftOut:
        def predicted(compute_gain: float) -> Offer | None:
            return offer(remedy, seen, situation, self.model, self.job, self.others, compute_gain)

        found = predicted(remedy.hoped)
        if found is None:
            return self._left(remedy, seen.refused or DOES_NOT_APPLY)
        if not self.able(found.config):
            return self._left(remedy, "its settings do not fit into memory, or failed before", found)
        little = self._too_little(remedy, found)
        if little is not None or not remedy.changes_recipe:
            return little or found
        if remedy.takes_s + time.try_s > time.left_s():
            self.lacked_time = True
            return self._left(remedy, NO_TIME)
        precision = found.config.precision
        is_other = precision != situation.config.precision
        recipe = self.searched.recipes[precision] if is_other else situation.config.recipe
        before, after = self._compute(replace(found.config, recipe=recipe)), self._compute(found.config)
        if before is None or after is None:
            return self._left(remedy, "its steps could not be timed")
        found = predicted(after.samples_per_s / before.samples_per_s) or found
        return self._too_little(remedy, found) or found

    def _too_little(self, remedy: Remedy, found: Offer) -> LeftOut | None:
        """None: it is worth trying."""
        if self.run.found.config.remedies == "all" or found.expected_gain >= WORTH_TRYING:
            return None
        if found.predicted is None:
            return self._left(remedy, NOT_PREDICTED)
        by_throughput = self.run.found.config.objective == "samples-per-s"
        return self._left(remedy, None if by_throughput else LITTLE_THROUGHPUT, found)

    def _left(self, remedy: Remedy, reason: str | None, found: Offer | None = None) -> LeftOut:
        by_throughput = self.run.found.config.objective == "samples-per-s"
        predicted = found.predicted if found is not None and by_throughput else None
        return LeftOut(name=remedy.name, reason=reason, predicted=predicted)

    def _leave_out(self, each: LeftOut) -> None:
        self.left_out[each.name] = each

    def _compute(self, config: TrialConfig) -> ComputePoint | None:
        """Of its recipe, timed now."""
        key = replace(config, remedies=())  # without a loader none of them matters
        if key not in self.points:
            point = self.run.bench.time_compute(config.recipe, config.batch_size, COMPUTE_S)
            if isinstance(point, TrialFailure):
                return None
            self.points[key] = point
        return self.points[key]

    def _examine_s(self, remedies: Sequence[Remedy]) -> float:
        sample_s = self.facts.sample_s
        loading_s = 2 * sample_s * (2 * FEWEST_EXAMINED + 2 * num_examined(sample_s))
        return EXAMINE_S + loading_s * sum(remedy.loads for remedy in remedies)

    def learn(self, kept: Offer, runs: Sequence[Measurement]) -> None:
        """From the runs of one that was kept."""
        self.job = kept.job or self.job
        if self.model is not None and self.job is not None:
            self.model = learned(self.model, self.job, kept.config, runs)
