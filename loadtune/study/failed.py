"""What a reader has to know of the runs that failed in the confirmation, in whole sentences. Pure.

Without them a configuration that failed would be missing from the finalists and nobody would know why.
"""

from collections.abc import Callable, Sequence

from loadtune.records import Finalist, Measurement, Trial, TrialConfig, TrialFailure
from loadtune.study.confirm import Outcome


def failure_notes(
    outcomes: Sequence[Outcome], yours: TrialConfig | None, say: Callable[[TrialConfig], str]
) -> list[str]:
    """A sentence for each configuration of which a run failed; `say` puts a configuration into words."""
    notes = []
    for config in dict.fromkeys(config for config, _ in outcomes):
        runs = [outcome for each, outcome in outcomes if each == config]
        failure = next((outcome for outcome in runs if isinstance(outcome, TrialFailure)), None)
        if failure is None:
            continue
        why = f"({failure.kind}: {failure.message.rstrip('.')})"
        if any(isinstance(outcome, Measurement) for outcome in runs):
            notes.append(f"{_named(config, yours, say)} failed in one of its {len(runs)} runs {why}.")
        elif config == yours:
            notes.append(f"{_named(config, yours, say)} did not run {why}. There is nothing to compare with.")
        else:
            notes.append(f"{_named(config, yours, say)} ran in the search and failed in the confirmation {why}.")
    return notes


def nothing_else_ran(trials: Sequence[Trial], yours: TrialConfig | None, finalists: Sequence[Finalist]) -> bool:
    """Whether the user's own configuration wins for want of any other."""
    return [finalist.config for finalist in finalists] == [yours] and not any(trial.measurement for trial in trials)


def _named(config: TrialConfig, yours: TrialConfig | None, say: Callable[[TrialConfig], str]) -> str:
    return f"Your own configuration, {say(config)}," if config == yours else f"The finalist {say(config)}"
