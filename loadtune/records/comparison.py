"""What changed between two results, and whether a stored winner still is as fast: what `compare` and `check` say.

Before and after are in the order in which they were named; neither has to be the older one.
"""

from dataclasses import dataclass
from typing import Literal

from loadtune.records.bottleneck import Resource
from loadtune.records.configs import Precision, TrialConfig
from loadtune.records.score import Objective
from loadtune.records.timing import Measurement

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A mean after, over the same before: 1.0 is no change, 0.8 a fifth less. Of samples/s, if nothing else is said."""

    ratio: float
    low: float | None = None
    """95% interval, from the spread between runs on both sides. None: too few runs to say."""
    high: float | None = None

    @property
    def different(self) -> bool | None:
        """False: the interval holds 1. None: there is no interval."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1.0 <= self.high


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
    config: TrialConfig | None = None
    """The winner's. None, here and below: there is no confirmed winner."""
    num_runs: int | None = None
    samples_per_s: float | None = None
    half_width_fraction: float | None = None
    compute_fraction: float | None = None
    wait_fraction: float | None = None
    bottleneck: Resource | None = None
    """None also where the model named none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionChange:
    """What a precision could do at most. None: that side did not look at it."""

    precision: Precision
    compute_before_per_s: float | None
    """Best samples/s with the batch on the device already, at any batch size, under the recipe it was trained with."""
    compute_after_per_s: float | None
    compute_ratio: Ratio | None = None
    """Its interval knows the noise within one timing on each side, and not that between two of them."""
    safe_batch_before: int | None
    safe_batch_after: int | None


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
    precisions: tuple[PrecisionChange, ...]
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
    config: TrialConfig
    tolerance_fraction: float
    baseline_created: str
    baseline_samples_per_s: float
    baseline_half_width_fraction: float | None
    """Of the throughput, as `half_width_fraction` is."""
    baseline_num_runs: int
    baseline_samples_per_joule: float | None = None
    """Set where the objective is samples per joule, as `samples_per_joule` is."""
    objective: Objective = "samples-per-s"
    """What the winner was picked for, and is held to."""
    ratio: Ratio | None = None
    """Of the objective's figure. None: nothing was measured."""
    runs: tuple[Measurement, ...] = ()
    """Each with workers of its own."""
    samples_per_s: float | None = None
    """Mean over runs."""
    half_width_fraction: float | None = None
    """Of the 95% interval of their mean. None: fewer than two."""
    samples_per_joule: float | None = None
    """Mean over runs."""
    changes: tuple[Change, ...] = ()
    """Machine and versions that are not what they were."""
    figures: tuple[Change, ...] = ()
    """What else was measured, then and now: where a loss comes from."""
    seconds: float
