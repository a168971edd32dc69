"""Who won, by how much, and what holds the winner back. Pure, over confirmed figures only."""

import math
from collections.abc import Sequence

from loadtune.records import Finalist, LoaderConfig, TrialConfig, Verdict, Winner, WorkloadFacts
from loadtune.study.confirm import between_run_spread, size
from loadtune.units import percent_text, rate_text

TIE = 0.98
"""Means within 2% of the fastest count as equal; the smallest of them wins."""

COMPUTE_BOUND = 0.9
"""At this share of the compute-only rate the device is the wall: what is left is within the noise of fresh loaders."""

WAITING = 0.15
"""A data wait above this share of the step names the workers; below it they keep up."""


def pick_winner(
    finalists: Sequence[Finalist], yours: TrialConfig | None, *, batch_size: int | None = None
) -> Winner | None:
    """The smallest configuration among those within 2% of the fastest, beside the user's own. None: nothing ran.

    One of which a run failed wins only where that is true of all. `batch_size` leaves only its own to choose from; the
    spread between runs is that of all finalists.
    """
    eligible = [f for f in finalists if batch_size in (None, f.config.batch_size)]
    eligible = [f for f in eligible if not f.failures] or eligible
    if not eligible:
        return None
    top = max(f.samples_per_s for f in eligible)
    best = min((f for f in eligible if f.samples_per_s >= TIE * top), key=lambda f: size(f.config))
    own = next((f for f in finalists if f.config == yours), None)
    num_rivals = sum(f.config != yours for f in eligible)
    ratio, low, high = speedup(best, own, finalists, num_rivals)
    return Winner(
        config=best.config,
        samples_per_s=best.samples_per_s,
        half_width_fraction=best.half_width_fraction,
        speedup=ratio,
        speedup_low=low,
        speedup_high=high,
    )


def speedup(
    best: Finalist, own: Finalist | None, finalists: Sequence[Finalist], num_rivals: int
) -> tuple[float | None, float | None, float | None]:
    """Ratio of the means with its 95% interval from the spread between runs.

    `num_rivals` of `own` there were to pick `best` from: the interval allows for the luck of the fastest of them.
    """
    if own is None:
        return None, None, None
    if best.config == own.config:
        return 1.0, 1.0, 1.0
    ratio = best.samples_per_s / own.samples_per_s
    spread = between_run_spread([f.runs for f in finalists])
    if spread is None:
        return ratio, None, None
    width = spread.half_width(1 / len(best.runs) + 1 / len(own.runs), num_rivals)
    return ratio, ratio * math.exp(-width), ratio * math.exp(width)


def not_told_apart(winner: Winner, finalists: Sequence[Finalist]) -> tuple[Finalist, ...]:
    """Other finalists that may be as fast as the winner: the interval of the ratio of the means holds 1.

    The winner was picked for being fast, and a rival is called slower for being slow: that is one of all pairs.
    """
    num_pairs = math.comb(len(finalists), 2)
    best = next(f for f in finalists if f.config == winner.config)
    rivals = []
    for rival in finalists:
        _, low, high = speedup(best, rival, finalists, num_pairs)
        if rival is not best and low is not None and high is not None and low <= 1.0 <= high:
            rivals.append(rival)
    return tuple(rivals)


def judge(
    winner: Winner,
    finalist: Finalist,
    facts: WorkloadFacts,
    device_kind: str,
    num_usable_cores: int,
    most_tried: int,
) -> Verdict:
    """What bounds the winner, from its share of the compute-only rate and its data wait.

    `most_tried` is the largest num_workers that was measured: the advice claims nothing of more.
    """
    share, wait = winner.compute_fraction, finalist.wait_fraction
    loader = winner.config.loader
    evidence = f"{percent_text(share)} of the compute-only rate, {percent_text(wait)} of the step waiting for data"
    if share is not None and share >= COMPUTE_BOUND:
        return Verdict(bound_by="compute", evidence=evidence, advice=_FASTER_STEP)
    if wait >= WAITING:
        makers = f"{loader.num_workers} workers together" if loader.num_workers else "training included"
        evidence += (
            f"; one process alone makes {rate_text(1 / facts.sample_s)}, {makers} {rate_text(winner.samples_per_s)}"
        )
        advice = _loader_advice(loader, num_usable_cores, most_tried) + (_OR_PINNING if loader.pin_memory else "")
        return Verdict(bound_by="loader", evidence=evidence, advice=advice)
    if device_kind == "cuda" and share is not None:
        return Verdict(bound_by="transfer", evidence=evidence, advice=_SMALLER_BYTES)
    return Verdict(bound_by="unclear", evidence=evidence, advice=_SHARED_CORES if device_kind == "cpu" else "")


def _loader_advice(loader: LoaderConfig, num_usable_cores: int, most_tried: int) -> str:
    if loader.num_workers < most_tried:
        return (
            "More workers did not pay in this study; make each sample cheaper: decode smaller, cache, drop transforms."
        )
    if loader.num_workers < num_usable_cores:
        return (
            "More workers were not measured: allow them with --max-workers or a larger --time-budget, or make each "
            "sample cheaper: decode smaller, cache, drop transforms."
        )
    return (
        "There are as many workers as usable cores, so more of them would share those: make each sample cheaper "
        "(decode smaller, cache, move transforms to the GPU) or give the job more cores."
    )


_FASTER_STEP = (
    "The loader keeps up. To go faster, make the step itself faster: torch.compile, a smaller model or image."
)
_SMALLER_BYTES = (
    "Workers keep up and the device is not full, which leaves the way from host to device; copies were not timed by "
    "themselves. Try fewer bytes: uint8 images scaled on the GPU, or a 16-bit cast in the worker."
)
_OR_PINNING = (
    " Pinning is one thread's work and may be the wall just as well, the two were not timed apart; fewer bytes a "
    "sample (uint8, scaled on the GPU) help against both."
)
_SHARED_CORES = "Training and loading share the same cores here; what one gains the other may lose."
