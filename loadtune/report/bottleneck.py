"""What limits the winner and what a change would bring, in words. In: a `TuningResult`. Out: whole sentences."""

from loadtune.records import Bottleneck, PredictedChange, Resource, ResourceLimit, TuningResult
from loadtune.units import MISSING, counted, number_text, percent_text, ratio_text

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


def one_sentence(result: TuningResult) -> tuple[str, ...]:
    """One resource and its probability. A limit below the measured rate is none that can be told."""
    found, best = result.bottleneck, result.best
    if found is None or best is None:
        return ()
    if not found.holds:
        return (_unnamed(found),)
    first, rate = found.limits[0], found.limits[0].samples_per_s.value
    of = [] if best == (result.best_at_your_batch or best) else [f"at batch {best.config.batch_size}"]
    of += ["without the change"] if result.remedies is not None and result.remedies.config is not None else []
    limited = f"{' '.join(of)}, limited".removeprefix(", ").capitalize()
    to = f" to {number_text(rate)} samples/s" if rate > best.samples_per_s else ""
    return (f"{limited}{to} by {resource_text(first)} (probability {percent_text(first.probability)}).",)


def lines(result: TuningResult) -> tuple[str, ...]:
    """All of it, with the figures."""
    found = result.bottleneck
    if found is None:
        return ()
    held = found.num_predicted - found.num_missed
    tested = "No prediction of the model was tested: every setting was fixed, or only one was measured."
    if found.num_predicted:
        tested = f"{held} of {counted(found.num_predicted, 'trial')} lay within the predicted 95% interval."
    limits = [*map(_limit_line, found.limits), *map(_change_line, found.changes)] if found.holds else []
    return (*one_sentence(result), *late_lines(result), *limits, tested)


def _unnamed(found: Bottleneck) -> str:
    reasons = []
    if found.num_missed:
        reasons.append(f"{found.num_missed} of {counted(found.num_predicted, 'prediction')} missed")
    reasons.append(f"it explains {percent_text(found.explained)} of the measured throughput")
    return f"No bottleneck is named: the throughput model does not describe this job ({'; '.join(reasons)})."


def late_lines(result: TuningResult) -> tuple[str, ...]:
    """One slow worker, or single slow batches, where they cause most of the waiting."""
    late = None if result.bottleneck is None else result.bottleneck.late
    if late is None:
        return ()
    share = f"{percent_text(late.wait_fraction)} of the time blocked in next(loader)"
    if late.by == "worker":
        return (f"One worker takes {ratio_text(late.ratio)} as long for a batch as the others, which causes {share}.",)
    return (f"Single slow batches cause {share}; the longest took {ratio_text(late.ratio)} the usual time.",)


def _limit_line(limit: ResourceLimit) -> str:
    parts = sorted(limit.shares.items(), key=lambda part: -part[1])
    shares = ", ".join(f"{name} {percent_text(share)}" for name, share in parts if share >= 0.05)
    rate, low, high = (number_text(getattr(limit.samples_per_s, end)) for end in ("value", "low", "high"))
    name, probability = RESOURCE_TEXT[limit.resource], percent_text(limit.probability)
    limit_text = f"{rate} samples/s ({low} to {high}), the limit with {probability} probability"
    return f"{name[0].upper()}{name[1:]}: {limit_text}; {shares}."


def _change_line(change: PredictedChange) -> str:
    """``Predicted: twice the cores, with 32 workers, give 5,300 samples/s (1.31×, 1.21 to 1.41).``"""
    what = "samples that load in half the time give"
    if change.kind == "twice_the_cores":
        what = f"twice the cores, with {counted(change.num_workers, 'worker')}, give"
    gain = f"{ratio_text(change.gain.value)}, {change.gain.low:.2f} to {change.gain.high:.2f}"
    return f"Predicted: {what} {number_text(change.samples_per_s.value)} samples/s ({gain})."
