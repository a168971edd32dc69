"""Changes of the code become a dimension of the search, where some are worth trying."""

from dataclasses import replace
from functools import partial

from loadtune.changes import Situation, in_order
from loadtune.changes.stack import OF_LEFT, Stack, applied
from loadtune.late_batches import usually_late
from loadtune.records import TrialConfig, WorkloadFacts
from loadtune.run import Run
from loadtune.search.search import Search
from loadtune.search.space import Code, SearchSpace
from loadtune.search.throughput import points_at


def changes(run: Run, facts: WorkloadFacts, search: Search) -> SearchSpace:
    """The space of a search with the changes that are worth trying; as it was with ``--remedies none``, and without
    time."""
    searched = search.space
    best = next(iter(search.ranked()), None)
    if run.config.remedies == "none" or best is None or run.is_over:
        return searched
    with run.stage("changes"):
        stack = Stack(
            at=_situation(run, facts, searched, best),
            bench=run.bench,
            model=search.model(),
            able=search.able(),
            points=lambda configs: points_at(configs, search.job),
            left_s=lambda: run.left_s,
            tries_all=run.config.remedies == "all",
        )
        run.bench.finish_by(run.until(OF_LEFT))
        try:
            run.aside("Not all changes of the code were examined", stack.build)
        finally:
            run.bench.finish_by(run.until(1.0))
        run.changes = stack
        if stack.steps and not any(trial.config.remedies for trial in run.trials):
            run.searched = None  # it goes on, with them
    codes = (Code(in_order(names), partial(applied, names, at=stack.at)) for names in stack.codes)
    return replace(searched, codes=tuple(codes))


def _situation(run: Run, facts: WorkloadFacts, searched: SearchSpace, best: TrialConfig) -> Situation:
    runs = [measured for config, measured in run.tried if config == best]
    return Situation(
        config=best,
        spec=run.config.workload,
        facts=facts,
        device=run.device,
        num_cores=run.host.num_usable_cores,
        ram_bytes=run.host.ram_available_bytes,
        late=usually_late([measured.workers for measured in runs]),
        precisions=tuple(searched.recipes),
        wait_fraction=sum(measured.wait_fraction for measured in runs) / max(1, len(runs)),
    )
