"""Changes of the code become a dimension of the search.

In: the best configuration so far, and the model. Each change that applies is examined there: samples are compared,
loading is timed. The one that is predicted to gain most is taken, then the one that gains most on top of it, and so on.
Out: combinations of them, which are searched and measured as all else is, and what their measurements say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from loadtune.changes import FEWEST_EXAMINED, REMEDIES, Remedy, Situation, in_order, num_examined
from loadtune.errors import OutOfTimeError
from loadtune.model.answers import Changed, best_of, change
from loadtune.model.fit import ThroughputModel
from loadtune.model.resources import Job, Points
from loadtune.records.config import TrialConfig
from loadtune.records.interval import Interval
from loadtune.records.measurement import ComputePoint, TrialFailure
from loadtune.records.result import Examined, LeftOut
from loadtune.seams import Training

T = TypeVar("T")

WORTH_TRYING = 1.03
"""Expected gain from which on a change is tried."""

OF_LEFT = 0.25
"""Share of the time left that examining them may take: the answer comes first."""

EXAMINE_S = 5.0
"""What it takes to examine all changes, beside the loading of samples that it takes: as seen on an H100."""

COMPUTE_S = 1.0
"""For timing a changed recipe without a loader."""

NO_TIME = "too little of the time budget was left"


@dataclass(frozen=True, slots=True)
class Step:
    """One change on top of those before it."""

    remedy: Remedy
    seen: Examined
    predicted: Interval | None = None
    """Gain on top of those before it. None: not known."""
    compute_gain: float | None = None
    """Of a changed recipe without a loader. None: not timed."""
    height: int = 0
    """How many changes it was examined on top of."""

    @property
    def is_to_time(self) -> bool:
        return not self.remedy.loads and self.compute_gain is None


def applied(names: Sequence[str], config: TrialConfig, at: Situation) -> TrialConfig | None:
    """The configuration with these changes, one on top of the other. None: one is nothing at these settings."""
    for name in names:
        offered = REMEDIES[name].offer(replace(at, config=config))
        if offered is None:
            return None
        config = replace(offered, remedies=in_order((*config.remedies, name)))
    return config


def job_with(step: Step, job: Job, at: Situation) -> Job | None:
    """With one more change. None: the model does not know what it brings."""
    config = applied([step.remedy.name], at.config, at) or at.config
    curve = tuple(
        (size, seconds / (step.compute_gain or 1.0)) for size, seconds in job.compute.get(config.precision, ())
    )
    compute = {**job.compute, config.precision: curve} if curve else job.compute
    return step.remedy.job(replace(job, compute=compute), step.seen, replace(at, config=config))


@dataclass(slots=True, kw_only=True)
class Stack:
    """Changes, each with all before it. `build` fills it; whatever was found until then stands if it is cut short."""

    at: Situation
    """The best of the configurations without changes."""
    training: Training
    model: ThroughputModel | None
    able: Sequence[TrialConfig]
    """Configurations without changes that can run, and that the model knows."""
    points: Callable[[Sequence[TrialConfig]], Points]
    """Some of them as the model takes them."""
    left_s: Callable[[], float]
    """Of the time budget."""
    tries_all: bool
    """Whatever is predicted."""
    steps: list[Step] = field(default_factory=list)
    left_out: dict[str, LeftOut] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """In the order in which they were stacked."""
        return [step.remedy.name for step in self.steps]

    @property
    def codes(self) -> list[tuple[str, ...]]:
        """The combinations, which `applied` applies: each change with all before it."""
        return [tuple(self.names[:number]) for number in range(1, len(self.steps) + 1)]

    def jobs(self, job: Job) -> tuple[Job, ...]:
        """As the model takes the combinations."""
        found = list[Job]()
        for step, names in zip(self.steps, self.codes, strict=True):
            job = replace(job_with(step, job, self.at) or job, changes=in_order(names))
            found.append(job)
        return tuple(found)

    def build(self) -> None:
        """Stack changes as long as another one is worth trying."""
        able = [remedy for remedy in REMEDIES.values() if self._applies(remedy.name)]
        sample_s, loads = self.at.facts.sample_s, sum(remedy.loads for remedy in able)
        loading_s = 2 * sample_s * (2 * FEWEST_EXAMINED + 2 * num_examined(sample_s)) * loads
        if OF_LEFT * self.left_s() < EXAMINE_S + loading_s:
            for remedy in able:
                self._leave_out(remedy.name, NO_TIME)
            return
        waiting = self._examined([remedy.name for remedy in able])
        while waiting and (best := self._next(waiting)) is not None:
            step = waiting.pop(best)
            if step.height == len(self.steps) and not step.is_to_time:
                self.steps.append(step)
                waiting = {name: each for name, each in waiting.items() if self._applies(name)}
            elif (again := self._examined_here(best)) is not None:
                waiting[best] = again
        for name, step in waiting.items():
            self._leave_out(name, None, step.predicted)

    def _applies(self, name: str) -> bool:
        offered = self._guarded(name, lambda: applied([*self.names, name], self.at.config, self.at))
        if offered is None:
            self._leave_out(name, "it does not apply to this job with the best settings")
        return offered is not None

    @property
    def config(self) -> TrialConfig:
        """The best of the configurations with all that is stacked."""
        return applied(self.names, self.at.config, self.at) or self.at.config

    def _examined(self, names: Sequence[str]) -> dict[str, Step]:
        """Those that can be used. All are examined at once on top of the stack; where that fails, one by one, so that
        only what fails by itself is out."""
        seen = self.training.examine(self.config, tuple(names)) if names else ()
        if isinstance(seen, TrialFailure) and len(names) > 1:
            return {name: step for each in names for name, step in self._examined([each]).items()}
        if isinstance(seen, TrialFailure):
            seen = (Examined(name=names[0], refused=failed_text(seen)),)
        for each in seen:
            if each.refused is not None:
                self._leave_out(each.name, each.refused)
        usable = [Step(REMEDIES[each.name], each, height=len(self.steps)) for each in seen if each.refused is None]
        return {step.remedy.name: step for step in usable}

    def _next(self, waiting: dict[str, Step]) -> str | None:
        """The one that is expected to gain most, or None: none is worth trying. Predictions are kept in ``waiting``."""
        gains, base = dict[str, float](), self._base()
        for name, step in list(waiting.items()):
            found = self._guarded(name, lambda step=step: self._gain(step, base))  # type: ignore[misc]
            if name in self.left_out:
                del waiting[name]
                continue
            waiting[name] = replace(step, predicted=None if found is None else found.gain)
            gains[name] = 0.0 if found is None else found.expected_gain
        best = max(gains, key=gains.__getitem__, default=None)
        return best if best is not None and (self.tries_all or gains[best] >= WORTH_TRYING) else None

    def _examined_here(self, name: str) -> Step | None:
        """Examined again on top of what is stacked now, a changed recipe timed. None: it is out."""
        step = self._examined([name]).get(name)
        if step is None or step.remedy.loads:
            return step
        compute_gain = self._guarded(name, lambda: self._compute_gain(name))
        if compute_gain is None:
            self._leave_out(name, "its steps could not be timed")
            return None
        return replace(step, compute_gain=compute_gain)

    def _base(self) -> tuple[Job, Points] | None:
        """(The job with what is stacked, the settings that are best then). None: not known."""
        if self.model is None:
            return None
        job = [self.model.job, *self.jobs(self.model.job)][-1]
        best = self._best(self.model, self.names, job)
        return None if best is None else (job, best)

    def _gain(self, step: Step, base: tuple[Job, Points] | None) -> Changed | None:
        """At the settings that are best with it, over those that are best with what is stacked. None: not known."""
        then = None if base is None else job_with(step, base[0], self.at)
        if self.model is None or base is None or then is None:
            return None
        after = self._best(self.model, [*self.names, step.remedy.name], then)
        return None if after is None else change(self.model, base[1], after, then, base=base[0])

    def _best(self, model: ThroughputModel, names: Sequence[str], job: Job) -> Points | None:
        """Of the configurations that can run, with these changes."""
        changed = [config for each in self.able if (config := applied(names, each, self.at)) is not None]
        if not changed:
            return None
        points = self.points([replace(config, remedies=()) for config in changed])
        return points.at([best_of(model, points, job)])

    def _compute_gain(self, name: str) -> float | None:
        """Of a changed recipe, without a loader. None: it could not be timed."""
        changed, before = applied([*self.names, name], self.at.config, self.at), self.config.recipe
        assert changed is not None
        if changed.precision != before.precision:
            before = next((each.recipe for each in self.able if each.precision == changed.precision), before)
        points = [self.training.time_compute(each, changed.batch_size, COMPUTE_S) for each in (before, changed.recipe)]
        rates = [point.samples_per_s for point in points if isinstance(point, ComputePoint)]
        return rates[1] / rates[0] if len(rates) == 2 else None

    def _guarded(self, name: str, work: Callable[[], T]) -> T | None:
        """None also where this change crashes, which is left out then."""
        try:
            return work()
        except OutOfTimeError:
            raise
        except Exception as error:
            self._leave_out(name, f"crashed: {type(error).__name__}: {error}")
            return None

    def _leave_out(self, name: str, reason: str | None, predicted: Interval | None = None) -> None:
        """For the first reason that there was."""
        if reason is None and predicted is None:
            reason = "its gain cannot be predicted; --remedies all tries it"
        self.left_out.setdefault(name, LeftOut(name=name, reason=reason, predicted=predicted))


def failed_text(failure: TrialFailure) -> str:
    return f"it failed: {failure.message.rstrip('.')}"
