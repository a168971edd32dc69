"""The verdict: what holds a configuration back, by which figures, and what could be gained at most. Pure.

In: `Evidence`, plain numbers. Out: a `Verdict`. Each rule looks for one thing and names it, or nothing. Of those that
explain the same wait the first counts, which is why causes stand before what they cause; then the one that would gain
most wins.
"""

from collections.abc import Callable

from loadtune.records import Bound, Hindrance, Verdict
from loadtune.study import device_rules, loader_rules
from loadtune.study.remedies import advice
from loadtune.study.walls import Evidence

WORTH_NAMING = 1.05
"""What gains less is within the noise of fresh loaders."""

RULES: tuple[Callable[[Evidence], Hindrance | None], ...] = (
    loader_rules.slow_worker,
    loader_rules.slow_samples,
    loader_rules.taking,
    loader_rules.host_memory,
    loader_rules.storage,
    loader_rules.cores,
    loader_rules.workers,
    loader_rules.uneven,
    loader_rules.not_told_apart,
    loader_rules.pinning,
    device_rules.transfer,
    device_rules.startup,
    device_rules.compute,
    device_rules.left_over,
)


LOADING: frozenset[Bound] = frozenset(
    {"slow_worker", "slow_samples", "host_memory", "storage", "cores", "workers", "loader"}
)
"""What explains one and the same wait."""


def judge(evidence: Evidence) -> Verdict:
    """What bounds this configuration most, what else does, and what to do."""
    first, *others = _by_gain(evidence) or [device_rules.unclear(evidence)]
    return Verdict(
        bound_by=first.bound_by,
        evidence=first.evidence,
        advice=advice(first.bound_by, evidence),
        gain_at_most=first.gain_at_most,
        accelerator_utilization=evidence.utilization,
        also=tuple(other for other in others if (other.gain_at_most or 1.0) >= WORTH_NAMING),
    )


def _by_gain(evidence: Evidence) -> list[Hindrance]:
    """What the rules find, one for each thing there is to explain, most first and of equal ones the first."""
    found: dict[str, Hindrance] = {}
    for rule in RULES:
        hindrance = rule(evidence)
        if hindrance is not None:
            found.setdefault("loading" if hindrance.bound_by in LOADING else hindrance.bound_by, hindrance)
    return sorted(found.values(), key=lambda hindrance: -(hindrance.gain_at_most or 1.0))
