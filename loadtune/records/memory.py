"""What fits: one tried batch, and the ceiling they add up to."""

from dataclasses import dataclass
from typing import Literal

from loadtune.records.configs import Precision
from loadtune.records.timing import TrialFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """One batch size that was really trained for a few steps, or how it failed."""

    precision: Precision
    batch_size: int
    failure: TrialFailure | None = None
    """None: it fits."""
    first_step_peak_bytes: int | None = None
    """Allocated peak of the first step, in which the optimizer's state appears. On CPU: resident memory."""
    steady_peak_bytes: int | None = None
    """Allocated peak of the later steps."""
    reserved_peak_bytes: int | None = None
    """Peak of what the allocator held from the driver. None on CPU."""
    num_alloc_retries: int | None = None
    """Times the allocator had to give its cache back and try again: above 0 the size fits, but not comfortably."""
    budget_bytes: int | None = None
    """What the allocator could have taken at most when this ran: free memory plus its own."""
    step_s: float | None = None
    """Wall time of the last step. None: no step was finished."""
    seconds: float = 0.0
    """What this probe took, all told."""

    @property
    def fits(self) -> bool:
        return self.failure is None

    @property
    def peak_bytes(self) -> int | None:
        """The larger of the two peaks."""
        known = [peak for peak in (self.first_step_peak_bytes, self.steady_peak_bytes) if peak is not None]
        return max(known, default=None)


CeilingLimit = Literal["memory", "dataset", "cap", "host_memory", "time"]
"""What keeps the batch from being larger: the device's memory, the dataset's length, ``--max-batch-size``, the RAM and
/dev/shm that hold prefetched batches, or that one step would eat too large a share of the time budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCeiling:
    """The largest batch that was seen to train in one precision, and how it was found."""

    precision: Precision
    batch_size: int
    """Largest that was run and fits."""
    limit: CeilingLimit
    probes: tuple[FitReport, ...]
    """In the order they were run."""
    bytes_per_sample: float | None = None
    """Slope of the line through allocated peaks. None: fewer than two sizes were run."""
    fixed_bytes: float | None = None
    """The line at batch 0: model, gradients, optimizer state."""

    @property
    def first_failed(self) -> int | None:
        """Smallest size that ran out of memory. None: none was seen to."""
        return min((probe.batch_size for probe in self.probes if not probe.fits), default=None)

    @property
    def peak_bytes(self) -> int | None:
        """Allocated peak at the ceiling itself."""
        return next((p.peak_bytes for p in self.probes if p.fits and p.batch_size == self.batch_size), None)
