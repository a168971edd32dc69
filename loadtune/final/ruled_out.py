"""What keeps a measured configuration from being the answer. Pure, over records."""

from collections.abc import Sequence
from dataclasses import replace

from loadtune.records.answer import MISREAD, Failed, compute_fraction, compute_rate, is_barred
from loadtune.records.config import Objective, TrialConfig
from loadtune.records.measurement import ComputePoint, TrialFailure
from loadtune.records.result import Finalist, Trial, Unconfirmed
from loadtune.units import counted, efficiency_text, rate_text

TOO_WIDE = 1.0
"""Half width of a 95% interval, as a share of the value, from which on the interval holds 0."""


def ruled_out(
    finalists: Sequence[Finalist],
    trials: Sequence[Trial] = (),
    *,
    failed: Sequence[Failed] = (),
    compute_points: Sequence[ComputePoint] = (),
    objective: Objective = "samples-per-s",
) -> tuple[Finalist, ...]:
    """The finalists, each with what rules it out, if anything does.

    ``failed`` are failures in the confirmation of configurations that never ran there, so that they are no finalists.
    """
    failures = [
        *((trial.config, trial.failure) for trial in trials if trial.failure),
        *failed,
        *((finalist.config, failure) for finalist in finalists for failure in finalist.failures),
    ]
    return tuple(
        replace(finalist, unconfirmed=_why(finalist, failures, compute_points, objective)) for finalist in finalists
    )


def may_be_kept(baseline: Finalist) -> bool:
    """Whether the user's settings can be the answer: they have to train, but how fast need not be known well."""
    return baseline.unconfirmed is None or baseline.unconfirmed.reason == "wide_interval"


def is_doubted(points: Sequence[ComputePoint], finalist: Finalist) -> bool:
    """Whether the compute-only rate was timed and is too low to be true beside the trained one, as far as is known."""
    known = compute_rate(points, finalist.config)
    return known is not None and compute_fraction(points, finalist.config, finalist.samples_per_s) is None


def failures_text(num_measured: int, failures: Sequence[TrialFailure]) -> str:
    """As a clause: ``1 of its 4 runs failed (crash: it died)``."""
    first = failures[0]
    num_runs = counted(num_measured + len(failures), "run")
    return f"{len(failures)} of its {num_runs} failed ({first.kind}: {first.message.rstrip('.')})"


def _why(
    finalist: Finalist, failures: Sequence[Failed], points: Sequence[ComputePoint], objective: Objective
) -> Unconfirmed | None:
    own = [failure for config, failure in failures if config == finalist.config]
    return (
        _non_finite(finalist.config, failures)
        or _failed(finalist, own)
        or _too_wide(finalist, objective)
        or _above_compute_only(finalist, points)
    )


def _non_finite(config: TrialConfig, failures: Sequence[Failed]) -> Unconfirmed | None:
    """A loss that is not finite in fp32, the widest of the precisions, is not finite because of data, model or loss."""
    seen = [(other, failure) for other, failure in failures if failure.kind == "non_finite_loss"]
    found = next(((o, failure) for o, failure in seen if o.precision in ("fp32", config.precision)), None)
    if found is None:
        return None
    other, failure = found
    remedy = (
        "Check that every sample is finite, and that model and loss give finite values for it."
        if other.precision == "fp32"
        else f"Leave {other.precision} out with --precision, or change the model so that it trains in it."
    )
    return Unconfirmed(reason="non_finite_loss", explanation=f"{_sentence(failure.message)} {remedy}")


def _failed(finalist: Finalist, own: Sequence[TrialFailure]) -> Unconfirmed | None:
    if not is_barred(own):
        return None
    what = failures_text(len(finalist.runs), own)
    return Unconfirmed(
        reason="failed", explanation=f"{what}. Remove the cause and run again: training for hours would meet it too."
    )


def _too_wide(finalist: Finalist, objective: Objective) -> Unconfirmed | None:
    score = finalist.scored(objective)
    if score.half_width is None or score.half_width < TOO_WIDE * score.value:
        return None
    text = rate_text if objective == "samples-per-s" else efficiency_text
    return Unconfirmed(
        reason="wide_interval",
        explanation=(
            f"It reads {text(score.value)} ± {text(score.half_width)} after {counted(len(finalist.runs), 'run')}, an "
            "interval that includes 0. Run again on a quieter machine, or with a larger --time-budget."
        ),
    )


def _above_compute_only(finalist: Finalist, points: Sequence[ComputePoint]) -> Unconfirmed | None:
    """By more than the interval of the one and the fastest window of the other explain."""
    point = compute_rate(points, finalist.config)
    least = finalist.samples_per_s * (1 - (finalist.half_width_fraction or 0.0))
    if point is None or least <= MISREAD * point.quickest_per_s:
        return None
    return Unconfirmed(
        reason="above_compute_only",
        explanation=(f"{contradiction_text(finalist, point)} Run again when nothing else uses this machine."),
    )


def contradiction_text(finalist: Finalist, point: ComputePoint) -> str:
    """Both rates, and that one of them is wrong."""
    return (
        f"It reads {rate_text(finalist.samples_per_s)}, more than its compute-only rate of "
        f"{rate_text(point.samples_per_s)}: one of the two rates is wrong, because no loader makes a step faster."
    )


def _sentence(message: str) -> str:
    return f"{message[:1].upper()}{message[1:].rstrip('.')}."
