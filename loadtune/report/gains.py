"""What each step to the answer gains, and what a change on top of it would. In: a `TuningResult`. Out: gains."""

from dataclasses import dataclass, replace
from itertools import pairwise

from loadtune.records.answer import compute_rate, finalist_of
from loadtune.records.config import TrialConfig
from loadtune.records.interval import Interval
from loadtune.records.result import ChangeKind, TuningResult, Winner
from loadtune.report.wording import remedy_text

_CHANGES: dict[ChangeKind, str] = {"twice_the_cores": "twice the cores", "half_the_loading": "half the loading time"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    name: str
    ratio: Interval
    """After ÷ before, of what the run looked for."""
    is_measured: bool
    """False: predicted by the throughput model."""


def steps(result: TuningResult, winner: Winner) -> tuple[Gain, ...]:
    """What each lever brings, pulled one after another from the user's settings to the answer.

    Measured where the settings between two levers are a contestant's, else predicted; levers between which neither is
    known are told together.
    """
    start, end = result.yours, winner.config
    if start is None or start == end or winner.samples_per_joule is not None:
        return ()
    loader = replace(end.loader, batch_size=start.batch_size)
    path = {
        "baseline": start,
        "workers and pinning": replace(start, loader=loader),
        "precision and memory format": replace(end, loader=loader),
        "batch size": end,
    }
    found, names = list[Gain](), list[str]()
    last, was_measured = _measured(result, start), True
    for (_, before), (name, after) in pairwise(path.items()):
        names += [name] if before != after else []
        measured = _measured(result, after)
        rate = measured or _predicted(result, winner, after)
        if names and last is not None and rate is not None:
            ratio, both = Interval(value=rate / last), measured is not None and was_measured
            found.append(Gain(name=" together with ".join(names), ratio=ratio, is_measured=both))
            names, last, was_measured = [], rate, measured is not None
    return tuple(found)


def changes(result: TuningResult) -> tuple[Gain, ...]:
    """On top of the best: the changes of the code that gain together, each by itself, then what other hardware or
    samples are predicted to bring. Samples per joule are not predicted."""
    by_speed, found = result.config.objective == "samples-per-s", list[Gain]()
    if (remedies := result.remedies) is not None:
        if remedies.config is not None and remedies.gain is not None:
            together = " and ".join(map(remedy_text, remedies.config.remedies))
            found.append(Gain(name=together, ratio=remedies.gain, is_measured=True))
        found += [
            Gain(name=remedy_text(each.name), ratio=gain, is_measured=each.gain is not None)
            for each in remedies.tried
            if each.config != remedies.config and (gain := each.gain or (each.predicted if by_speed else None))
        ]
    model = result.bottleneck
    if model is not None and model.holds and by_speed:
        found += [Gain(name=_CHANGES[each.kind], ratio=each.gain, is_measured=False) for each in model.changes]
    return tuple(found)


def _measured(result: TuningResult, config: TrialConfig) -> float | None:
    found = finalist_of(result, config)
    return None if found is None else found.samples_per_s


def _predicted(result: TuningResult, winner: Winner, config: TrialConfig) -> float | None:
    """By the slower of the step without a loader and what the loader's parts allow by the throughput model.

    What the winner's rate is below its own slower part, this rate is below its own. None: the model does not hold, or
    the step was not timed at this batch size.
    """
    here, there = _slowest(result, config), _slowest(result, winner.config)
    return None if here is None or there is None else here * winner.samples_per_s / there


def _slowest(result: TuningResult, config: TrialConfig) -> float | None:
    found, alone = result.bottleneck, compute_rate(result.compute_points, config)
    if found is None or not found.holds or alone is None or found.config.loader.pin_memory != config.loader.pin_memory:
        return None
    limits = next((each.limits for each in found.roofline if each.num_workers == config.loader.num_workers), {})
    parts = [rate for name, rate in limits.items() if name in ("workers", "cores", "pinning")]
    return min(alone.samples_per_s, *parts) if parts else None
