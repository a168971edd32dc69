"""What memory looked like when something failed: the evidence by which an ambiguous error is judged.

In: the device's memory before a request and after it failed. Out: plain numbers, so that judging them needs neither a
GPU nor a failure. A module of its own because texts alone do not tell: the same words of cuDNN mean "no memory for a
workspace" at one size and "cannot do this at all" at another.
"""

from dataclasses import dataclass

from loadtune.bench.memory import DeviceMemory
from loadtune.host.memory import read_oom_kills


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """How things stood at a failure. None: not known."""

    on_cuda: bool = True
    budget_bytes: int | None = None
    """What this process could have had of the device's memory."""
    peak_bytes: int | None = None
    """The most it held of it since the request began, the allocator's cache included."""
    num_retries: int | None = None
    """Times the allocator gave its cache back since the request began: it does that when the device is full."""
    oom_kills: int | None = None
    """Processes the kernel killed for lack of memory since the request began."""

    @property
    def memory_was_short(self) -> bool | None:
        """Whether running out of memory is a likely cause. None: nothing is known.

        A library asks for a workspace of about the size of what it works on, and a step holds all that at once, so a
        request that fails while more is free than the step ever held was not refused for its size: memory was short
        only where more than half of the budget was held. The allocator's retries say so at any level.
        """
        if self.num_retries:
            return True
        if self.budget_bytes is None or self.peak_bytes is None:
            return None
        return 2 * self.peak_bytes > self.budget_bytes


class Witness:
    """Looks at memory when a request begins, to tell afterwards how things stood when it failed."""

    def __init__(self, memory: DeviceMemory, *, on_cuda: bool) -> None:
        self._memory, self._on_cuda = memory, on_cuda
        self.budget_bytes = memory.budget_bytes()
        memory.reset_peaks()
        self._retries, self._kills = memory.num_retries(), read_oom_kills()

    def testify(self) -> Circumstances:
        """Asked after the failure, of the allocator's own books alone: the device's context may be lost."""
        memory = self._memory
        return Circumstances(
            on_cuda=self._on_cuda,
            budget_bytes=self.budget_bytes,
            peak_bytes=max(memory.peak_bytes(), memory.peak_reserved_bytes() or 0),
            num_retries=increase(self._retries, memory.num_retries()),
            oom_kills=increase(self._kills, read_oom_kills()),
        )


def increase(before: int | None, now: int | None) -> int | None:
    """How much a counter rose. None: it could not be read both times."""
    return None if before is None or now is None else now - before
