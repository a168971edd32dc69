"""What keeps a measured configuration from being the answer, and what a reader has to know before trusting the answer:
notes in whole sentences. Without them a configuration would be missing and nobody would know why.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from loadtune.final.winner import Verdict
from loadtune.records.answer import MISREAD, Failed, compute_fraction, compute_rate, is_barred
from loadtune.records.config import TrialConfig
from loadtune.records.measurement import ComputePoint, Measurement, TrialFailure
from loadtune.records.result import Finalist, Trial, Unconfirmed
from loadtune.report.wording import interval_text, settings_text
from loadtune.run import Run
from loadtune.units import bytes_text, counted, percent_text, rate_text, seconds_text

TOO_WIDE = 1.0
"""Half width of a 95% interval, as a share of the value, from which on the interval holds 0."""

SKIPPED = 0.1
"""Share of the winner's timed steps from which on skipped ones are reported: fewer change its rate less than noise."""

_LEAST_BYTES, _LEAST_SHARE = 1024, 0.01
"""Read for each sample, and of its size: less is messages between processes, and says nothing of samples."""


def ruled_out(
    finalists: Sequence[Finalist],
    trials: Sequence[Trial] = (),
    *,
    failed: Sequence[Failed] = (),
    compute_points: Sequence[ComputePoint] = (),
) -> tuple[Finalist, ...]:
    """The finalists, each with what rules it out, if anything does.

    ``failed`` are failures in the confirmation of configurations that never ran there, so that they are no finalists.
    """
    failures = [
        *((trial.config, trial.failure) for trial in trials if trial.failure),
        *failed,
        *((finalist.config, failure) for finalist in finalists for failure in finalist.failures),
    ]
    return tuple(replace(finalist, unconfirmed=_why(finalist, failures, compute_points)) for finalist in finalists)


def is_doubted(points: Sequence[ComputePoint], finalist: Finalist) -> bool:
    """Whether the compute-only rate was timed and is too low to be true beside the trained one, as far as is known."""
    known = compute_rate(points, finalist.config)
    return known is not None and compute_fraction(points, finalist.config, finalist.samples_per_s) is None


def failures_text(num_measured: int, failures: Sequence[TrialFailure]) -> str:
    """As a clause: ``1 of its 4 runs failed (crash: it died)``."""
    first = failures[0]
    num_runs = counted(num_measured + len(failures), "run")
    return f"{len(failures)} of its {num_runs} failed ({first.kind}: {first.message.rstrip('.')})"


def _why(finalist: Finalist, failures: Sequence[Failed], points: Sequence[ComputePoint]) -> Unconfirmed | None:
    own = [failure for config, failure in failures if config == finalist.config]
    return (
        _non_finite(finalist.config, failures)
        or _failed(finalist, own)
        or _too_wide(finalist)
        or _above_compute_only(finalist, points)
    )


def _non_finite(config: TrialConfig, failures: Sequence[Failed]) -> Unconfirmed | None:
    """A loss that is not finite in fp32, the widest of the precisions, is not finite because of data, model or loss."""
    seen = [each for each in failures if each[1].kind == "non_finite_loss"]
    found = next((each for each in seen if each[0].precision in ("fp32", config.precision)), None)
    return None if found is None else Unconfirmed(reason="non_finite_loss", explanation=_non_finite_text(*found))


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


def _failed(finalist: Finalist, own: Sequence[TrialFailure]) -> Unconfirmed | None:
    if not is_barred(own):
        return None
    what = failures_text(len(finalist.runs), own)
    return Unconfirmed(
        reason="failed", explanation=f"{what}. Remove the cause and run again: training for hours would meet it too."
    )


def _too_wide(finalist: Finalist) -> Unconfirmed | None:
    rate = finalist.throughput
    if rate.half_width is None or rate.half_width < TOO_WIDE * rate.value:
        return None
    return Unconfirmed(
        reason="wide_interval",
        explanation=(
            f"It reads {interval_text(rate)} after {counted(len(finalist.runs), 'run')}, an interval "
            "that includes 0. Run again on a quieter machine, or with a larger --time-budget."
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
        explanation=(
            f"It reads {rate_text(finalist.samples_per_s)}, more than its compute-only rate of "
            f"{rate_text(point.samples_per_s)}: one of the two rates is wrong, because no loader makes a step faster. "
            "Run again when nothing else uses this machine."
        ),
    )


# Notes


def note_best(run: Run, best: Finalist) -> None:
    """What to know of the winner before trusting it."""
    config = best.config
    if best.half_width_fraction is None:
        run.note(
            "Each configuration was measured once, because the time was spent. So no rate has an interval, and nothing "
            f"is confirmed. Give more than {seconds_text(run.config.time_budget_s)} with --time-budget."
        )
    counted_in = [window for each in best.runs for window in each.windows]  # what settled before them is in no rate
    num_skipped, num_steps = sum(w.num_skipped_steps for w in counted_in), sum(w.num_steps for w in counted_in)
    if num_skipped > SKIPPED * num_steps:  # a skipped step leaves the optimizer out
        run.note(
            f"GradScaler skipped the optimizer in {num_skipped} of the {counted(num_steps, 'step')} that were timed of "
            "the best configuration. Skipped steps are faster than others. Check that the model trains in fp16, or "
            "leave fp16 out with --precision."
        )
    near = Verdict(run.finalists, run.yours).not_told_apart(config)
    rivals = [f for f in near if f.config != run.yours and f.unconfirmed is None]
    if rivals:
        named = "; ".join(f"{settings_text(f.config)} ({rate_text(f.samples_per_s)})" for f in rivals)
        run.note(f"Not proven to be less fast than the answer: {named}.")


def note_failures(run: Run, failed: Sequence[Failed]) -> None:
    """What failed, what is not confirmed for another reason, and what that leaves.

    ``failed``: of the confirmation, those that completed no run of it.
    """
    in_runs = [(finalist.config, failure) for finalist in run.finalists for failure in finalist.failures]
    of_workers = _worker_note(run.trials)
    if of_workers is not None:
        failed = [(config, failure) for config, failure in failed if not config.loader.num_workers]
    run.note(of_workers, *_precision_notes([*run.failed, *failed, *in_runs]))
    for config, failure in dict(reversed(failed)).items():
        then = ", so there is no speed-up to report" if config == run.yours else ""
        why = f"({failure.kind}: {failure.message.rstrip('.')})"
        run.note(f"{_named(config, run.yours)} did not run in the confirmation {why}{then}.")
    for finalist in run.finalists:
        named, doubt = _named(finalist.config, run.yours), finalist.unconfirmed
        if doubt is None and finalist.failures:
            what = failures_text(len(finalist.runs), finalist.failures)
            run.note(f"{named} is judged by the runs that did not fail: {what}.")
        elif doubt is not None and doubt.reason != "non_finite_loss":  # which was said once for all
            run.note(f"{named} is not confirmed. {doubt.explanation}")
    if run.best is None:
        run.note("No configuration is confirmed, so this run has no answer to export. The other notes say why.")
    elif [finalist.config for finalist in run.finalists] == [run.yours] and not run.tried:
        run.note("No configuration but your settings could be run, so your settings are the answer.")


def _worker_note(trials: Sequence[Trial]) -> str | None:
    """That every trial with workers crashed, and why. None: some did not, or none was tried."""
    tried = [trial for trial in trials if trial.outcome is not None]
    with_workers = [trial.failure for trial in tried if trial.config.loader.num_workers]
    crashed = [failure for failure in with_workers if failure is not None and failure.kind == "crash"]
    if not crashed or len(crashed) < len(with_workers):
        return None
    why, advice = crashed[0].message.rstrip("."), "Correct the dataset or the loader, and run again."
    if any(trial.measurement for trial in tried):
        return f"Your loader does not work with workers: {why}. Only 0 workers were compared. {advice}"
    return f"No configuration with workers ran: {why}. {advice} --max-workers 0 measures without workers."


def _precision_notes(failed: Sequence[Failed]) -> list[str]:
    """A note for each precision in which a loss was NaN or infinite; of fp32 alone, which rules out the others too."""
    seen = {config.precision: (config, f) for config, f in reversed(failed) if f.kind == "non_finite_loss"}
    return [_non_finite_text(*each) for name, each in seen.items() if name == "fp32" or "fp32" not in seen]


def _named(config: TrialConfig, yours: TrialConfig | None) -> str:
    what = settings_text(config)
    return f"The baseline (your settings), {what}," if config == yours else f"The finalist {what}"


def note_loading(run: Run) -> None:
    """Where samples came from; and that a trial was ended because memory grew with each sample."""
    failures = [failure for _, failure in run.failed]
    failures += [failure for finalist in run.finalists for failure in finalist.failures]
    run.note(next((failure.message for failure in failures if failure.grown_bytes), None))
    run.note(data_source((measured for _, measured in run.timed), run.facts.sample_bytes if run.facts else 0))


def data_source(measured: Iterable[Measurement], sample_bytes: int) -> str | None:
    """What to say. None: not known, or little was read from files: samples are made, in memory, or in mapped files."""
    num_samples = read = fetched = 0.0
    for run in measured:
        seen = run.telemetry
        if seen is None or seen.file_read_bytes_per_s is None or seen.disk_read_bytes_per_s is None:
            continue
        num_samples += run.samples_per_s * seen.seconds
        read += seen.file_read_bytes_per_s * seen.seconds
        fetched += seen.disk_read_bytes_per_s * seen.seconds
    if not num_samples or read < max(_LEAST_BYTES, _LEAST_SHARE * sample_bytes) * num_samples:
        return None
    share = min(1.0, fetched / read)
    found = f"{percent_text(share)} of the {bytes_text(read)} that were read came from storage"
    if share < 0.5:
        return (
            f"Samples were read from the page cache: {found}. The first epoch after a reboot reads them from storage "
            "and may be slower."
        )
    return f"Samples were read from storage: {found}. An epoch that finds them in the page cache may be faster."
