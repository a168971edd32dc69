"""How large a batch may be for a step to stay quick.

A step of two samples is mostly what every step costs, so a rate read off it says little of a larger one. With 0.1 s a
step whatever its size, a limit of 0.6 s is at 12 samples by the rate, and at 500 by a line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

OVERSHOOT = 2.0
"""Times the limit that a step takes at most where the line is wrong altogether and a step grows with its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimit:
    """On the time of one training step."""

    seconds: float
    known: Mapping[int, float] = field(default_factory=dict)
    """Seconds of a step by batch size, timed before under the same recipe. Empty: nothing is known."""
    admitted: int = 1
    """Batches up to this size are never too slow: somebody named it."""

    def largest(self, step_s: Mapping[int, float]) -> int | None:
        """The largest batch to try, by the steps in `known` and in `step_s`. None: no step was timed."""
        both = {**self.known, **step_s}
        quickest = {size: min(self.known.get(size, took), took) for size, took in both.items()}
        return max(self.admitted, largest_within(self.seconds, quickest)) if quickest else None


def largest_within(limit_s: float, step_s: Mapping[int, float]) -> int:
    """The largest batch whose step is predicted to stay within `limit_s`; `step_s` holds seconds above 0 by batch size.

    A line through the largest size and one at most half as large says what further samples cost. It is trusted to
    `OVERSHOOT` times what the best rate alone allows: n times the batch takes n times as long at most. One size alone
    may be doubled where its own step is within the limit.
    """
    surely = limit_s * max(size / took for size, took in step_s.items())
    last = max(step_s)
    if len(step_s) == 1:
        return max(int(surely), 2 * last if step_s[last] <= limit_s else 0)
    smaller = max((size for size in step_s if 2 * size <= last), default=min(step_s))
    per_sample_s = (step_s[last] - step_s[smaller]) / (last - smaller)
    most = OVERSHOOT * surely
    predicted = last + (limit_s - step_s[last]) / per_sample_s if per_sample_s > 0 else most
    return int(min(max(predicted, surely), most))
