"""Changes of the code become a dimension of the search.

In: the best configuration so far, and the model. Each change that applies is examined there: samples are compared,
loading is timed. The one that is predicted to gain most is taken, then the one that gains most on top of it, and so on.
Out: combinations of them, which are searched and measured as all else is, and what their measurements say.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from loadtune.changes.change import CHANGES, FEWEST_EXAMINED, Change, Situation, in_order, num_examined
from loadtune.model.answers import Changed, best_of, change
from loadtune.model.fit import ThroughputModel, points_at
from loadtune.model.resources import Job, Points
from loadtune.records.config import TrialConfig
from loadtune.records.loading import Examined
from loadtune.records.measurement import GAIN, ComputePoint, TrialFailure
from loadtune.records.result import TriedRemedy
from loadtune.records.statistics import Interval
from loadtune.seams import Training

WORTH_TRYING = 1 + GAIN
"""Expected gain from which on a change is tried."""

OF_LEFT = 0.25
"""Share of the time left that examining them may take: the answer comes first."""

EXAMINE_S = 5.0
"""What it takes to examine all changes, beside the loading of samples that it takes: as seen on an H100."""

COMPUTE_S = 1.0
"""For timing a changed recipe without a loader."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change on top of those before it. Stored with a run."""

    seen: Examined
    height: int
    """How many changes it was examined on top of."""
    compute_gain: float | None = None
    """Of a changed recipe without a loader. None: not timed."""
    predicted: Interval | None = None
    """Gain on top of those before it. None: not known."""

    @property
    def change(self) -> Change:
        return CHANGES[self.seen.name]

    @property
    def changes(self) -> str:
        """What changes for training, and how samples differ."""
        differs = [self.change.changes] if self.change.changes != "nothing" else []
        differs += [self.seen.values.text] if self.seen.values else []
        return "; ".join(differs) or "nothing"


def applied(names: Sequence[str], config: TrialConfig, at: Situation) -> TrialConfig | None:
    """The configuration with these changes, one on top of the other. None: one is nothing at these settings."""
    for name in names:
        offered = CHANGES[name].offer(replace(at, config=config))
        if offered is None:
            return None
        config = replace(offered, remedies=in_order((*config.remedies, name)))
    return config


def job_with(step: Step, job: Job, at: Situation) -> Job:
    """With one more change."""
    config = applied([step.change.name], at.config, at) or at.config
    curve = tuple(
        (size, seconds / (step.compute_gain or 1.0)) for size, seconds in job.compute.get(config.precision, ())
    )
    compute = {**job.compute, config.precision: curve} if curve else job.compute
    return step.change.job(replace(job, compute=compute), step.seen)


@dataclass(slots=True, kw_only=True)
class Stack:
    """Changes, each with all before it. `build` fills it; whatever was found until then stands if it is cut short."""

    at: Situation
    """The best of the configurations without changes."""
    training: Training
    model: ThroughputModel | None
    able: Sequence[TrialConfig]
    """Configurations without changes that can run, and that the model knows."""
    left_s: Callable[[], float]
    """Of the time budget."""
    tries_all: bool
    """Whatever is predicted."""
    steps: list[Step] = field(default_factory=list)
    is_short: bool = False
    """Whether there was no time to examine any."""

    @property
    def names(self) -> list[str]:
        """In the order in which they were stacked."""
        return [step.change.name for step in self.steps]

    @property
    def codes(self) -> dict[str, Callable[[TrialConfig], TrialConfig | None]]:
        """What applies each combination, a change with all before it, by its name."""
        combinations = [self.names[:number] for number in range(1, len(self.steps) + 1)]
        return {"+".join(in_order(names)): partial(applied, names, at=self.at) for names in combinations}

    @property
    def config(self) -> TrialConfig:
        """The best of the configurations with all that is stacked."""
        return applied(self.names, self.at.config, self.at) or self.at.config

    def jobs(self, job: Job) -> tuple[Job, ...]:
        """As the model takes the combinations."""
        found = list[Job]()
        for number, step in enumerate(self.steps, 1):
            job = replace(job_with(step, job, self.at), changes=in_order(self.names[:number]))
            found.append(job)
        return tuple(found)

    def tried(self, config: TrialConfig) -> tuple[TriedRemedy, ...]:
        """Each with its lines to paste at these settings, before the final has said what it gains."""
        return tuple(
            TriedRemedy(
                name=step.change.name,
                title=step.change.title,
                changes=step.changes,
                code=step.change.code(replace(self.at, config=config), step.seen),
                predicted=step.predicted,
                reason="the run ended before the confirmation",
            )
            for step in self.steps
        )

    def build(self) -> None:
        """Stack changes as long as another one is worth trying."""
        names = [name for name in CHANGES if self._applies(name)]
        sample_s, loads = self.at.facts.sample_s, sum(CHANGES[name].loads for name in names)
        loading_s = 2 * sample_s * (2 * FEWEST_EXAMINED + 2 * num_examined(sample_s)) * loads
        self.is_short = OF_LEFT * self.left_s() < EXAMINE_S + loading_s
        if self.is_short:
            return
        waiting = self._examined(names)
        while waiting:
            gains = self._gains(waiting)
            expected = {name: gains[name].expected_gain if name in gains else 0.0 for name in waiting}
            best = max(
                expected,
                key=lambda name: (expected[name] >= WORTH_TRYING and not CHANGES[name].keeps, expected[name]),
            )
            if not self.tries_all and expected[best] < WORTH_TRYING:
                return
            step = waiting.pop(best)
            is_to_time = not step.change.loads and step.compute_gain is None
            if step.height < len(self.steps) or is_to_time:
                waiting |= self._examined_alone(best)
                continue
            self.steps.append(replace(step, predicted=gains[best].gain if best in gains else None))
            waiting = {name: each for name, each in waiting.items() if self._applies(name)}

    def _applies(self, name: str) -> bool:
        return applied([*self.names, name], self.at.config, self.at) is not None

    def _examined(self, names: Sequence[str]) -> dict[str, Step]:
        """Those that can be used. All are examined at once on top of the stack; where that fails, one by one, so that
        only what fails by itself is out."""
        seen = self.training.examine(self.config, tuple(names)) if names else ()
        if isinstance(seen, TrialFailure):
            alone = names if len(names) > 1 else ()
            return {name: step for each in alone for name, step in self._examined([each]).items()}
        usable = (each for each in seen if each.refused is None)
        return {each.name: Step(each, len(self.steps)) for each in usable}

    def _examined_alone(self, name: str) -> dict[str, Step]:
        """On top of what is stacked now, a changed recipe timed without a loader. Empty: it cannot be used there."""
        found = self._examined([name])
        if not found or found[name].change.loads:
            return found
        changed, before = applied([*self.names, name], self.at.config, self.at), self.config.recipe
        assert changed is not None
        if changed.precision != before.precision:
            before = next((each.recipe for each in self.able if each.precision == changed.precision), before)
        points = [self.training.time_compute(each, changed.batch_size, COMPUTE_S) for each in (before, changed.recipe)]
        rates = [point.samples_per_s for point in points if isinstance(point, ComputePoint)]
        return {name: replace(found[name], compute_gain=rates[1] / rates[0])} if len(rates) == 2 else {}

    def _gains(self, waiting: Mapping[str, Step]) -> dict[str, Changed]:
        """Of each at the settings that are best with it, over those that are best with what is stacked. Without those
        that are not known."""
        if self.model is None:
            return {}
        job = [self.model.job, *self.jobs(self.model.job)][-1]
        base = self._best(self.model, self.names, job)
        gains = dict[str, Changed]()
        for name, step in waiting.items():
            then = job_with(step, job, self.at)
            after = self._best(self.model, [*self.names, name], then)
            if base is not None and after is not None:
                gains[name] = change(self.model, base, after, then, base=job)
        return gains

    def _best(self, model: ThroughputModel, names: Sequence[str], job: Job) -> Points | None:
        """Of the configurations that can run, with these changes."""
        changed = [config for each in self.able if (config := applied(names, each, self.at)) is not None]
        if not changed:
            return None
        points = points_at([replace(config, remedies=()) for config in changed], model.job)
        return points[[best_of(model, points, job)]]
