"""What a reader has to know before trusting the answer: notes in whole sentences. Without them a configuration would be
missing and nobody would know why.
"""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median_low

from loadtune.final.winner import Verdict, failures_text, non_finite_text
from loadtune.records.answer import QUIETER, busy_text, failures_of, finalist_of
from loadtune.records.config import TrialConfig
from loadtune.records.facts import HostFacts
from loadtune.records.measurement import Measurement
from loadtune.records.result import Attempt, Finalist, Winner
from loadtune.report.wording import settings_text
from loadtune.units import bytes_text, counted, percent_text

SKIPPED = 0.1
"""Share of the winner's timed steps from which on skipped ones are reported: fewer change its rate less than noise."""

_LEAST_BYTES, _LEAST_SHARE = 1024, 0.01
"""Read for each sample, and of its size: less is messages between processes, and says nothing of samples."""


def doubts(verdict: Verdict, host: HostFacts, *answers: Winner | None) -> Iterator[str | None]:
    """Of a confirmation and its ``answers``, the best first: steps that were skipped; what failed, in the search too;
    what is not confirmed for another reason; what other processes used, unless one of the answers itself says so."""
    best, busy = finalist_of(verdict.finalists, answers[0]), busy_text(verdict.finalists, host)
    yield None if best is None else _skipped_text(best)
    yield from _failure_notes(verdict, has_answer=best is not None)
    if busy is not None and not any(each.inconclusive for each in answers if each is not None):
        yield f"{busy} The true throughput may be higher. {QUIETER}"


def _skipped_text(best: Finalist) -> str | None:
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


def _failure_notes(verdict: Verdict, *, has_answer: bool) -> Iterator[str | None]:
    """What failed in the search and in the confirmation, and what is not confirmed for another reason."""
    trials, ran, yours = verdict.trials, {finalist.config for finalist in verdict.finalists}, verdict.yours
    of_workers, failed = _worker_note(trials), failures_of((*verdict.ran[::-1], *trials[::-1]))
    bad = {config.precision: (config, f) for config, f in failed if f.kind == "non_finite_loss"}
    told = {"fp32"} if "fp32" in bad else set(bad)  # which rules out the others too
    yield of_workers
    yield from (non_finite_text(*each) for precision, each in bad.items() if precision in told)
    for config, failure in {each.config: each.failure for each in verdict.ran}.items():
        if failure is not None and config not in ran and not (of_workers and config.loader.num_workers):
            then = ", so there is no speed-up to report" if config == yours else ""
            why = f"({failure.kind}: {failure.message.rstrip('.')})"
            yield f"{_named(config, yours)} did not run in the confirmation {why}{then}."
    for finalist in verdict.finalists:
        named, doubt = _named(finalist.config, yours), finalist.unconfirmed
        if doubt is None and finalist.failures:
            what = failures_text(len(finalist.runs), finalist.failures)
            yield f"{named} is judged by the runs that did not fail: {what}."
        elif doubt is not None and doubt.reason != "non_finite_loss":  # which was said once for all
            yield f"{named} is not confirmed: {doubt.explanation}"

    if has_answer and not any(trial.measurement for trial in trials) and ran == {yours}:
        why = "could be run" if trials else "could be measured in the time. Raise --time-budget"
        yield f"No configuration but your settings {why}."


def _worker_note(trials: Sequence[Attempt]) -> str | None:
    """That every trial with workers crashed, and why. None: some did not, or none was tried."""
    tried = [trial for trial in trials if trial.config.loader.num_workers]
    crashed = [failure for _, failure in failures_of(tried) if failure.kind == "crash"]
    if not crashed or len(crashed) < len(tried):
        return None
    why, advice = crashed[0].message.rstrip("."), "Correct the dataset or the loader, and run again."
    if any(trial.measurement for trial in trials):
        return f"Your loader does not work with workers: {why}. Only 0 workers were compared. {advice}"
    return f"No configuration with workers ran: {why}. {advice} --max-workers 0 measures without workers."


def _named(config: TrialConfig, yours: TrialConfig | None) -> str:
    what = settings_text(config)
    return f"The baseline (your settings), {what}," if config == yours else f"The finalist {what}"


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
