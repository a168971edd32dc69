"""How another batch size would go, worked out from what two sizes asked of the allocator. Nothing is run here.

A request whose size is the same at both sizes belongs to the model; any other grows with the batch. Played into a
model of the allocator that tells what fragmentation takes, which no line through peaks can know.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtune.probe.allocator import Block, CachingAllocator, OutOfBudgetError
from loadtune.records import AllocationTrace, FitReport

FAITHFUL = 0.1
"""A forecast that misses what the allocator held at a size that was run by more than this is not used: another version
of PyTorch may follow other rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a size would go."""

    reserved_peak_bytes: int
    num_steady_retries: int
    """Allocator retries within the last step of the trace."""


class Forecast:
    """The allocator's answer to any batch size, under one budget in bytes."""

    def __init__(self, low: AllocationTrace, high: AllocationTrace, budget_bytes: int) -> None:
        self._trace = high
        self._budget_bytes = budget_bytes
        self._fixed = _fixed_sizes(low, high)

    def outcome(self, batch_size: int) -> Outcome | None:
        """None: it would run out of memory."""
        allocator = CachingAllocator(self._budget_bytes, self._trace.idle_bytes)
        blocks: dict[int, Block] = {}
        retries_before = number = 0
        last_step = self._trace.step_starts[-1]
        for at, event in enumerate(self._events(batch_size)):
            if at == last_step:
                retries_before = allocator.num_retries
            if event < 0:
                allocator.free(blocks.pop(-event))
                continue
            number += 1
            try:
                blocks[number] = allocator.allocate(event)
            except OutOfBudgetError:
                return None
        return Outcome(
            reserved_peak_bytes=allocator.reserved_peak_bytes,
            num_steady_retries=allocator.num_retries - retries_before,
        )

    def largest(self, at_least: int, at_most: int) -> int:
        """Largest size between the two that would fit, found by halves; `at_least` is known to."""
        low, high = at_least, at_most + 1
        while high - low > max(1, low // 500):
            middle = (low + high) // 2
            if self.outcome(middle) is None:
                high = middle
            else:
                low = middle
        return low

    def _events(self, batch_size: int) -> Iterator[int]:
        scale = batch_size / self._trace.batch_size
        for event in self._trace.events:
            yield event if event < 0 or event in self._fixed else int(event * scale)


def forecast_from(traces: Sequence[AllocationTrace], checked: FitReport) -> Forecast | None:
    """From the two largest traces; None where there are none, or they do not reproduce the run they come from."""
    if len(traces) < 2 or checked.budget_bytes is None or checked.reserved_peak_bytes is None:
        return None
    low, high = sorted(traces, key=lambda trace: trace.batch_size)[-2:]
    forecast = Forecast(low, high, checked.budget_bytes)
    outcome = forecast.outcome(high.batch_size)
    if outcome is None or abs(outcome.reserved_peak_bytes / checked.reserved_peak_bytes - 1) > FAITHFUL:
        return None
    return forecast


def _fixed_sizes(low: AllocationTrace, high: AllocationTrace) -> frozenset[int]:
    """Request sizes that do not depend on the batch: those of both traces, unless `low` also holds its scaled twin."""
    asked = {event for event in low.events if event > 0}
    return frozenset(
        event
        for event in high.events
        if event > 0 and event in asked and event * low.batch_size // high.batch_size not in asked
    )
