"""What torch.compile has still to do: a resumed run has a fresh bench, which has compiled nothing of what was kept.

Compiling takes longer than any run that is timed. Where it is counted as a part of one, what comes after is foretold
to take as long, and is left out.
"""

from collections.abc import Sequence

from loadtune.errors import LoadtuneError
from loadtune.records import ComputePoint, TrialConfig
from loadtune.stages.run import CONFIRM_AT_MOST, Run


def compile_seconds(run: Run, config: TrialConfig) -> float:
    """Predicted for compiling this batch size now, by the longest that was seen; 0: the bench has it, or need not."""
    if not config.recipe.compile or (config.recipe, config.batch_size) in run.found.trained:
        return 0.0
    points = (*run.found.compute_points, *(point for choice in run.found.recipes for point in choice.points))
    return max((point.compile_s or 0.0 for point in points), default=0.0)


def compile_ahead(run: Run, configs: Sequence[TrialConfig]) -> None:
    """Compile what is about to be timed: the first in any case, the others while the confirmation's time is left.

    Whatever fails here fails again where it is timed, and is told there.
    """
    kept_s = CONFIRM_AT_MOST * run.found.config.time_budget_s
    for number, config in enumerate(configs):
        needed_s = compile_seconds(run, config)
        if not needed_s or (number > 0 and needed_s + kept_s > run.found.left_s):
            continue
        run.found.tell(f"torch.compile runs again for batch {config.batch_size}")
        try:
            point = run.bench.time_compute(config.recipe, config.batch_size, 0.0)
        except LoadtuneError:
            return
        if isinstance(point, ComputePoint):
            run.found.trained.add((config.recipe, config.batch_size))
