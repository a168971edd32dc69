"""One configuration timed for a run: how long it may take, who is shown its windows, how its outcome reads."""

import math
from dataclasses import replace
from typing import NamedTuple

from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.records import Measurement, Objective, TrialConfig, TrialFailure
from loadtune.records.confirmed import is_barred
from loadtune.report.utilization import utilization_text
from loadtune.report.wording import FAILURE_TEXT, settings_text
from loadtune.run import Run
from loadtune.search.segment import Segment, run_trial
from loadtune.units import counted, efficiency_text, percent_text, rate_text

SEGMENT_S, SEGMENT_SHARE, SEGMENT_LEAST_S = 2.4, 0.01, 0.5
"""For the measured part of one segment, where a queue is turned over in less: seconds, or a share of a short time
budget. Segments differ by more than the windows of one do, so more of them tell more than longer ones."""

MAX_DISTURBED_REPEATS = 2
"""After so many repeats in a row that were disturbed as well, no segment is repeated: this machine is not quiet."""

REPEAT_OF_LEFT = 0.1
"""Share of the time left that a repeat may take."""

DISTURBED = 0.1
"""Share of the usable cores, or of the GPU, used by other processes from which on a segment counts as disturbed. The
counters of processes and of cores differ by up to 3% of the cores over a segment on an H200."""


class Disturbance(NamedTuple):
    """What processes that are not ours took."""

    share: float = 0.0
    """0 also where it could not be read."""
    taken_of: str = "CPU cores"

    @property
    def matters(self) -> bool:
        return self.share >= DISTURBED

    def __str__(self) -> str:
        return f"{percent_text(self.share)} of the {self.taken_of}"


def disturbance(outcome: Measurement | TrialFailure, num_usable_cores: int) -> Disturbance:
    """Of the cores or of the GPU, whichever others took more of."""
    seen = outcome.telemetry if isinstance(outcome, Measurement) else None
    if seen is None:
        return Disturbance()
    cores = Disturbance((seen.others_cpu_cores or 0.0) / max(1, num_usable_cores))
    return max(cores, Disturbance(seen.gpu_others_sm_fraction or 0.0, "GPU"))


def segment_seconds(time_budget_s: float) -> float:
    """Of the measured part of one segment."""
    return max(SEGMENT_LEAST_S, min(SEGMENT_S, SEGMENT_SHARE * time_budget_s))


def timed(run: Run, config: TrialConfig, limit_s: float = math.inf) -> Measurement | TrialFailure:
    """``limit_s``: seconds after which a segment whose queue was not turned over is given up.

    A segment that other processes disturbed is run once more, and the quieter of the two counts. Where that run
    fails the first one does, unless the loss was not finite."""
    outcome, cores = _timed_once(run, config, limit_s), run.host.num_usable_cores
    before = disturbance(outcome, cores)
    if not before.matters or not isinstance(outcome, Measurement):
        return outcome
    if run.disturbed_repeats >= MAX_DISTURBED_REPEATS or outcome.seconds > REPEAT_OF_LEFT * run.left_s:
        return outcome
    run.tell(f"Other processes used {before} during this measurement. It is repeated.")
    again = _timed_once(run, config, limit_s)
    if isinstance(again, TrialFailure):
        if is_barred([again]):
            return again
        run.tell(f"The repeat failed, so the first run counts. {outcome_text(config, again, 'samples-per-s')}")
    after = disturbance(again, cores)
    is_known = isinstance(again, Measurement) and again.telemetry is not None
    run.disturbed_repeats = 0 if is_known and not after.matters else run.disturbed_repeats + 1
    if isinstance(again, Measurement) and is_known and after.share < before.share:
        outcome = again
    return replace(outcome, repeated=True)


def note_disturbance(run: Run) -> None:
    """How many segments were run again, and which of the final's are disturbed all the same."""
    num_repeated = sum(measured.repeated for _, measured in run.timed)
    if num_repeated:
        were = "was" if num_repeated == 1 else "were"
        what = "CPU cores or of the GPU" if run.device.kind == "cuda" else "CPU cores"
        run.note(
            f"{counted(num_repeated, 'measurement')} {were} repeated, because other processes used "
            f"{percent_text(DISTURBED)} or more of the {what} meanwhile."
        )
    confirmed = [measured for finalist in run.finalists for measured in finalist.runs]
    all_seen = [disturbance(measured, run.host.num_usable_cores) for measured in confirmed]
    disturbed = [seen for seen in all_seen if seen.matters]
    if disturbed:
        up_to = "up to " if len(disturbed) > 1 else ""
        run.note(
            f"Other processes used {up_to}{max(disturbed)} in {len(disturbed)} of the "
            f"{counted(len(confirmed), 'run')} of the confirmation. The true throughput may be higher. Run again on a "
            "quiet machine."
        )


def _timed_once(run: Run, config: TrialConfig, limit_s: float) -> Measurement | TrialFailure:
    run.running = config
    run.tell()
    segment = Segment(config.loader, segment_seconds(run.config.time_budget_s), limit_s)
    epoch_samples = None if run.facts is None else run.facts.dataset_length
    try:
        outcome = run_trial(run.bench, run, run.clock, config, segment, run.tell_window, epoch_samples)
    except LoadtuneError as error:  # a change of the code that makes the job unfit for training fails alone
        if isinstance(error, OutOfTimeError) or not config.remedies:
            raise
        return TrialFailure(kind="user_error", phase="training", message=str(error))
    if not isinstance(outcome, Measurement):
        return outcome
    run.trained.add((config.recipe, config.batch_size))
    if run.config.objective == "samples-per-joule" and outcome.samples_per_joule is None:
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
