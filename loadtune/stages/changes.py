"""Changes of the code become a dimension of the search, where some are worth trying."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from loadtune.changes import Situation, in_order
from loadtune.changes.stack import OF_LEFT, Stack, applied
from loadtune.model.resources import Job
from loadtune.records import Finalist, Ratio, Remedies, TrialConfig, WorkloadFacts
from loadtune.records.confirmed import Failed
from loadtune.stages.run import Run
from loadtune.stages.searching import search_of
from loadtune.study.confirm import difference
from loadtune.study.late_batches import usually_late
from loadtune.study.space import Code, SearchSpace
from loadtune.study.throughput import points_at


def changes(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> SearchSpace:
    """The space with the changes that are worth trying; as it was with ``--remedies none``, and without time."""
    found = run.found
    search = search_of(run, facts, searched)
    best = next((each.config for each in search.ranked()), None)
    if found.config.remedies == "none" or best is None or run.is_over:
        return searched
    with found.stage("changes"):
        stack = Stack(
            at=_situation(run, facts, searched, best),
            bench=run.bench,
            model=search.model(),
            able=search.able(),
            points=lambda configs: points_at(configs, search.job),
            left_s=lambda: found.left_s,
            tries_all=found.config.remedies == "all",
        )
        run.bench.finish_by(run.until(OF_LEFT))
        try:
            found.aside("Not all changes of the code were examined", stack.build)
        finally:
            run.bench.finish_by(run.until(1.0))
        found.changes = _Changes(run, stack)
        if stack.steps and not any(trial.config.remedies for trial in found.trials):
            found.searched = None  # it goes on, with them
    codes = (Code(in_order(names), partial(applied, names, at=stack.at)) for names in stack.codes)
    return replace(searched, codes=tuple(codes))


def _situation(run: Run, facts: WorkloadFacts, searched: SearchSpace, best: TrialConfig) -> Situation:
    found = run.found
    runs = [trial.measurement for trial in found.trials if trial.measurement and trial.config == best]
    return Situation(
        config=best,
        spec=found.config.workload,
        facts=facts,
        device=found.device,
        num_cores=found.host.num_usable_cores,
        ram_bytes=found.host.ram_available_bytes,
        late=usually_late([measured.workers for measured in runs]),
        precisions=tuple(searched.recipes),
        wait_fraction=sum(measured.wait_fraction for measured in runs) / max(1, len(runs)),
    )


@dataclass(frozen=True, slots=True)
class _Changes:
    run: Run
    stack: Stack

    def jobs(self, job: Job) -> tuple[Job, ...]:
        return self.stack.jobs(job)

    def outcome(
        self, best: Finalist, changed: Finalist | None, finalists: Sequence[Finalist], failed: Sequence[Failed]
    ) -> Remedies:
        found, gain = self.run.found, None
        if changed is not None:
            ratio, low, high = difference(changed, best, finalists, 1, found.config.objective)
            gain = Ratio(ratio=ratio, low=low, high=high)
        points, objective = found.compute_points, found.config.objective
        return self.stack.outcome(best, changed, gain, failed, compute_points=points, objective=objective)
