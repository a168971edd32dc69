"""One configuration timed for a stage: how long it may take, who is shown its windows, how its outcome reads."""

import math
from collections.abc import Sequence
from dataclasses import replace

from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.records import Measurement, Objective, TrialConfig, TrialFailure
from loadtune.records.confirmed import is_barred
from loadtune.report.utilization import utilization_text
from loadtune.report.wording import FAILURE_TEXT, settings_text
from loadtune.stages.run import Run
from loadtune.study.disturbance import LEAST, Disturbance, disturbance
from loadtune.study.segment import Segment
from loadtune.study.trial import run_trial
from loadtune.units import counted, efficiency_text, percent_text, rate_text

MAX_DISTURBED_REPEATS = 2
"""After so many repeats in a row that were disturbed as well, no segment is repeated: this machine is not quiet."""

REPEAT_OF_LEFT = 0.1
"""Share of the time left that a repeat may take."""


def timed(run: Run, config: TrialConfig, share: float, limit_s: float = math.inf) -> Measurement | TrialFailure:
    """``limit_s``: seconds after which a segment whose queue was not turned over is given up.

    A segment that other processes disturbed is run once more, and the quieter of the two counts. Where that run
    fails the first one does, unless the loss was not finite."""
    found, outcome = run.found, _timed_once(run, config, share, limit_s)
    before = disturbance(outcome, found.host.num_usable_cores)
    if not before.matters or not isinstance(outcome, Measurement):
        return outcome
    if found.disturbed_repeats >= MAX_DISTURBED_REPEATS or outcome.seconds > REPEAT_OF_LEFT * found.left_s:
        return outcome
    found.tell(f"Other processes used {_taken_text(before)} during this measurement. It is repeated.")
    again = _timed_once(run, config, share, limit_s)
    if isinstance(again, TrialFailure):
        if is_barred([again]):
            return again
        found.tell(f"The repeat failed, so the first run counts. {outcome_text(config, again, 'samples-per-s')}")
    after = disturbance(again, found.host.num_usable_cores)
    is_known = isinstance(again, Measurement) and again.telemetry is not None
    found.disturbed_repeats = 0 if is_known and not after.matters else found.disturbed_repeats + 1
    if isinstance(again, Measurement) and is_known and after.share < before.share:
        outcome = again
    return replace(outcome, repeated=True)


def _taken_text(seen: Disturbance) -> str:
    return f"{percent_text(seen.share)} of the {seen.taken_of}"


def note_disturbance(run: Run, confirmed: Sequence[Measurement]) -> None:
    """How many segments were run again, and which of the confirmation's are disturbed all the same."""
    found = run.found
    tried = [trial.measurement for trial in found.trials if trial.measurement is not None]
    num_repeated = sum(measured.repeated for measured in (*tried, *confirmed))
    if num_repeated:
        were = "was" if num_repeated == 1 else "were"
        what = "CPU cores or of the GPU" if found.device.kind == "cuda" else "CPU cores"
        found.note(
            f"{counted(num_repeated, 'measurement')} {were} repeated, because other processes used "
            f"{percent_text(LEAST)} or more of the {what} meanwhile."
        )
    all_seen = [disturbance(measured, found.host.num_usable_cores) for measured in confirmed]
    disturbed = [seen for seen in all_seen if seen.matters]
    if disturbed:
        up_to = "up to " if len(disturbed) > 1 else ""
        found.note(
            f"Other processes used {up_to}{_taken_text(max(disturbed))} in {len(disturbed)} of the "
            f"{counted(len(confirmed), 'run')} of the confirmation. The true throughput may be higher. Run again on a "
            "quiet machine."
        )


def _timed_once(run: Run, config: TrialConfig, share: float, limit_s: float) -> Measurement | TrialFailure:
    run.found.running = config
    run.found.tell()
    seconds = max(0.5, share * run.found.config.time_budget_s)
    segment, facts = Segment(config.loader, seconds, limit_s), run.found.facts
    epoch_samples = None if facts is None else facts.dataset_length
    try:
        outcome = run_trial(run.bench, run.sensor, run.clock, config, segment, run.found.tell_window, epoch_samples)
    except LoadtuneError as error:  # a change of the code that makes the job unfit for training fails alone
        if isinstance(error, OutOfTimeError) or not config.remedies:
            raise
        return TrialFailure(kind="user_error", phase="training", message=str(error))
    if isinstance(outcome, Measurement):
        run.found.trained.add((config.recipe, config.batch_size))
    by_energy = run.found.config.objective == "samples-per-joule"
    if by_energy and isinstance(outcome, Measurement) and outcome.samples_per_joule is None:
        return TrialFailure(
            kind="unsupported", phase="energy", message="the GPU's energy counter could not be read during this run"
        )
    return outcome


def outcome_text(config: TrialConfig, outcome: Measurement | TrialFailure | None, objective: Objective) -> str:
    what = settings_text(config)
    if not isinstance(outcome, Measurement):
        return f"{what}: {FAILURE_TEXT[outcome.kind]} ({outcome.message})" if outcome else f"{what}: not measured"
    efficiency = f", {efficiency_text(outcome.samples_per_joule)}" if objective == "samples-per-joule" else ""
    used = "" if outcome.telemetry is None else f", {utilization_text(outcome.telemetry)}"
    return f"{what}: {rate_text(outcome.samples_per_s)}{efficiency}{used}"


def split(outcome: Measurement | TrialFailure) -> tuple[Measurement | None, TrialFailure | None]:
    """As a record stores it: one of the two is None."""
    return (outcome, None) if isinstance(outcome, Measurement) else (None, outcome)
