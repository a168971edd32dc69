"""What keeps a measured configuration from being the answer, and what a reader has to know before trusting the answer:
notes in whole sentences. Without them a configuration would be missing and nobody would know why.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median_low

from loadtune.records.answer import MISREAD, QUIETER, Failed, busy_text, compute_rate, is_barred
from loadtune.records.config import TrialConfig
from loadtune.records.facts import HostFacts
from loadtune.records.measurement import ComputePoint, Measurement, TrialFailure
from loadtune.records.result import Attempt, Finalist, Trial, Unconfirmed, Winner
from loadtune.report.wording import settings_text
from loadtune.units import bytes_text, counted, percent_text, rate_text

SKIPPED = 0.1
"""Share of the winner's timed steps from which on skipped ones are reported: fewer change its rate less than noise."""

_LEAST_BYTES, _LEAST_SHARE = 1024, 0.01
"""Read for each sample, and of its size: less is messages between processes, and says nothing of samples."""


def ruled_out(
    finalists: Sequence[Finalist], failed: Sequence[Failed] = (), points: Sequence[ComputePoint] = ()
) -> tuple[Finalist, ...]:
    """The finalists, each with what rules it out, if anything does. ``failed``: in the search and in the final."""
    return tuple(replace(finalist, unconfirmed=_why(finalist, failed, points)) for finalist in finalists)


def _why(finalist: Finalist, failed: Sequence[Failed], points: Sequence[ComputePoint]) -> Unconfirmed | None:
    precisions = ("fp32", finalist.config.precision)  # what is not finite in fp32 is so in any
    bad = [each for each in failed if each[1].kind == "non_finite_loss" and each[0].precision in precisions]
    if bad:
        return Unconfirmed(reason="non_finite_loss", explanation=_non_finite_text(*bad[0]))
    own = [failure for config, failure in failed if config == finalist.config]
    if is_barred(own):
        cause = "Remove the cause and run again: training for hours would meet it too."
        return Unconfirmed(reason="failed", explanation=f"{_failures_text(len(finalist.runs), own)}. {cause}")
    rate, point = finalist.throughput, compute_rate(points, finalist.config)
    # By more than the interval of the one and the fastest window of the other explain.
    if point is not None and (rate.value if rate.low is None else rate.low) > MISREAD * point.quickest_per_s:
        return Unconfirmed(
            reason="above_compute_only",
            explanation=(
                f"it reads {rate_text(rate.value)}, more than its compute-only rate of "
                f"{rate_text(point.samples_per_s)}: one of the two rates is wrong, because no loader makes a step "
                f"faster. {QUIETER}"
            ),
        )
    return None


def _non_finite_text(config: TrialConfig, failure: TrialFailure) -> str:
    what = f"ith {settings_text(config)} {failure.message.rstrip('.')}."
    if config.precision == "fp32":
        return (
            f"W{what} No precision has a wider range than fp32, so the dataset, the model or the loss gives values "
            "that are not finite. Check that every sample is finite, and that model and loss give finite values for it."
        )
    return (
        f"{config.precision} is not recommended: w{what} Leave {config.precision} out with --precision, or change the "
        "model so that it trains in it."
    )


def _failures_text(num_measured: int, failures: Sequence[TrialFailure]) -> str:
    """As a clause: ``1 of its 4 runs failed (crash: it died)``."""
    first = failures[0]
    num_runs = counted(num_measured + len(failures), "run")
    return f"{len(failures)} of its {num_runs} failed ({first.kind}: {first.message.rstrip('.')})"


# Notes


def skipped_text(best: Finalist) -> str | None:
    """Steps without the optimizer are faster than those of a training."""
    windows = [window for each in best.runs for window in each.windows]  # what settled before them is in no rate
    num_skipped, num_steps = sum(w.num_skipped_steps for w in windows), sum(w.num_steps for w in windows)
    if num_skipped <= SKIPPED * num_steps:
        return None
    return (
        f"GradScaler skipped the optimizer in {num_skipped} of the {counted(num_steps, 'step')} that were timed of "
        "the best configuration. Skipped steps are faster than others. Check that the model trains in fp16, or "
        "leave fp16 out with --precision."
    )


def disturbed_text(finalists: Sequence[Finalist], host: HostFacts, answers: Sequence[Winner | None]) -> str | None:
    """What other processes used, unless one of the answers itself says so."""
    busy = busy_text(finalists, host)
    if busy is None or any(each.inconclusive for each in answers if each is not None):
        return None
    return f"{busy} The true throughput may be higher. {QUIETER}"


def failure_notes(
    trials: Sequence[Trial],
    confirmed: Sequence[Attempt],
    finalists: Sequence[Finalist],
    yours: TrialConfig | None,
    *,
    has_answer: bool,
) -> Iterator[str]:
    """What failed in the search and in the confirmation, and what is not confirmed for another reason."""
    of_workers, ran = _worker_note(trials), {finalist.config for finalist in finalists}
    both = [(each.config, each.failure) for each in (*confirmed[::-1], *trials[::-1])]
    bad = {config.precision: (config, f) for config, f in both if f and f.kind == "non_finite_loss"}
    told = {"fp32"} if "fp32" in bad else set(bad)  # which rules out the others too
    yield from [] if of_workers is None else [of_workers]
    yield from (_non_finite_text(*each) for precision, each in bad.items() if precision in told)
    for config, failure in {each.config: each.failure for each in confirmed}.items():
        if failure is not None and config not in ran and not (of_workers and config.loader.num_workers):
            then = ", so there is no speed-up to report" if config == yours else ""
            why = f"({failure.kind}: {failure.message.rstrip('.')})"
            yield f"{_named(config, yours)} did not run in the confirmation {why}{then}."
    for finalist in finalists:
        named, doubt = _named(finalist.config, yours), finalist.unconfirmed
        if doubt is None and finalist.failures:
            what = _failures_text(len(finalist.runs), finalist.failures)
            yield f"{named} is judged by the runs that did not fail: {what}."
        elif doubt is not None and doubt.reason != "non_finite_loss":  # which was said once for all
            yield f"{named} is not confirmed: {doubt.explanation}"

    if has_answer and not any(trial.measurement for trial in trials) and ran == {yours}:
        why = "could be run" if trials else "could be measured in the time. Raise --time-budget"
        yield f"No configuration but your settings {why}."


def _worker_note(trials: Sequence[Trial]) -> str | None:
    """That every trial with workers crashed, and why. None: some did not, or none was tried."""
    outcomes = [trial.outcome for trial in trials if trial.config.loader.num_workers]
    crashed = [each for each in outcomes if isinstance(each, TrialFailure) and each.kind == "crash"]
    if not crashed or len(crashed) < len(outcomes):
        return None
    why, advice = crashed[0].message.rstrip("."), "Correct the dataset or the loader, and run again."
    if any(trial.measurement for trial in trials):
        return f"Your loader does not work with workers: {why}. Only 0 workers were compared. {advice}"
    return f"No configuration with workers ran: {why}. {advice} --max-workers 0 measures without workers."


def _named(config: TrialConfig, yours: TrialConfig | None) -> str:
    what = settings_text(config)
    return f"The baseline (your settings), {what}," if config == yours else f"The finalist {what}"


def loading_notes(
    measured: Sequence[Measurement], failed: Sequence[Failed], ram_bytes: int, sample_bytes: int
) -> tuple[str | None, str | None]:
    """That memory grows with each sample, also where that ended a trial; and that samples came from the page cache."""
    ended = next((failure.message for _, failure in failed if failure.grown_bytes), None)
    return ended or growth_text(measured, ram_bytes), cached_text(measured, sample_bytes)


def growth_text(measured: Sequence[Measurement], ram_bytes: int) -> str | None:
    """That an epoch would take half of the RAM at the pace at which the workers' memory grew in most measurements."""
    grown = [(run, seen.workers_growth_bytes_per_s) for run in measured if (seen := run.telemetry)]
    pace = median_low([0.0, *(per_s / run.samples_per_s for run, per_s in grown if per_s is not None)])
    length = measured[0].epoch_samples if measured else None
    if length is None or pace * length < ram_bytes / 2:
        return None
    return (
        f"The workers' memory grew steadily, by {bytes_text(1000 * pace)} in 1,000 samples. At this pace an epoch of "
        f"{counted(length, 'sample')} takes {bytes_text(pace * length)}, and the RAM has {bytes_text(ram_bytes)}. "
        "Check that your dataset does not keep what it reads."
    )


def cached_text(measured: Iterable[Measurement], sample_bytes: int) -> str | None:
    """That most of what was read came from the page cache. None: it did not, that is not known, or little was read
    from files: samples are made, in memory, or in mapped files."""
    num_samples = read = fetched = 0.0
    for run in measured:
        seen = run.telemetry
        if seen is not None and seen.file_read_bytes_per_s is not None and seen.disk_read_bytes_per_s is not None:
            num_samples += run.samples_per_s * seen.seconds
            read += seen.file_read_bytes_per_s * seen.seconds
            fetched += seen.disk_read_bytes_per_s * seen.seconds
    if not num_samples or read < max(_LEAST_BYTES, _LEAST_SHARE * sample_bytes) * num_samples or fetched > read / 2:
        return None
    found = f"{percent_text(fetched / read)} of the {bytes_text(read)} that were read came from storage"
    return (
        f"Samples were read from the page cache: {found}. The first epoch after a reboot reads them from storage and "
        "may be slower."
    )
