"""After the confirmation, in the time that is left: what the winner's workers cost a checkpoint."""

from loadtune.records import SavingCost
from loadtune.report.journal import Winners
from loadtune.stages.compiling import compile_seconds
from loadtune.stages.run import Run

COST_SHARE = 0.006
"""Of the time budget: 1.8 s of the default five minutes."""

NUM_STARTS = 4
"""Times the workers are started for it, generously counted."""


def costs(run: Run) -> None:
    """Time checkpoints with the best loader; nothing where it has no workers, or the time is spent."""
    best = run.found.best
    if best is None or best.config.loader.num_workers == 0:
        return
    finalist = next(f for f in run.found.finalists if f.config == best.config)
    with run.found.stage("costs"):
        found, config = run.found, finalist.config
        seconds = COST_SHARE * found.config.time_budget_s
        needed_s = seconds + NUM_STARTS * max(measured.first_batch_s for measured in finalist.runs)
        # A checkpoint is timed beside a round of the workers, and two steps without them.
        round_s = (config.loader.num_workers + 2) * config.batch_size / finalist.samples_per_s
        found.saving_cost = run.known(config, lambda line: line.saving_cost)
        has_model = config.precision != "own"  # a whole training step shows no model that a checkpoint would hold
        if has_model and found.saving_cost is None and needed_s + round_s + compile_seconds(run, config) < found.left_s:
            saving = run.bench.time_saving(config, seconds)
            if isinstance(saving, SavingCost):
                found.saving_cost = saving
                run.keep(Winners(config=config, saving_cost=saving))
            else:
                found.tell(f"Not measured ({saving.phase}): {saving.message}", warning=True)
