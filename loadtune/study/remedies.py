"""What a remedy would gain, by the throughput model, and what it gained, by runs in turn. Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtune.model.answers import change
from loadtune.model.fit import ThroughputModel
from loadtune.model.resources import Job
from loadtune.records import Estimate, Examined, Measurement, Objective, Ratio, TrialConfig
from loadtune.records.intervals import students_t
from loadtune.remedies import Remedy, Situation, in_order
from loadtune.study.throughput import points_at

WORTH_TRYING = 1.03
"""Predicted gain from which on a remedy is tried."""

WORTH_KEEPING = 1.01
"""Measured gain from which on a change of code is worth it, and more of which could not be told from nothing."""

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
    predicted: Estimate | None
    """Gain. None: not known."""


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

    ``others``: settings that may be tried with it, because what limits is another resource then. ``compute_gain``: of a
    changed recipe, without a loader.
    """
    plain = remedy.offer(situation)
    if plain is None or seen.refused is not None:
        return None
    names = in_order((*situation.config.remedies, remedy.name))
    config = replace(plain, remedies=names)
    own = remedy.gain(situation)
    if own is not None or model is None or job is None:
        return Offer(remedy=remedy, seen=seen, config=config, job=job, predicted=own)
    then = remedy.job(_faster(job, config, compute_gain), seen, situation)
    if then is None:
        return Offer(remedy=remedy, seen=seen, config=config, job=job, predicted=None)
    able = [replace(each, remedies=names) for each in others] if remedy.loads else []
    gains = {each: _gain(model, situation.config, job, each, then) for each in (config, *able)}
    best = max(gains, key=lambda each: gains[each].value)
    if gains[best].value < OTHER_SETTINGS * gains[config].value:
        best = config
    return Offer(remedy=remedy, seen=seen, config=best, job=then, predicted=gains[best])


def _faster(job: Job, config: TrialConfig, gain: float) -> Job:
    curves = {
        name: tuple((size, seconds / gain) for size, seconds in curve) if name == config.precision else curve
        for name, curve in job.compute.items()
    }
    return replace(job, compute=curves)


def _gain(model: ThroughputModel, config: TrialConfig, job: Job, to: TrialConfig, then: Job) -> Estimate:
    return change(model, points_at([config], model.job), points_at([to], model.job), then, base=job)[1]


def gain_of(
    before: Sequence[Measurement],
    after: Sequence[Measurement],
    others: Sequence[Sequence[Measurement]],
    objective: Objective,
) -> Ratio:
    """After over before, with its 95% interval, from the spread between runs of these and of all ``others``.

    Runs were made in turn, so the difference of each pair is what counts: what slows a machine for minutes slows both.
    """
    pairs = [math.log(b.score(objective)) - math.log(a.score(objective)) for a, b in zip(before, after, strict=False)]
    mean = statistics.fmean(pairs)
    groups = [[math.log(run.score(objective)) for run in runs] for runs in (before, after, *others)]
    squares = math.fsum((value - statistics.fmean(own)) ** 2 for own in groups for value in own)
    degrees = sum(max(0, len(own) - 1) for own in groups)
    if not degrees:
        return Ratio(ratio=math.exp(mean))
    width = students_t(degrees) * math.sqrt(squares / degrees * 2 / len(pairs))
    return Ratio(ratio=math.exp(mean), low=math.exp(mean - width), high=math.exp(mean + width))


def is_worth_keeping(gain: Ratio) -> bool:
    """Whether it gains for sure."""
    return gain.ratio >= WORTH_KEEPING and gain.low is not None and gain.low > 1.0


def combined(gains: Sequence[Ratio]) -> Ratio:
    """Of remedies that were measured one on top of the other."""
    ratio = math.prod(gain.ratio for gain in gains)
    if any(gain.high is None for gain in gains):
        return Ratio(ratio=ratio)
    width = math.sqrt(math.fsum(math.log((gain.high or 1.0) / gain.ratio) ** 2 for gain in gains))
    return Ratio(ratio=ratio, low=ratio * math.exp(-width), high=ratio * math.exp(width))
