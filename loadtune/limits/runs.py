"""The sizes of one recipe that were run, and what they say together about other sizes."""

from dataclasses import dataclass, replace

from loadtune.limits.forecast import Forecast, forecast_from
from loadtune.limits.step_limit import StepLimit
from loadtune.records.config import Recipe
from loadtune.records.memory import AllocationTrace, BatchTry, FitReport
from loadtune.seams import Training

ROOM = 0.95
"""Of the memory at the hard ceiling, at most, for a size to be used for hours. The 5% are for what a few steps do not
show: other libraries' buffers, an evaluation with other sizes, fragmentation that grows."""

CLOSE_TO_LIMIT = 0.8
"""Of a size that the time of a step allows: nearer than that is not worth another run of such steps."""


@dataclass(frozen=True, slots=True)
class Line:
    """Allocated peak over batch size, in bytes."""

    slope: float
    at_zero: float

    def bytes_at(self, batch_size: int) -> float:
        return self.at_zero + self.slope * batch_size

    def size_at(self, num_bytes: float) -> float:
        return (num_bytes - self.at_zero) / self.slope


class Runs:
    """Runs sizes and remembers."""

    def __init__(
        self,
        training: Training,
        recipe: Recipe,
        num_steps: int,
        *,
        smallest: int,
        cap: int,
        dataset_length: int | None,
        step_limit: StepLimit | None,
    ) -> None:
        self._training, self._num_steps, self._dataset_length = training, num_steps, dataset_length
        self._cap = cap
        self.recipe, self.smallest, self.step_limit = recipe, smallest, step_limit
        self.reports: list[FitReport] = []
        self.verified: set[int] = set()
        """Sizes that were run with all that an epoch brings, however that ended."""
        self.forecast: Forecast | None = None
        """Once two sizes recorded what they asked of the allocator."""
        self.end: int | None = None
        """Largest size that the forecast, or else the line, says fits. None: nothing to go by."""
        self._traces: list[AllocationTrace] = []

    def run(self, batch_size: int, *, trace: bool = False, verify: bool = False) -> FitReport:
        """Try this size."""
        # The dataset's last partial batch, where there is one that trains.
        left = (self._dataset_length or 0) % batch_size
        trains = verify and left >= self.smallest and batch_size < (self._dataset_length or 0)
        report = self._training.try_batch(
            BatchTry(
                recipe=self.recipe,
                batch_size=batch_size,
                num_steps=self._num_steps,
                trace=trace,
                verify=verify,
                partial_batch_size=left if trains else None,
            )
        )
        self.reports.append(replace(report, allocations=None))
        if verify:
            self.verified.add(batch_size)
        if report.allocations is not None:
            self._traces.append(report.allocations)
            self.forecast = forecast_from(self._traces, self.fitting[-1])
        self.end = self._predicted_end()
        return report

    def _predicted_end(self) -> int | None:
        budget = self.fitting[-1].budget_bytes if self.fitting else None
        if self.line is None or budget is None:
            return None
        by_line = int(self.line.size_at(budget))
        if self.forecast is None or by_line <= self.largest:
            return max(by_line, self.largest)
        return self.forecast.largest(self.largest, int(by_line * 1.05))

    @property
    def cap(self) -> int:
        """No larger size is tried: there is a bound on it, or its step is predicted to take too long."""
        quick = self.quick_cap
        return self._cap if quick is None else min(self._cap, quick)

    @property
    def quick_cap(self) -> int | None:
        """Largest batch whose step stays within the limit; what was run is never above it. None: no limit, no step."""
        timed = sorted(((r.step_s, r.batch_size) for r in self.fitting if r.step_s), reverse=True)  # quickest last
        size = None if self.step_limit is None else self.step_limit.largest({size: took for took, size in timed})
        if self.step_limit is None or size is None or not self.fitting:
            return size
        return self.largest if self.largest >= max(CLOSE_TO_LIMIT * size, self.step_limit.admitted) else size

    @property
    def fitting(self) -> list[FitReport]:
        return sorted((r for r in self.reports if r.fits), key=lambda r: r.batch_size)

    @property
    def largest(self) -> int:
        return self.fitting[-1].batch_size

    @property
    def standing(self) -> list[FitReport]:
        """Those of `fitting` that did not fail when they were verified; all of them where each did."""
        failed = {r.batch_size for r in self.reports if not r.fits}
        return [r for r in self.fitting if r.batch_size not in failed] or self.fitting

    @property
    def wall(self) -> int | None:
        """Smallest size that did not fit."""
        return min((r.batch_size for r in self.reports if not r.fits), default=None)

    @property
    def line(self) -> Line | None:
        """Through the smallest and the largest that fit. None: fewer fit, or memory does not grow with the batch."""
        known = [(r.batch_size, r.peak_bytes) for r in self.fitting if r.peak_bytes is not None]
        if not known or known[0][0] == known[-1][0]:
            return None
        (x0, y0), (x1, y1) = known[0], known[-1]
        slope = (y1 - y0) / (x1 - x0)
        return Line(slope, y1 - slope * x1) if slope > 0 else None

    @property
    def largest_comfortable(self) -> int | None:
        """Largest verified size with room above it and no allocator retries in a steady step. None: none yet."""
        sizes = [r.batch_size for r in self.fitting if r.batch_size in self.verified and not r.num_steady_retries]
        return max((size for size in sizes if self.has_room(size)), default=None)

    def with_share(self, batch_size: int, share: float) -> int:
        """The size that takes `share` of the memory that `batch_size` takes.

        Where most of that is the model's own, or a CPU process's, the batch gives way by three times the difference.
        """
        if self.line is None:
            return int(batch_size * share)
        give_way = batch_size * 3 * abs(1 - share)
        size = self.line.size_at(share * self.line.bytes_at(batch_size))
        return int(min(max(size, batch_size - give_way), batch_size + give_way))

    def has_room(self, batch_size: int) -> bool:
        """Whether a size larger by the safety margin would still fit: one did, or the forecast or the line says so."""
        larger = self.with_share(batch_size, 1 / ROOM)
        if self.wall is not None and larger >= self.wall:
            return False
        if larger <= self.largest:
            return True
        if self.forecast is not None:
            return self.forecast.outcome(larger) is not None
        budget, peak = self.fitting[-1].budget_bytes, self.fitting[-1].peak_bytes
        if budget is None or peak is None:
            return True
        return (peak / ROOM if self.line is None else self.line.bytes_at(larger)) <= budget
