"""The baseline's loader settings, measured before the memory probe: a user sees within a minute what there is to gain.

The measurement is the first trial of the study, unless the search space turns out not to contain its batch size.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace

from loadtune.errors import LoadtuneError
from loadtune.probe.host_memory import host_memory_refusal
from loadtune.probe.recipe import point_seconds
from loadtune.records import (
    ComputePoint,
    Measurement,
    Precision,
    Recipe,
    Trial,
    TrialConfig,
    TuneConfig,
    WorkloadFacts,
    raise_for_the_user,
)
from loadtune.records.confirmed import MISREAD
from loadtune.stages.probing import assumed_batch
from loadtune.stages.run import OWN_STAGE, TRIAL_SHARE, Run
from loadtune.stages.timing import outcome_text, split, timed
from loadtune.study.yours import your_config
from loadtune.units import percent_text

NEAR_CEILING = 0.97
"""Share of the compute-only rate from which on no loader setting can add more than 3%."""


def own(run: Run, facts: WorkloadFacts, chosen: Mapping[Precision, Recipe]) -> None:
    """Time them under the chosen recipe, and say what share of its compute-only rate they train at.

    Left to the study, which asks the probes first, where an assumed batch is larger than what the recipes were seen to
    train, or the host has no room for it. One that was named trains already, by the user's word; if it does not, a
    trial may fail. A run that is resumed times them where it had not. Raises WorkloadError where the user's code fails.
    """
    found = run.found
    config = _own_config(run, facts, chosen)
    if config is None:
        return
    if found.yours is None:  # until the space is spanned
        found.yours = _plain(run)
    if found.trials or found.ceilings or found.ahead:
        return
    if host_memory_refusal(config.loader, facts.sample_bytes, run.host_now()) is not None:
        return
    with found.stage(OWN_STAGE):
        outcome = timed(run, config, TRIAL_SHARE)
        raise_for_the_user(outcome)
        measurement, failure = split(outcome)
        found.ahead = Trial(number=0, config=config, origin="yours", measurement=measurement, failure=failure)
        run.save()
        share = "" if measurement is None else _share_text(run, config, measurement)
        found.tell(outcome_text(config, outcome, found.config.objective) + share)


def _own_config(run: Run, facts: WorkloadFacts, chosen: Mapping[Precision, Recipe]) -> TrialConfig | None:
    """As the study will ask for it. None: it will not, or the batch is not known to train."""
    yours = run.found.config.yours
    choice = next((c for c in run.found.recipes if c.chosen.precision == (yours.precision or "fp32")), None)
    if choice is None:
        return None
    plain = _plain(run)
    config = replace(plain, recipe=chosen[plain.precision])
    seen = max(point.batch_size for point in choice.points)
    trains = yours.batch_size is not None or config.batch_size <= seen
    return config if trains and _is_searched(run.found.config, config) else None


def _plain(run: Run) -> TrialConfig:
    """As the user has it, the plain recipe included."""
    found = run.found
    own_loader = None if found.facts is None else found.facts.own_loader
    yours = found.config.yours
    largest = assumed_batch(found, yours.precision or "fp32")
    return your_config(yours, largest, can_pin=found.device.kind == "cuda", own_loader=own_loader)


def _is_searched(asked: TuneConfig, config: TrialConfig) -> bool:
    """Whether nothing that was asked for leaves it out."""
    loader, own = config.loader, asdict(config.loader)
    too_large = asked.max_batch_size is not None and loader.batch_size > asked.max_batch_size
    too_many = asked.max_workers is not None and loader.num_workers > asked.max_workers
    others = any(own.get(fixed.name, fixed.value) != fixed.value for fixed in asked.fix)
    return not (too_large or too_many or others)


def _share_text(run: Run, config: TrialConfig, measured: Measurement) -> str:
    """Share of the compute-only rate; empty where that could not be measured."""
    try:
        point = run.bench.time_compute(config.recipe, config.batch_size, point_seconds(run.found.config.time_budget_s))
    except LoadtuneError:  # it is but a sentence
        return ""
    if not isinstance(point, ComputePoint) or measured.samples_per_s > MISREAD * point.quickest_per_s:
        return ""
    share = measured.samples_per_s / point.quickest_per_s
    text = f", {percent_text(min(1.0, share))} of the compute-only rate at this batch size"
    if share >= NEAR_CEILING and config.loader.keeps_workers:
        text += ". Only another batch size or precision can be much faster"
    return text
