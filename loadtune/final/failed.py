"""What a reader has to know of the configurations that failed or are not confirmed, in whole sentences. Pure.

Without these sentences a configuration would be missing from the answer and nobody would know why.
"""

from collections.abc import Callable, Sequence

from loadtune.final.rounds import Outcome
from loadtune.records import Finalist, Trial, TrialConfig, TrialFailure
from loadtune.records.confirmed import Failed, failures_text

Say = Callable[[TrialConfig], str]
"""Puts a configuration into words."""


def never_ran(outcomes: Sequence[Outcome], finalists: Sequence[Finalist]) -> list[Failed]:
    """The failures of configurations that did not complete one run of the confirmation."""
    measured = {finalist.config for finalist in finalists}
    return [(c, outcome) for c, outcome in outcomes if c not in measured and isinstance(outcome, TrialFailure)]


def failure_notes(failed: Sequence[Failed], yours: TrialConfig | None, say: Say) -> list[str]:
    """A sentence for each configuration that completed no run of the confirmation."""
    notes = []
    for config, failure in dict(reversed(failed)).items():
        why = f"({failure.kind}: {failure.message.rstrip('.')})"
        if config == yours:
            notes.append(f"{_named(config, yours, say)} did not run {why}, so there is no speed-up to report.")
        else:
            notes.append(f"{_named(config, yours, say)} ran in the search and failed in the confirmation {why}.")
    return notes


def worker_note(trials: Sequence[Trial]) -> str | None:
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


def unconfirmed_notes(finalists: Sequence[Finalist], yours: TrialConfig | None, say: Say) -> list[str]:
    """Why each of these is not confirmed; of a loss that is not finite `precision_notes` says it once for all. Of one
    that is, that a run of it failed."""
    notes = []
    for finalist in finalists:
        named, why = _named(finalist.config, yours, say), finalist.unconfirmed
        if why is not None and why.reason != "non_finite_loss":
            notes.append(f"{named} is not confirmed. {why.explanation}")
        elif why is None and finalist.failures:
            failed = failures_text(len(finalist.runs), finalist.failures)
            notes.append(f"{named} is judged by the runs that did not fail: {failed}.")
    return notes


def precision_notes(failed: Sequence[Failed], say: Say) -> list[str]:
    """A note for each precision in which a loss was NaN or infinite; of fp32 alone, which rules out the others too."""
    seen = {config.precision: (config, f) for config, f in reversed(failed) if f.kind == "non_finite_loss"}
    if "fp32" in seen:
        config, failure = seen["fp32"]
        return [
            f"With {say(config)} {failure.message.rstrip('.')}. No precision has a wider range than fp32, so "
            "the dataset, the model or the loss gives values that are not finite, and no configuration is confirmed. "
            "Check that every sample is finite, and that model and loss give finite values for it."
        ]
    return [
        f"{name} is not recommended: with {say(config)} {failure.message.rstrip('.')}. Leave {name} out with "
        "--precision, or change the model so that it trains in it."
        for name, (config, failure) in seen.items()
    ]


def nothing_else_ran(trials: Sequence[Trial], yours: TrialConfig | None, finalists: Sequence[Finalist]) -> bool:
    """Whether the user's settings are the answer because no other configuration could be run."""
    return [finalist.config for finalist in finalists] == [yours] and not any(trial.measurement for trial in trials)


def _named(config: TrialConfig, yours: TrialConfig | None, say: Say) -> str:
    return f"The baseline (your settings), {say(config)}," if config == yours else f"The finalist {say(config)}"
