"""Changes of the code become a dimension of the search.

In: the best configuration so far, and the model. Each change that applies is examined there: samples are compared,
loading is timed. The one that is predicted to gain most is taken, then the one that gains most on top of it, and so on.
Out: a space with these combinations, which are searched and measured as all else is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from loadtune.errors import OutOfTimeError
from loadtune.model.answers import Changed, best_of, change
from loadtune.model.fit import ThroughputModel
from loadtune.model.resources import Job
from loadtune.records import (
    ComputePoint,
    Estimate,
    Examined,
    Finalist,
    LeftOut,
    Ratio,
    Remedies,
    TrialConfig,
    TrialFailure,
    TriedRemedy,
    WorkloadFacts,
)
from loadtune.records.confirmed import Failed, compute_fraction
from loadtune.remedies import FEWEST_EXAMINED, REMEDIES, Remedy, Situation, in_order, num_examined
from loadtune.report.wording import FAILURE_TEXT
from loadtune.stages.run import Run
from loadtune.stages.searching import search_of
from loadtune.study.confirm import difference
from loadtune.study.late_batches import usually_late
from loadtune.study.space import Code, SearchSpace
from loadtune.study.throughput import points_at

T = TypeVar("T")

MOST = 7
"""Combinations of changes, beside none."""

WORTH_TRYING = 1.03
"""Expected gain from which on a change is tried."""

WORTH_KEEPING = 1.01
"""Measured gain from which on a change of the code is worth it."""

OF_LEFT = 0.25
"""Share of the time left that examining them may take: the answer comes first."""

EXAMINE_S = 5.0
"""What it takes to examine all changes, beside the loading of samples that it takes: as seen on an H100."""

COMPUTE_S = 1.0
"""For timing a changed recipe without a loader."""

DOES_NOT_APPLY = "it does not apply to this job with the best settings"
NOT_PREDICTED = "its gain cannot be predicted; --remedies all tries it"
WITH_OTHERS = "measured with the others"
NOT_FASTEST = "the model expects more without it"
PREDICTED_ONLY = "predicted only; --remedies all tries it"
NO_TIME = "too little of the time budget was left"


def changes(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> SearchSpace:
    """The space with the changes that are worth trying; as it was with ``--remedies none``, and without time."""
    found = run.found
    search = search_of(run, facts, searched)
    best = next((each.config for each in search.ranked()), None)
    if found.config.remedies == "none" or best is None or run.is_over:
        return searched
    with found.stage("changes"):
        stack = _Stack(run, facts, searched, best, search.model(), search.able())
        run.bench.finish_by(run.until(OF_LEFT))
        try:
            found.aside("Not all changes of the code were examined", stack.build)
        finally:
            run.bench.finish_by(run.until(1.0))
        found.changes = stack
        if stack.names and not any(trial.config.remedies for trial in found.trials):
            found.searched = None  # it goes on, with them
    return replace(searched, codes=tuple(stack.codes()))


@dataclass(slots=True)
class _Stack:
    run: Run
    facts: WorkloadFacts
    searched: SearchSpace
    best: TrialConfig
    """Of the configurations without changes."""
    model: ThroughputModel | None
    able: Sequence[TrialConfig]
    names: list[str] = field(default_factory=list)
    """As they were stacked."""
    seen: dict[str, Examined] = field(default_factory=dict)
    predicted: dict[str, Estimate | None] = field(default_factory=dict)
    """Gain of each on top of those before it."""
    compute_gains: dict[str, float] = field(default_factory=dict)
    """Of those that change the recipe, without a loader."""
    left_out: dict[str, LeftOut] = field(default_factory=dict)

    def codes(self) -> list[Code]:
        """Each change with all before it."""
        return [self._code(self.names[:number]) for number in range(1, len(self.names) + 1)]

    def jobs(self, job: Job) -> tuple[Job, ...]:
        """As the model takes the codes."""
        found = list[Job]()
        for number, name in enumerate(self.names, 1):
            job = self._job(job, name) or job
            found.append(replace(job, changes=in_order(self.names[:number])))
        return tuple(found)

    def build(self) -> None:
        """Stack changes as long as another one is worth trying."""
        able = [remedy for remedy in REMEDIES.values() if self._applies(remedy)]
        loads = sum(remedy.loads for remedy in able)
        sample_s = self.facts.sample_s
        examining_s = EXAMINE_S + 2 * sample_s * (2 * FEWEST_EXAMINED + 2 * num_examined(sample_s)) * loads
        if OF_LEFT * self.run.found.left_s < examining_s:
            for remedy in able:
                self._leave_out(remedy.name, NO_TIME)
            return
        self._examine([remedy.name for remedy in able])
        waiting = [remedy for remedy in able if self.seen[remedy.name].refused is None]
        while waiting and len(self.names) < MOST:
            best = self._next(waiting)
            if best is None:
                break
            waiting.remove(best)
            if self._takes(best):
                waiting = [each for each in waiting if self._applies(each)]
        for remedy in waiting:
            reason = PREDICTED_ONLY if remedy.only_predicted else None
            self._leave_out(remedy.name, reason, self.predicted.pop(remedy.name, None))

    def outcome(
        self, best: Finalist, changed: Finalist | None, finalists: Sequence[Finalist], failed: Sequence[Failed]
    ) -> Remedies:
        """What the final says of them. ``changed``: the contestant with changes. None: none ran."""
        left_out = tuple(self.left_out.values())
        if changed is None:
            tried = [self._tried(name, self._on_top(), _why(name, failed) or NO_TIME) for name in self.names]
            return Remedies(tried=tuple(tried), left_out=left_out)
        objective = self.run.found.config.objective
        ratio, low, high = difference(changed, best, finalists, 1, objective)
        gain = Ratio(ratio=ratio, low=low, high=high)
        kept = ratio >= WORTH_KEEPING and low is not None and low > 1.0 and changed.unconfirmed is None
        names = [name for name in self.names if name in changed.config.remedies]
        tried = [
            self._tried(name, changed.config, WITH_OTHERS if name in names else _why(name, failed) or NOT_FASTEST)
            for name in self.names
        ]
        if len(names) == 1:
            alone = replace(tried[0], base=best.config, gain=gain, runs=changed.runs, base_runs=best.runs, reason=None)
            tried[0] = replace(alone, config=changed.config)
        tried = [replace(each, kept=kept and each.name in names) for each in tried]
        if not kept:
            return Remedies(tried=tuple(tried), left_out=left_out, gain=gain)
        points = self.run.found.compute_points
        return Remedies(
            tried=tuple(tried),
            left_out=left_out,
            config=changed.config,
            samples_per_s=changed.samples_per_s,
            half_width_fraction=changed.half_width_fraction,
            gain=gain,
            runs=changed.runs,
            base_runs=best.runs,
            compute_fraction=compute_fraction(points, changed.config, changed.samples_per_s),
        )

    def _tried(self, name: str, config: TrialConfig, reason: str) -> TriedRemedy:
        remedy, seen = REMEDIES[name], self.seen[name]
        before = self.names[: self.names.index(name)]
        made = [remedy.changes] if remedy.changes != "nothing" or seen.difference is None else []
        made += [] if seen.difference is None else [seen.difference]
        return TriedRemedy(
            name=name,
            title=remedy.title,
            changes="; ".join(made),
            code=remedy.code(self._situation(config), seen),
            base=replace(self.best, remedies=in_order(before)),
            config=config,
            predicted=self.predicted.get(name) if self.run.found.config.objective == "samples-per-s" else None,
            reason=reason,
        )

    def _situation(self, config: TrialConfig) -> Situation:
        found = self.run.found
        runs = [t.measurement for t in found.trials if t.measurement and t.config == self.best]
        return Situation(
            config=config,
            spec=found.config.workload,
            facts=self.facts,
            device=found.device,
            num_cores=found.host.num_usable_cores,
            ram_bytes=found.host.ram_available_bytes,
            late=usually_late([measured.workers for measured in runs]),
            precisions=tuple(self.searched.recipes),
            wait_fraction=sum(measured.wait_fraction for measured in runs) / max(1, len(runs)),
        )

    def _code(self, names: Sequence[str]) -> Code:
        def apply(config: TrialConfig) -> TrialConfig | None:
            for name in names:
                offered = REMEDIES[name].offer(self._situation(config))
                if offered is None or (REMEDIES[name].needs_pinned and not config.loader.pin_memory):
                    return None
                config = replace(offered, remedies=in_order((*config.remedies, name)))
            return config

        return Code(in_order(names), apply)

    def _on_top(self) -> TrialConfig:
        return self._code(self.names).apply(self.best) or self.best

    def _applies(self, remedy: Remedy) -> bool:
        if remedy.name in self.left_out:
            return False
        offered = self._guarded(remedy.name, lambda: self._code([*self.names, remedy.name]).apply(self.best))
        if offered is None:
            self._leave_out(remedy.name, DOES_NOT_APPLY)
        return offered is not None

    def _examine(self, names: Sequence[str]) -> None:
        """All at once on top of the stack; where that fails, one by one, so that only what fails by itself is out."""
        if not names:
            return
        seen = self.run.bench.examine(self._on_top(), tuple(names))
        if isinstance(seen, TrialFailure) and len(names) > 1:
            for name in names:
                self._examine([name])
            return
        if isinstance(seen, TrialFailure):
            seen = (Examined(name=names[0], refused=f"{FAILURE_TEXT[seen.kind]}: {seen.message.rstrip('.')}"),)
        for each in seen:
            self.seen[each.name] = each
            if each.refused is not None:
                self._leave_out(each.name, each.refused)

    def _next(self, waiting: Sequence[Remedy]) -> Remedy | None:
        """The one that is expected to gain most, or None: none is worth trying."""
        gains, tries_all = dict[str, float](), self.run.found.config.remedies == "all"
        for remedy in waiting:
            if remedy.takes_s > OF_LEFT * self.run.found.left_s:
                continue
            found = self._guarded(remedy.name, lambda remedy=remedy: self._gain(remedy))  # type: ignore[misc]
            if remedy.name not in self.left_out:
                self.predicted[remedy.name] = None if found is None else found.gain
                if tries_all or not remedy.only_predicted:
                    gains[remedy.name] = 0.0 if found is None else found.expected_gain
        name = max(gains, key=gains.__getitem__, default=None)
        if name is None or (gains[name] < WORTH_TRYING and not tries_all):
            return None
        return REMEDIES[name]

    def _takes(self, remedy: Remedy) -> bool:
        """Whether it is on the stack now: on top of others it is examined again, a changed recipe is timed first."""
        if self.names:
            self._examine([remedy.name])
        if self.seen[remedy.name].refused is None and remedy.changes_recipe:
            gain = self._guarded(remedy.name, lambda: self._compute_gain(remedy))
            if gain is None:
                self._leave_out(remedy.name, "its steps could not be timed")
            else:
                self.compute_gains[remedy.name] = gain
                again = self._gain(remedy)
                self.predicted[remedy.name] = None if again is None else again.gain
                if again is not None and again.expected_gain < WORTH_TRYING and self.run.found.config.remedies != "all":
                    self._leave_out(remedy.name, None, again.gain)
        if remedy.name in self.left_out:
            self.predicted.pop(remedy.name, None)
            return False
        self.names.append(remedy.name)
        return True

    def _gain(self, remedy: Remedy) -> Changed | None:
        """At the settings that are best with it, over those that are best with what is stacked. None: not known."""
        own = remedy.gain(self._situation(self._on_top()))
        if own is not None:
            return Changed(own, own, own.value)
        if self.model is None:
            return None
        job = self._stacked(self.names)
        then = None if job is None else self._job(job, remedy.name)
        if job is None or then is None:
            return None
        before, after = (self._best(self.names, job), self._best([*self.names, remedy.name], then))
        if before is None or after is None:
            return None
        points = [points_at([replace(config, remedies=())], self.model.job) for config in (before, after)]
        return change(self.model, points[0], points[1], then, base=job)

    def _stacked(self, names: Sequence[str]) -> Job | None:
        job = None if self.model is None else self.model.job
        for name in names:
            job = None if job is None else self._job(job, name) or job
        return job

    def _best(self, names: Sequence[str], job: Job) -> TrialConfig | None:
        """Of the configurations that can run, with these changes."""
        assert self.model is not None
        code = self._code(names)
        with_it = [config for each in self.able if (config := code.apply(each)) is not None]
        if not with_it:
            return None
        plain = [replace(config, remedies=()) for config in with_it]
        return with_it[best_of(self.model, points_at(plain, self.model.job), job)]

    def _job(self, job: Job, name: str) -> Job | None:
        """With one more change. None: the model does not know what it brings."""
        remedy = REMEDIES[name]
        config = self._code([name]).apply(self.best) or self.best
        gain = self.compute_gains.get(name, remedy.hoped)
        curves = {
            recipe: tuple((size, seconds / gain) for size, seconds in curve) if recipe == config.precision else curve
            for recipe, curve in job.compute.items()
        }
        return remedy.job(replace(job, compute=curves), self.seen[name], self._situation(config))

    def _compute_gain(self, remedy: Remedy) -> float | None:
        """Of a changed recipe, without a loader. None: it could not be timed."""
        changed = self._code([*self.names, remedy.name]).apply(self.best)
        assert changed is not None
        recipe = self._on_top().recipe
        if changed.precision != recipe.precision:
            recipe = self.searched.recipes[changed.precision]
        points = [self.run.bench.time_compute(each, changed.batch_size, COMPUTE_S) for each in (recipe, changed.recipe)]
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

    def _leave_out(self, name: str, reason: str | None, predicted: Estimate | None = None) -> None:
        if reason is None and predicted is None:
            reason = NOT_PREDICTED
        self.left_out.setdefault(name, LeftOut(name=name, reason=reason, predicted=predicted))


def _why(name: str, failed: Sequence[Failed]) -> str | None:
    """How a configuration with this change failed. None: none did."""
    failures = (failure for config, failure in failed if name in config.remedies)
    return next((f"{FAILURE_TEXT[failure.kind]}: {failure.message}" for failure in failures), None)
