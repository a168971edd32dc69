"""What a reader has to know before trusting the answer, in whole sentences: of the best configuration, and of those
that failed or are not confirmed. Without them a configuration would be missing and nobody would know why.
"""

from collections.abc import Sequence

from loadtune.final.ruled_out import failures_text
from loadtune.final.winner import Verdict
from loadtune.limits.memory import left_over_note
from loadtune.records.answer import Failed
from loadtune.records.config import TrialConfig
from loadtune.records.facts import WorkloadFacts
from loadtune.records.result import Finalist, Trial
from loadtune.report.wording import score_text, settings_text
from loadtune.run import Run
from loadtune.units import counted, seconds_text

SKIPPED = 0.1
"""Share of the winner's timed steps from which on skipped ones are reported: fewer change its rate less than noise."""

BY_ENERGY = (
    "The best configuration trains the most samples per joule of the GPU's board; another one may be faster. The "
    "energy of the rest of the machine is not included. The recipe of each precision was chosen for its speed."
)


def note_best(run: Run, facts: WorkloadFacts, best: Finalist) -> None:
    """What to know of the winner before trusting it."""
    objective, config = run.config.objective, best.config
    run.note(BY_ENERGY if objective == "samples-per-joule" else None)
    run.note(left_over_note(facts.dataset_length, config.batch_size, facts.min_batch_size))
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
    near = Verdict(run.finalists, run.yours, objective).not_told_apart(config)
    rivals = [f for f in near if f.config != run.yours and f.unconfirmed is None]
    if rivals:
        named = "; ".join(
            f"{settings_text(f.config)} ({score_text(f.scored(objective).value, objective)})" for f in rivals
        )
        how = "fast" if objective == "samples-per-s" else "efficient"
        run.note(f"Not proven to be less {how} than the answer: {named}.")


def note_failures(run: Run, failed: Sequence[Failed]) -> None:
    """What failed, what is not confirmed for another reason, and what that leaves.

    ``failed``: of the confirmation, those that completed no run of it.
    """
    in_runs = [(finalist.config, failure) for finalist in run.finalists for failure in finalist.failures]
    of_workers = _worker_note(run.trials)
    if of_workers is not None:
        failed = [(config, failure) for config, failure in failed if not config.loader.num_workers]
    run.note(
        of_workers,
        *_precision_notes([*run.failed, *failed, *in_runs]),
        *_failure_notes(failed, run.yours),
        *_unconfirmed_notes(run.finalists, run.yours),
    )
    if run.best is None:
        run.note("No configuration is confirmed, so this run has no answer to export. The other notes say why.")
    elif [finalist.config for finalist in run.finalists] == [run.yours] and not run.tried:
        run.note("No configuration but your settings could be run, so your settings are the answer.")


def _failure_notes(failed: Sequence[Failed], yours: TrialConfig | None) -> list[str]:
    """A sentence for each configuration that completed no run of the confirmation."""
    notes = []
    for config, failure in dict(reversed(failed)).items():
        why = f"({failure.kind}: {failure.message.rstrip('.')})"
        if config == yours:
            notes.append(f"{_named(config, yours)} did not run {why}, so there is no speed-up to report.")
        else:
            notes.append(f"{_named(config, yours)} ran in the search and failed in the confirmation {why}.")
    return notes


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


def _unconfirmed_notes(finalists: Sequence[Finalist], yours: TrialConfig | None) -> list[str]:
    """Why each of these is not confirmed; of a loss that is not finite `_precision_notes` says it once for all. Of one
    that is, that a run of it failed."""
    notes = []
    for finalist in finalists:
        named, why = _named(finalist.config, yours), finalist.unconfirmed
        if why is not None and why.reason != "non_finite_loss":
            notes.append(f"{named} is not confirmed. {why.explanation}")
        elif why is None and finalist.failures:
            failed = failures_text(len(finalist.runs), finalist.failures)
            notes.append(f"{named} is judged by the runs that did not fail: {failed}.")
    return notes


def _precision_notes(failed: Sequence[Failed]) -> list[str]:
    """A note for each precision in which a loss was NaN or infinite; of fp32 alone, which rules out the others too."""
    seen = {config.precision: (config, f) for config, f in reversed(failed) if f.kind == "non_finite_loss"}
    if "fp32" in seen:
        config, failure = seen["fp32"]
        return [
            f"With {settings_text(config)} {failure.message.rstrip('.')}. No precision has a wider range than fp32, so "
            "the dataset, the model or the loss gives values that are not finite, and no configuration is confirmed. "
            "Check that every sample is finite, and that model and loss give finite values for it."
        ]
    return [
        f"{name} is not recommended: with {settings_text(config)} {failure.message.rstrip('.')}. Leave {name} out with "
        "--precision, or change the model so that it trains in it."
        for name, (config, failure) in seen.items()
    ]


def _named(config: TrialConfig, yours: TrialConfig | None) -> str:
    what = settings_text(config)
    return f"The baseline (your settings), {what}," if config == yours else f"The finalist {what}"
