"""The configuration of a result that may be handed out: the winner, unless something rules it out.

Apart from the record, because the error is about the request, not about what was found.
"""

from typing import Any

from loadtune.errors import ResultError
from loadtune.records.configs import TrialConfig
from loadtune.records.confirmed import ruled_out
from loadtune.records.result import Finalist, TuningResult, Unconfirmed, Winner


def chosen_winner(result: TuningResult, *, keep_batch_size: bool = False) -> Winner:
    """The best at any batch size, or at the one that the run was given.

    Raises ResultError where the run has no winner, or its winner is not confirmed by the rules of `ruled_out`: a result
    that an earlier version wrote is held to them too.
    """
    winner = result.best_at_your_batch if keep_batch_size else result.best
    why = None if winner is None else why_unconfirmed(result, winner)
    if winner is not None and why is None:
        return winner
    if keep_batch_size and result.config.yours.batch_size is None:
        raise ResultError(
            "The run has no winner at your batch size, because it was given none. Run `loadtune run` with --batch-size,"
            " or leave keep_batch_size out for the best at any batch size."
        )
    raise ResultError(
        f"The run of {result.created} has no confirmed winner{_reason(result, why)} Only a confirmed configuration is"
        " exported. Name another result, or run again: `loadtune run`, or loadtune.tune(...) in Python. --resume, or"
        " tune(..., folder=..., resume=True), continues a run that was cut short."
    )


def loader_kwargs(result: TuningResult, config: TrialConfig) -> dict[str, Any]:
    """What ``DataLoader`` takes, without the batch size where the user's batch sampler or dataset makes the batches."""
    fixed = result.facts is not None and result.facts.fixed_batch_size is not None
    return {name: value for name, value in config.loader.kwargs().items() if not (fixed and name == "batch_size")}


def why_unconfirmed(result: TuningResult, winner: Winner) -> Unconfirmed | None:
    """What rules out a winner that is stored in a result. None: nothing does, or its runs were not stored."""
    finalist = finalist_of(result, winner.config)
    if finalist is None:
        return None
    if finalist.unconfirmed is not None:
        return finalist.unconfirmed
    objective = result.config.objective
    (judged,) = ruled_out([finalist], result.trials, compute_points=result.compute_points, objective=objective)
    return judged.unconfirmed


def _reason(result: TuningResult, why: Unconfirmed | None) -> str:
    """Of the stored winner, or of the first finalist that is not confirmed; as the rest of a sentence."""
    if result.cut_short:
        return f" (cut short: {result.cut_short.rstrip('.')})."
    found = why or next((f.unconfirmed for f in result.finalists if f.unconfirmed is not None), None)
    return "." if found is None else f": {found.explanation}"


def was_confirmed_whole(result: TuningResult) -> bool:
    """Whether every run of the confirmation that was planned was made, also where the run was cut short later."""
    return result.cut_short is None or bool({"costs", "bounds"} & result.stage_seconds.keys())


def finalist_of(result: TuningResult, config: TrialConfig) -> Finalist | None:
    """What the confirmation measured of a configuration. None: it did not measure that one."""
    return next((finalist for finalist in result.finalists if finalist.config == config and finalist.runs), None)
