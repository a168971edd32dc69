"""What limits the winner and what a change would bring, in words. In: a `TuningResult`. Out: whole sentences."""

from loadtune.records import Bottleneck, Estimate, PredictedChange, Resource, ResourceLimit, TuningResult
from loadtune.units import MISSING, counted, number_text, percent_text, ratio_text

SURE = 0.8
"""Probability from which on one resource alone is named."""

MOSTLY = 0.5
"""Share of a resource's time from which on one part of it is named."""

RESOURCE_TEXT: dict[Resource, str] = {
    "workers": "the worker processes",
    "cores": "the CPU cores",
    "pinning": "the pinning thread",
    "main": "the training process",
    "device": "the GPU",
}


def bottleneck_text(bottleneck: Bottleneck | None) -> str:
    """The resource alone: ``the pinning thread``; a dash where none is named."""
    if bottleneck is None or not bottleneck.holds:
        return MISSING
    return resource_text(bottleneck.limits[0])


def resource_text(limit: ResourceLimit) -> str:
    """With what it mostly does, where that tells more than its name."""
    share = {part: limit.shares.get(part, 0.0) for part in ("waiting", "copying", "synchronizing", "launching")}
    mostly = next((part for part, each in share.items() if each > MOSTLY), None)
    if limit.resource == "workers" and mostly == "waiting":
        return "the worker processes, which mostly wait (storage, network or sleep)"
    if limit.resource == "main" and mostly == "copying" and "launching" in limit.shares:
        return "copies to the GPU"
    if limit.resource == "main" and mostly == "launching":
        return "the training process, which launches the steps"
    if limit.resource == "main":
        return "the training process, which loads and computes in turn"
    if limit.resource == "device" and mostly == "copying":
        return "copies to the GPU"
    if limit.resource == "device" and mostly == "synchronizing":
        return "GradScaler's wait for the GPU in each step"
    return RESOURCE_TEXT[limit.resource]


def short_lines(result: TuningResult) -> tuple[str, ...]:
    """For the answer: what limits, and of the changes that are sure to gain the one predicted to gain most."""
    found = result.bottleneck
    if found is None or result.best is None:
        return ()
    if not found.holds:
        return (*_late(found), _unnamed(found))
    sure = [each for each in found.changes if each.kind != "twice_the_cores" and each.gain.low > 1.0]
    return (*_late(found), _limited(found), *(change_line(change) for change in sure[:1]))


def lines(result: TuningResult) -> tuple[str, ...]:
    """All of it, with the figures."""
    found = result.bottleneck
    if found is None:
        return ()
    held = found.num_predicted - found.num_missed
    tested = "No prediction of the model was tested: every setting was fixed, or only one was measured."
    if found.num_predicted:
        tested = f"{held} of {counted(found.num_predicted, 'trial')} lay within the predicted 95% interval."
    if not found.holds:
        return tuple(line for line in (*_late(found), _unnamed(found), tested) if line)
    each = [_limit_line(limit) for limit in found.limits]
    changes = [change_line(change) for change in found.changes]
    return tuple(line for line in (_limited(found), *_late(found), *each, *changes, tested) if line)


def change_line(change: PredictedChange) -> str:
    """``Predicted: twice the cores, with 32 workers, give 5,300 samples/s (1.31×, 1.21 to 1.41).``"""
    workers = counted(change.num_workers, "worker")
    what = {
        "twice_the_cores": f"twice the cores, with {workers}, give",
        "half_the_loading": "samples that load in half the time give",
    }[change.kind]
    gain = f"{ratio_text(change.gain.value)}, {change.gain.low:.2f} to {change.gain.high:.2f}"
    return f"Predicted: {what} {number_text(change.samples_per_s.value)} samples/s ({gain})."


def _limited(found: Bottleneck) -> str:
    first, *others = found.limits
    sure = [first, *(other for other in others if other.probability > 1 - SURE and first.probability < SURE)]
    highest = max(limit.samples_per_s.value for limit in sure)  # "next" has to be above all that are named
    likely = sorted(
        (limit for limit in found.limits if limit in sure or limit.samples_per_s.value <= highest),
        key=lambda limit: limit.samples_per_s.value,
    )
    each = [f"{resource_text(limit)} ({_rate(limit.samples_per_s)} samples/s)" for limit in likely]
    names = " or ".join(([", ".join(each[:-1])] if each[1:] else []) + each[-1:])
    after = min((o for o in others if o not in likely), key=lambda o: o.samples_per_s.value, default=None)
    following = f" Next: {resource_text(after)} at {_rate(after.samples_per_s)}." if after is not None else ""
    return f"Limited by {names}.{following}"


def _unnamed(found: Bottleneck) -> str:
    reasons = []
    if found.num_missed:
        reasons.append(f"{found.num_missed} of {counted(found.num_predicted, 'prediction')} missed")
    reasons.append(f"it explains {percent_text(found.explained)} of the measured throughput")
    return f"No bottleneck is named: the throughput model does not describe this job ({'; '.join(reasons)})."


def _late(found: Bottleneck) -> tuple[str, ...]:
    late = found.late
    if late is None:
        return ()
    share = f"{percent_text(late.wait_fraction)} of the time blocked in next(loader)"
    if late.by == "worker":
        return (f"One worker takes {ratio_text(late.ratio)} as long for a batch as the others, which causes {share}.",)
    return (f"Single slow batches cause {share}; the longest took {ratio_text(late.ratio)} the usual time.",)


def _limit_line(limit: ResourceLimit) -> str:
    parts = sorted(limit.shares.items(), key=lambda part: -part[1])
    shares = ", ".join(f"{name} {percent_text(share)}" for name, share in parts if share >= 0.05)
    interval = f"{_rate(limit.samples_per_s)} samples/s ({_rate_range(limit.samples_per_s)})"
    name, probability = RESOURCE_TEXT[limit.resource], percent_text(limit.probability)
    return f"{name[0].upper()}{name[1:]}: {interval}, the limit with {probability} probability; {shares}."


def _rate(estimate: Estimate) -> str:
    return number_text(estimate.value)


def _rate_range(estimate: Estimate) -> str:
    return f"{number_text(estimate.low)} to {number_text(estimate.high)}"
