"""What a remedy would gain, by the throughput model, and what it gained, by runs in turn. Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtune.model.answers import Changed, best_of, change
from loadtune.model.fit import ThroughputModel
from loadtune.model.resources import Job
from loadtune.records import Estimate, Examined, Measurement, Objective, Ratio, TrialConfig
from loadtune.records.intervals import quantile_of_t
from loadtune.remedies import REMEDIES, Remedy, Situation, in_order
from loadtune.study.throughput import points_at, segments_of

WORTH_TRYING = 1.03
"""Expected gain from which on a remedy is tried."""

WORTH_KEEPING = 1.01
"""Measured gain from which on a change of code is worth it, and more of which could not be told from nothing."""

ROUGH_GAIN = 0.1
"""Half the width of the total gain's interval, on the logarithm, below which no more runs are made of it."""

MODEL_SD = 0.1
"""Of the logarithm of a predicted gain, at the least."""

OTHER_SETTINGS = 1.03
"""Predicted gain from which on a remedy is tried with other settings than the best configuration has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A remedy that can be tried."""

    remedy: Remedy
    seen: Examined
    config: TrialConfig
    """With the remedy."""
    job: Job | None
    """As the model is told of it. None: the model does not know its gain."""
    predicted: Estimate | None = None
    """Gain. None: not known."""
    expected_gain: float = 1.0
    """Mean of the gain if the remedy is given up where it does not gain (expected improvement: Jones, Schonlau and
    Welch, Journal of Global Optimization 13, 1998). So an uncertain one may be worth a try although its median
    is below 1.
    """


def offer(
    remedy: Remedy,
    seen: Examined,
    situation: Situation,
    model: ThroughputModel | None,
    job: Job | None,
    others: Sequence[TrialConfig],
    compute_gain: float = 1.0,
) -> Offer | None:
    """``model``, ``job``: None where the model describes nothing; ``job`` is that of the remedies kept so far.

    ``others``: settings that may be tried with it, because what limits is another resource then. Those expected to be
    the fastest are taken where they gain with the remedy, and not by themselves. ``compute_gain``: of a changed recipe,
    without a loader.
    """
    plain = remedy.offer(situation)
    if plain is None or seen.refused is not None:
        return None
    names = in_order((*situation.config.remedies, remedy.name))
    config = replace(plain, remedies=names)
    own = remedy.gain(situation)
    if own is not None or model is None or job is None:
        expected = 1.0 if own is None else own.value  # none of these is predicted to lose
        return Offer(remedy=remedy, seen=seen, config=config, job=job, predicted=own, expected_gain=expected)
    then = remedy.job(_faster(job, config, compute_gain), seen, situation)
    if then is None:
        return Offer(remedy=remedy, seen=seen, config=config, job=job)
    changed = _changed(model, situation.config, job, config, then)
    moved = [_moved(config, other) for other in others] if remedy.loads else []
    moved = [each for each in moved if _is_allowed(each, remedy, situation)]
    if moved:
        other = moved[best_of(model, points_at(moved, model.job), then)]
        with_it, without = (_changed(model, situation.config, job, other, each) for each in (then, job))
        if with_it.gain.value >= OTHER_SETTINGS * max(changed.gain.value, without.gain.value):
            config, changed = other, with_it
    return Offer(
        remedy=remedy,
        seen=seen,
        config=config,
        job=then,
        predicted=changed.gain,
        expected_gain=changed.expected_gain,
    )


def _is_allowed(moved: TrialConfig, remedy: Remedy, situation: Situation) -> bool:
    """Whether the remedy, and those before it, are something at these settings too."""
    if not moved.loader.pin_memory and any(REMEDIES[name].needs_pinned for name in moved.remedies):
        return False
    return remedy.offer(replace(situation, config=replace(moved, remedies=situation.config.remedies))) is not None


def _moved(config: TrialConfig, to: TrialConfig) -> TrialConfig:
    """At other settings of those that the model knows; what remedies changed of loader and recipe stays."""
    loader = replace(
        config.loader,
        batch_size=to.batch_size,
        num_workers=to.loader.num_workers,
        pin_memory=to.loader.pin_memory,
    )
    recipe = config.recipe
    if to.precision != config.precision:
        fused = to.recipe.fused_optimizer or "fused_optimizer" in config.remedies
        compiled = to.recipe.compile or "compiled" in config.remedies
        recipe = replace(to.recipe, fused_optimizer=fused, compile=compiled)
    return replace(config, loader=loader, recipe=recipe)


def _faster(job: Job, config: TrialConfig, gain: float) -> Job:
    curves = {
        name: tuple((size, seconds / gain) for size, seconds in curve) if name == config.precision else curve
        for name, curve in job.compute.items()
    }
    return replace(job, compute=curves)


def _changed(model: ThroughputModel, config: TrialConfig, job: Job, to: TrialConfig, then: Job) -> Changed:
    return change(model, points_at([config], model.job), points_at([to], model.job), then, base=job)


def learned(model: ThroughputModel, job: Job, config: TrialConfig, runs: Sequence[Measurement]) -> ThroughputModel:
    """The model of the job with a remedy, from its runs: what limits then was measured, not only predicted."""
    rates = [run.samples_per_s for run in runs]
    return ThroughputModel(job, segments_of([(config, run) for run in runs], rates, job), before=model)


def is_promising(gain: Ratio, predicted: Estimate | None) -> bool:
    """Whether its runs show a gain, and together with the model leave less than 2.5% for none.

    Both are taken as independent and log-normal. ``gain``: with its interval for itself. Without a prediction its runs
    alone decide.
    """
    if predicted is None or gain.low is None or gain.high is None:
        return is_worth_keeping(gain)
    measured_sd = max(1e-6, math.log(gain.high / gain.low) / (2 * 1.96))
    model_sd = max(MODEL_SD, math.log(predicted.high / predicted.low) / (2 * 1.96))
    weights = 1 / measured_sd**2, 1 / model_sd**2
    mean = (weights[0] * math.log(gain.ratio) + weights[1] * math.log(predicted.value)) / sum(weights)
    return gain.ratio >= WORTH_KEEPING and mean > 1.96 / math.sqrt(sum(weights))


PairedRuns = tuple[Sequence[Measurement], Sequence[Measurement]]
"""Runs without a change and with it, made in turn: the n-th of the one and the n-th of the other are a pair."""


def gain_of(
    runs: PairedRuns,
    others: Sequence[PairedRuns],
    winner_runs: Sequence[Measurement],
    objective: Objective,
    num_comparisons: int = 1,
) -> Ratio:
    """With the change over without it, and the interval: of 95% for all of ``num_comparisons`` gains together.

    The difference of each pair is what counts: what slows a machine for minutes slows both. How much these differ from
    pair to pair is pooled over ``runs``, over ``others``, the pairs of other changes, and over ``winner_runs`` of the
    confirmation (two independent runs differ by √2 of their spread); or is that of ``runs`` alone where it is larger.
    """
    own = _differences(runs, objective)
    squares, degrees = _squares([math.log(run.score(objective)) for run in winner_runs])
    spreads = [(2 * squares, degrees), *(_squares(_differences(each, objective)) for each in (runs, *others))]
    mean = statistics.fmean(own)
    degrees = sum(each[1] for each in spreads)
    if degrees == 0:
        return Ratio(ratio=math.exp(mean))
    variance = math.fsum(each[0] for each in spreads) / degrees
    if len(own) > 1:
        variance = max(variance, statistics.variance(own))
    t = quantile_of_t(degrees, 1 - 0.025 / num_comparisons)
    width = t * math.sqrt(variance / len(own))
    return Ratio(ratio=math.exp(mean), low=math.exp(mean - width), high=math.exp(mean + width))


def _differences(pairs: PairedRuns, objective: Objective) -> list[float]:
    return [math.log(b.score(objective)) - math.log(a.score(objective)) for a, b in zip(*pairs, strict=False)]


def _squares(values: Sequence[float]) -> tuple[float, int]:
    """(Sum of squares around their mean, degrees of freedom)."""
    if len(values) < 2:
        return 0.0, 0
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values), len(values) - 1


def is_worth_keeping(gain: Ratio) -> bool:
    """Whether it gains for sure."""
    return gain.ratio >= WORTH_KEEPING and gain.low is not None and gain.low > 1.0


def is_known(gain: Ratio) -> bool:
    """Whether it gains for sure, and its interval is narrow enough."""
    return is_worth_keeping(gain) and gain.low is not None and math.log(gain.ratio / gain.low) <= ROUGH_GAIN


def combined(gains: Sequence[Ratio]) -> Ratio:
    """Of remedies that were measured one on top of the other."""
    if len(gains) == 1:
        return gains[0]
    ratio = math.prod(gain.ratio for gain in gains)
    if any(gain.high is None for gain in gains):
        return Ratio(ratio=ratio)
    width = math.sqrt(math.fsum(math.log((gain.high or 1.0) / gain.ratio) ** 2 for gain in gains))
    return Ratio(ratio=ratio, low=ratio * math.exp(-width), high=ratio * math.exp(width))
