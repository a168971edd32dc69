"""One configuration timed for a stage: how long it may take, who is shown its windows, how its outcome reads."""

from loadtune.records import Measurement, Objective, TrialConfig, TrialFailure
from loadtune.report.wording import FAILURE_TEXT, settings_text
from loadtune.stages.run import Run
from loadtune.study.segment import Segment
from loadtune.study.trial import run_trial
from loadtune.units import efficiency_text, rate_text


def timed(run: Run, config: TrialConfig, share: float, best: float | None) -> Measurement | TrialFailure:
    """`best` is the incumbent's samples/s, to end what cannot reach it early. None: every run counts."""
    run.found.running = config
    run.found.tell()
    seconds = max(0.5, share * run.found.config.time_budget_s)
    segment = Segment(config.loader, seconds, best)
    outcome = run_trial(run.bench, run.sensor, run.clock, config, segment, run.found.tell_window)
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
    return f"{what}: {rate_text(outcome.samples_per_s)}{efficiency}"


def split(outcome: Measurement | TrialFailure) -> tuple[Measurement | None, TrialFailure | None]:
    """As a line of the journal keeps it: one of the two is None."""
    return (outcome, None) if isinstance(outcome, Measurement) else (None, outcome)
