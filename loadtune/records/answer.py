"""The answer of a result, and what every part of it is judged by. Pure, over records."""

import math
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from loadtune.errors import ResultError
from loadtune.records.config import TrialConfig
from loadtune.records.facts import HostFacts
from loadtune.records.measurement import ComputePoint, Measurement, TrialFailure
from loadtune.records.result import Attempt, Finalist, TuningResult, Winner
from loadtune.units import counted, percent_text, ratio_text

MISREAD = 1.1
"""Times the compute-only rate that no noise explains: the curve is trusted to 5%, fresh loaders differ by 7%."""

DISTURBED = 0.1
"""Share of the usable cores, or of the GPU, used by other processes from which on a segment counts as disturbed."""

QUIETER = "Run again on a quieter machine."

LAST_SHARE = 0.04
"""Of the time budget, for what comes after the final."""

Failed = tuple[TrialConfig, TrialFailure]


def failures_of(attempts: Iterable[Attempt]) -> list[Failed]:
    return [(each.config, each.failure) for each in attempts if each.failure is not None]


def measured_of(attempts: Iterable[Attempt]) -> list[tuple[TrialConfig, Measurement]]:
    return [(each.config, each.measurement) for each in attempts if each.measurement is not None]


def is_barred(failures: Sequence[TrialFailure]) -> bool:
    """Whether a configuration with these failures is no answer. One may be chance, and what ran beside it counts; a
    loss that is not finite is none."""
    return len(failures) > 1 or any(failure.kind == "non_finite_loss" for failure in failures)


def compute_rate(points: Sequence[ComputePoint], config: TrialConfig) -> ComputePoint | None:
    """The fastest timing of exactly this recipe and batch size: other load can only slow a timing down."""
    same = [point for point in points if (point.recipe, point.batch_size) == (config.recipe, config.batch_size)]
    return max((point for point in same if point.num_timings), key=lambda point: point.samples_per_s, default=None)


def compute_fraction(points: Sequence[ComputePoint], config: TrialConfig, samples_per_s: float) -> float | None:
    """Share of the compute-only rate. None: that rate was not timed, or is below the trained one and was timed once,
    or is so far below it that it was misread."""
    point = compute_rate(points, config)
    share = None if point is None else samples_per_s / point.samples_per_s
    if point is None or share is None or share > MISREAD:
        return None
    return share if share <= 1.0 or point.num_timings > 1 else None


def handed_winner(result: TuningResult, *, keep_batch_size: bool = False) -> Winner:
    """The best at any batch size, or at the one that the run was given, for use. A UserWarning says why it is not
    confirmed, where that is so (`doubt_of`). Raises ResultError where there is none."""
    winner = result.best_at_your_batch if keep_batch_size else result.best
    if winner is not None:
        if (doubt := doubt_of(result, winner)) is not None:
            level = 1
            while sys._getframe(level).f_globals.get("__name__", "").partition(".")[0] == "loadtune":
                level += 1  # the line that called the public function
            warnings.warn(f"The answer of the run of {result.created} is not confirmed: {doubt}", stacklevel=level + 1)
        return winner
    if keep_batch_size and result.config.yours.batch_size is None:
        raise ResultError(
            "The run has no winner at your batch size, because it was given none. Run `loadtune run` with --batch-size,"
            " or leave keep_batch_size out for the best at any batch size."
        )
    why = f" (cut short: {result.cut_short.rstrip('.')})" if result.cut_short else ""
    raise ResultError(
        f"The run of {result.created} has no confirmed winner{why}. Name another result, or run `loadtune run` again;"
        " --resume continues a run that was cut short."
    )


def doubt_of(result: TuningResult, winner: Winner) -> str | None:
    """Why a winner that may be used is not confirmed: a sentence. None: it is."""
    budget_s, took_s = result.config.time_budget_s, [each.runs[-1].seconds for each in result.finalists]
    one_more_s = sum(took_s) + max(took_s, default=0.0) + LAST_SHARE * budget_s  # a round of the final, and a run
    longer = ["with a larger --time-budget"] if budget_s - result.seconds <= one_more_s else []
    if winner.half_width_fraction is None:
        return f"nothing was measured twice. {' '.join(['Run again', *longer])}."
    if winner.rival_gain is not None and winner.inconclusive:
        most, busy = winner.rival_gain.high or math.inf, busy_text(result.finalists, result.host)
        gain = f"a gain of up to {ratio_text(most)} is not excluded" if most < 10 else "any gain is possible"
        known = f"throughput is known to ±{percent_text(winner.half_width_fraction)}"
        quieter = ["on a quieter machine"] if busy or not longer else []
        return f"{gain}; {known}. {f'{busy} ' if busy else ''}Run again {', or '.join([*quieter, *longer])}."
    finalist = finalist_of(result.finalists, winner)
    if finalist is not None and finalist.unconfirmed is not None:
        return finalist.unconfirmed.explanation
    if not result.confirmed_whole:
        why = f" ({result.cut_short.rstrip('.')})" if result.cut_short else ""  # killed as it ended: why is not stored
        return f"the run was cut short before every run of the confirmation was made{why}."
    return None


def taken_by_others(outcome: object, host: HostFacts) -> tuple[float, str]:
    """Share of the cores or of the GPU, whichever others used more of, and its name. 0: nothing, or not read."""
    seen = outcome.telemetry if isinstance(outcome, Measurement) else None
    cores = (seen and seen.others_cpu_cores) or 0.0
    gpu = (seen and seen.gpu_others_sm_fraction) or 0.0
    return max((cores / max(1, host.num_usable_cores), "CPU cores"), (gpu, "GPU"))


def busy_text(finalists: Sequence[Finalist], host: HostFacts) -> str | None:
    """What other processes used while the confirmation ran. None: nothing worth a word."""
    taken = [taken_by_others(run, host) for finalist in finalists for run in finalist.runs]
    share, name = max(taken, default=(0.0, ""))
    if share < DISTURBED:
        return None
    num_disturbed = sum(each >= DISTURBED for each, _ in taken)
    runs = f"{num_disturbed} of {counted(len(taken), 'run')} of the confirmation"
    return f"Other processes used up to {percent_text(share)} of the {name} in {runs}."


def loader_kwargs(result: TuningResult, config: TrialConfig) -> dict[str, Any]:
    """What ``DataLoader`` takes, without the batch size where the user's batch sampler or dataset makes the batches."""
    fixed = result.facts is not None and result.facts.fixed_batch_size is not None
    return {name: value for name, value in config.loader.kwargs().items() if not (fixed and name == "batch_size")}


def finalist_of(finalists: Sequence[Finalist], found: TrialConfig | Winner | None) -> Finalist | None:
    """What the confirmation measured of a configuration, or of a winner's. None: it did not measure that one."""
    config = found.config if isinstance(found, Winner) else found
    return next((each for each in finalists if each.config == config and each.runs), None)
