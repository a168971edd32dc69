"""The configuration of a result that may be handed out: confirmed, or none.

Apart from the record, because an error that a user can mend belongs to asking, not to what was found.
"""

from loadtune.errors import ResultError
from loadtune.records.configs import TrialConfig
from loadtune.records.result import Finalist, TuningResult, Winner


def chosen_winner(result: TuningResult, *, keep_batch_size: bool = False) -> Winner:
    """The best at any batch size, or at the one that the run was given. Raises ResultError where there is none."""
    winner = result.best_at_your_batch if keep_batch_size else result.best
    if winner is not None:
        return winner
    if keep_batch_size and result.config.yours.batch_size is None:
        raise ResultError(
            "The run has no winner at your batch size: it was not told one. Run `loadtune run` with --batch-size,"
            " or leave keep_batch_size out for the best at any batch size."
        )
    why = f" (cut short: {result.cut_short})" if result.cut_short else ""
    raise ResultError(
        f"The run of {result.created} has no confirmed winner{why}. Only a confirmed configuration is handed out."
        " Run `loadtune run` to its end (--resume goes on with a run that was cut short), or name another result."
    )


def was_confirmed_whole(result: TuningResult) -> bool:
    """Whether every run of the confirmation that was planned was made: a run cut short later has its figures whole."""
    return result.cut_short is None or bool({"costs", "bounds"} & result.stage_seconds.keys())


def finalist_of(result: TuningResult, config: TrialConfig) -> Finalist | None:
    """What the confirmation measured of a configuration. None: it was not confirmed."""
    return next((finalist for finalist in result.finalists if finalist.config == config and finalist.runs), None)
