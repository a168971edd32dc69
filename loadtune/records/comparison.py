"""What changed between two results, and whether a stored winner still is as fast: what `compare` and `check` say.

Before and after are in the order in which they were named; neither has to be the older one.
"""

from dataclasses import dataclass
from typing import Literal

from loadtune.records.bottleneck import Resource
from loadtune.records.configs import TrialConfig
from loadtune.records.result import Winner
from loadtune.records.score import Objective, Ratio, Score
from loadtune.records.timing import Measurement

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A fact or a figure, before and after. The name ends in its unit where it has one."""

    name: str
    before: Value
    """None: not known, or not there."""
    after: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two results: when it was made, and the winner that is compared."""

    created: str
    loadtune_version: str
    hostname: str
    device: str
    cut_short: str | None
    winner: Winner | None = None
    """None, here and below: there is no confirmed winner."""
    num_runs: int | None = None
    wait_fraction: float | None = None
    bottleneck: Resource | None = None
    """None also where the model named none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameConfig:
    """A configuration that both confirmations measured: what the machines differ by, apart from what was chosen."""

    config: TrialConfig
    ratio: Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two results of one workload, side by side."""

    workload: str
    before: Side
    after: Side
    ratio: Ratio | None
    """Of the winners' throughput. None: one side has none."""
    changes: tuple[Change, ...]
    """Machine, versions, workload: only what is not the same."""
    settings: tuple[Change, ...]
    """Of the winners: only what is not the same."""
    ceilings: tuple[Change, ...]
    """Of each precision, changed or not: best samples/s with the batch on the device already, at any batch size, under
    the recipe it was trained with; and the largest safe batch. None: that side did not look at it."""
    same_configs: tuple[SameConfig, ...]
    """The winners first. Empty: no configuration was confirmed by both."""
    notes: tuple[str, ...] = ()
    """What to beware of: whole sentences."""


CheckOutcome = Literal["held", "fell", "unclear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A stored winner, measured again."""

    outcome: CheckOutcome
    """``fell`` the whole interval of the ratio is below 1 − tolerance; ``held`` it is above; ``unclear`` neither, or
    nothing could be measured."""
    reason: str
    """One or two sentences."""
    workload: str
    tolerance_fraction: float
    objective: Objective
    """What the winner was picked for, and is held to."""
    baseline_created: str
    baseline: Winner
    baseline_num_runs: int
    ratio: Ratio | None = None
    """Of the objective's figure. None: nothing was measured."""
    runs: tuple[Measurement, ...] = ()
    """Each with workers of its own."""
    throughput: Score | None = None
    """Mean over runs; no interval of fewer than two. None: nothing was measured."""
    efficiency: Score | None = None
    """Likewise of samples per joule, where they are the objective."""
    changes: tuple[Change, ...] = ()
    """Machine and versions that are not what they were."""
    figures: tuple[Change, ...] = ()
    """What else was measured, then and now: where a loss comes from."""
    seconds: float
