"""The user's own loader settings, timed before anything slow: what they leave to be gained is said within a minute.

Probing memory and the compute curve took 24 to 132 s on H200s. What is measured is the study's first trial, earlier.
"""

from collections.abc import Mapping
from dataclasses import replace

from loadtune.probe.host_memory import host_memory_refusal
from loadtune.probe.recipe import point_seconds
from loadtune.records import ComputePoint, Measurement, Precision, Recipe, TrialConfig, WorkloadFacts
from loadtune.report.wording import settings_text
from loadtune.stages.run import OWN_STAGE, TRIAL_SHARE, Run
from loadtune.stages.timing import outcome_text, timed
from loadtune.study.loop import MISREAD, NEAR_CEILING
from loadtune.study.yours import ASSUMED_BATCH, your_config
from loadtune.units import percent_text, rate_text


def own(run: Run, facts: WorkloadFacts, chosen: Mapping[Precision, Recipe]) -> None:
    """Time them under the chosen recipe, and say what share of its compute-only rate they train at.

    Left to the study, which asks the probes first, where an assumed batch is larger than what the recipes were seen to
    train, or the host has no room for it. One that was named trains already, by the user's word; if it does not, a
    trial may fail. A resumed run has the probes, or is past this.
    """
    found = run.found
    config = _own_config(run, chosen)
    if config is None or found.trials or found.ceilings or found.measured_ahead:
        return
    if host_memory_refusal(config.loader, facts.sample_bytes, run.host_now()) is not None:
        return
    with found.stage(OWN_STAGE):
        outcome = timed(run, config, TRIAL_SHARE, None)
        found.measured_ahead[config] = outcome
        if not isinstance(outcome, Measurement):
            found.tell(outcome_text(config, None, outcome, found.config.objective))
            return
        _tell_share(run, config, outcome.samples_per_s)


def _own_config(run: Run, chosen: Mapping[Precision, Recipe]) -> TrialConfig | None:
    """As the study will ask for it. None: its precision is not considered, or its batch not known to train."""
    yours = run.found.config.yours
    choice = next((c for c in run.found.recipes if c.chosen.precision == (yours.precision or "fp32")), None)
    if choice is None:
        return None
    seen = max(point.batch_size for point in choice.points)
    config = your_config(yours, ASSUMED_BATCH)
    pin_memory = config.loader.pin_memory and run.found.device.kind == "cuda"
    config = TrialConfig(loader=replace(config.loader, pin_memory=pin_memory), recipe=chosen[choice.chosen.precision])
    return config if yours.batch_size is not None or config.batch_size <= seen else None


def _tell_share(run: Run, config: TrialConfig, samples_per_s: float) -> None:
    point = run.bench.time_compute(config.recipe, config.batch_size, point_seconds(run.found.config.time_budget_s))
    told = f"{settings_text(config)}: {rate_text(samples_per_s)}"
    if not isinstance(point, ComputePoint) or samples_per_s > MISREAD * point.quickest_per_s:
        run.found.tell(told)
        return
    share = samples_per_s / point.quickest_per_s
    told += f", {percent_text(min(1.0, share))} of what the device trains with such batches there already"
    if share >= NEAR_CEILING:
        told += "; no num_workers or pin_memory can gain more than the rest, another batch size or precision may"
    run.found.tell(told)
