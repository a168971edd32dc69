"""The configuration of a result that may be handed out: the winner, unless something rules it out.

Apart from the record, because the error is about the request, not about what was found.
"""

import sys
import warnings
from typing import Any

from loadtune.errors import ResultError
from loadtune.records.configs import TrialConfig
from loadtune.records.confirmed import may_be_kept, ruled_out
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


def handed_winner(result: TuningResult, *, keep_batch_size: bool = False) -> Winner:
    """`chosen_winner`, for use. A UserWarning says why it is not confirmed, where that is so (`doubt_of`)."""
    winner = chosen_winner(result, keep_batch_size=keep_batch_size)
    if (doubt := doubt_of(result, winner)) is not None:
        level = 1
        while sys._getframe(level).f_globals.get("__name__", "").partition(".")[0] == "loadtune":
            level += 1  # the line that called the public function
        warnings.warn(f"The answer of the run of {result.created} is not confirmed: {doubt}", stacklevel=level + 1)
    return winner


def doubt_of(result: TuningResult, winner: Winner) -> str | None:
    """Why a winner that may be used is not confirmed: a sentence. None: it is."""
    if winner.measured_once:
        return "it was measured once. Run again with a larger --time-budget."
    finalist = finalist_of(result, winner.config)
    if finalist is not None and finalist.unconfirmed is not None:
        return finalist.unconfirmed.explanation
    if not was_confirmed_whole(result):
        return f"the run was cut short before every run of the confirmation was made ({result.cut_short})."
    return None


def loader_kwargs(result: TuningResult, config: TrialConfig) -> dict[str, Any]:
    """What ``DataLoader`` takes, without the batch size where the user's batch sampler or dataset makes the batches."""
    fixed = result.facts is not None and result.facts.fixed_batch_size is not None
    return {name: value for name, value in config.loader.kwargs().items() if not (fixed and name == "batch_size")}


def why_unconfirmed(result: TuningResult, winner: Winner) -> Unconfirmed | None:
    """What rules out a winner that is stored in a result. None: nothing does, or its runs were not stored."""
    finalist = finalist_of(result, winner.config)
    if finalist is None:
        return None
    if finalist.unconfirmed is None:
        points, objective = result.compute_points, result.config.objective
        (finalist,) = ruled_out([finalist], result.trials, compute_points=points, objective=objective)
    return None if winner.config == result.yours and may_be_kept(finalist) else finalist.unconfirmed


def _reason(result: TuningResult, why: Unconfirmed | None) -> str:
    """Of the stored winner, or of the first finalist that is not confirmed; as the rest of a sentence."""
    if result.cut_short:
        return f" (cut short: {result.cut_short.rstrip('.')})."
    found = why or next((f.unconfirmed for f in result.finalists if f.unconfirmed is not None), None)
    return "." if found is None else f": {found.explanation}"


def was_confirmed_whole(result: TuningResult) -> bool:
    """Whether every run of the confirmation that was planned was made, also where the run was cut short later."""
    return result.cut_short is None or result.confirmed_whole


def finalist_of(result: TuningResult, config: TrialConfig) -> Finalist | None:
    """What the confirmation measured of a configuration. None: it did not measure that one."""
    return next((finalist for finalist in result.finalists if finalist.config == config and finalist.runs), None)
