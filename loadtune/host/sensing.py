"""What a probe is. Its figures are named as the fields of `Telemetry` that they end up in, or as what makes those."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Count(NamedTuple):
    """A counter that only grows. Its figure is the growth per second."""

    total: float
    of: Any = None
    """Who is counted: growth is known between two counts of the same."""


Look = Mapping[str, Any]
"""Figure → its value since the last look, a `Count`, or None: nothing to say now."""


@dataclass(slots=True)
class Probe:
    """Looks at one part of the machine. Looks that cost more than their share come less often."""

    figures: Sequence[str]
    look: Callable[[], Look]
    """What is to be seen right now. May raise: then its figures are missing, with the error as the reason."""
    every: int = 1
    """Readings from one look to the next."""
    due_s: float = 0.0
    costs_s: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    """CPU time of the last looks. Their median counts, because now and then one is disturbed."""
