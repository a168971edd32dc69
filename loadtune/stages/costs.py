"""After the confirmation, in the time that is left: what the winner costs at an epoch's end and at a checkpoint."""

from loadtune.errors import BenchError
from loadtune.records import EpochCost, Finalist, SavingCost, TrialFailure
from loadtune.stages.run import Run
from loadtune.study.evidence import HeldBack, usually_held_back
from loadtune.study.winner import WAITING
from loadtune.units import percent_text, ratio_text

COST_SHARE = 0.015
"""Of the time budget, for either of the two: 4.5 s of the default five minutes."""

NUM_STARTS = 4
"""Times the workers are started for either of the two, generously counted."""


def costs(run: Run) -> None:
    """Time epochs and checkpoints with the best loader; nothing where it has no workers, or the time is spent."""
    best = run.found.best
    if best is None or best.config.loader.num_workers == 0:
        return
    finalist = next(f for f in run.found.finalists if f.config == best.config)
    with run.found.stage("costs"):
        _tell_held_back(run, finalist)
        try:
            _time_costs(run, finalist)
        except BenchError as error:  # what was confirmed stands without them
            run.found.tell(f"What epochs and checkpoints cost was not timed: {error}", warning=True)


def _tell_held_back(run: Run, finalist: Finalist) -> None:
    held_back = usually_held_back([measured.workers for measured in finalist.runs])
    if held_back is not None and finalist.wait_fraction >= WAITING:
        run.found.note(_held_back_text(held_back))


def _time_costs(run: Run, finalist: Finalist) -> None:
    found, config = run.found, finalist.config
    seconds = COST_SHARE * found.config.time_budget_s
    needed_s = seconds + NUM_STARTS * max(measured.first_batch_s for measured in finalist.runs)
    if needed_s < found.left_s:
        epochs = run.bench.time_epochs(config.loader, seconds)
        if isinstance(epochs, EpochCost):
            found.epoch_cost = epochs
        else:
            _tell_not_timed(run, epochs)
    if needed_s < found.left_s:
        saving = run.bench.time_saving(config, seconds)
        if isinstance(saving, SavingCost):
            found.saving_cost = saving
        else:
            _tell_not_timed(run, saving)


def _tell_not_timed(run: Run, failure: TrialFailure) -> None:
    run.found.tell(f"Not timed ({failure.phase}): {failure.message}", warning=True)


def _held_back_text(held_back: HeldBack) -> str:
    share = f"{percent_text(held_back.wait_share)} of the winner's data wait is"
    if held_back.by == "worker":
        return (
            f"{share} for one worker, which takes {ratio_text(held_back.ratio)} the others' time a batch: batches are "
            "handed out in turn, so the others wait for it. Look at what that worker alone does, reads or runs on; "
            "DataLoader(in_order=False) lets the others overtake, at the price of a fixed order of samples."
        )
    return (
        f"{share} for a few single batches, the longest of which took {ratio_text(held_back.ratio)} the usual time: "
        "batches are handed out in turn, so one slow sample holds back all that come after it. Look for the samples "
        "that are slow to read; a larger prefetch_factor, or DataLoader(in_order=False), hides a few of them."
    )
