"""What a configuration is judged by: one figure, of whichever of two kinds a run looks for; and the ratio of two."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Objective = Literal["samples-per-s", "samples-per-joule"]
"""What a configuration is judged by: throughput, or samples for a joule that the GPU's whole board takes."""
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

SCORE_UNITS: Mapping[Objective, str] = {"samples-per-s": "samples/s", "samples-per-joule": "samples/J"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A mean of that figure with its interval; more is better."""

    objective: Objective
    value: float
    """In `unit`."""
    half_width_fraction: float | None = None
    """Of its 95% interval, as a share of it. None: too few runs."""

    @property
    def unit(self) -> str:
        return SCORE_UNITS[self.objective]

    @property
    def half_width(self) -> float | None:
        """In `unit`."""
        return None if self.half_width_fraction is None else self.half_width_fraction * self.value


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
