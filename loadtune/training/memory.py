"""The device's memory: CUDA's caching allocator, or on the CPU this process's resident memory.

Both have the same methods. ``peak_bytes`` counts from `reset_peaks`. None: nothing counts it.
"""

import ctypes
import gc
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from loadtune.host.usable import parse_counters, read_ram, read_text

# Left behind by a healthy failure at most: workspaces of cuBLAS, 32 MiB a handle and stream on Hopper, and as much of
# cuBLASLt. What a step leaks is activations, which are far more.
_CUDA_SLACK_BYTES = 256 << 20

RESERVE = 0.1
"""Share of the RAM that a CPU's budget leaves to page cache, loader workers and others. Below a tenth available,
earlyoom ends the largest process."""

_LATER_BYTES = 1 << 30
"""What an idle training may still take outside the allocator, for kernels and libraries' workspaces."""

_KEPT_SHARE = 0.15
"""Of the RAM that would be available without them: page-locked blocks that are kept from trial to trial. PyTorch reuses
a block for its own size alone, and a trial that locks a queue of 16 workers anew takes 2 to 5 s more."""

# Elements a thread: PyTorch splits an elementwise operation into pieces of this many (at::internal::GRAIN_SIZE).
_GRAIN = 32_768


class CudaMemory:
    """Figures of the caching allocator for one device; `free_before`: what was free before this process had a context.

    Others' share is taken to be what it was then, because the driver does not tell in containers whose memory is whose.
    `most_bytes` is what this process may hold at all, its context included; None: whatever is free.
    """

    def __init__(self, device: torch.device, free_before: int | None = None, most_bytes: int | None = None) -> None:
        self._device = device
        self._free_before = free_before
        self._most_bytes = most_bytes
        self._idle_bytes = 0
        self._idle_outside_bytes: int | None = None

    def capacity_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]

    def budget_bytes(self) -> int:
        """What this process may have of it at most, its own share included."""
        available = self._available_bytes()
        if self._most_bytes is None:
            return available
        outside = self.outside_bytes() or 0
        if self._idle_outside_bytes is not None:  # more than a little beyond what the idle training had is others'
            outside = min(outside, self._idle_outside_bytes + _LATER_BYTES)
        return min(available, max(0, self._most_bytes - outside))

    def _available_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0] + torch.cuda.memory_reserved(self._device)

    def reset_peaks(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)

    def peak_reserved_bytes(self) -> int | None:
        return torch.cuda.max_memory_reserved(self._device)

    def outside_bytes(self) -> int | None:
        """What this process holds of the device outside the allocator: context, libraries."""
        return None if self._free_before is None else max(0, self._free_before - self._available_bytes())

    def num_retries(self) -> int | None:
        """Times the allocator gave its cache back and tried again, since the process began."""
        return int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))

    @contextmanager
    def capped(self) -> Iterator[None]:
        """While this context is entered, going over the budget raises instead of taking what others need."""
        self._allow(self.budget_bytes())
        try:
            yield
        finally:
            self._allow_most()

    def _allow_most(self) -> None:
        """A limit that was asked for holds for every run, so that a trial above it fails instead of passing it."""
        self._allow(self.capacity_bytes() if self._most_bytes is None else self.budget_bytes())

    def _allow(self, allocated_bytes: int) -> None:
        fraction = min(1.0, allocated_bytes / self.capacity_bytes())
        torch.cuda.set_per_process_memory_fraction(fraction, self._device)

    def recovers(self) -> bool:
        """Free everything that can be freed; True: what is in use is back where it was when idle."""
        gc.collect()
        try:
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
        except RuntimeError:
            return False  # the context is lost: nothing on this device answers any more
        return torch.cuda.memory_allocated(self._device) <= self._idle_bytes + _CUDA_SLACK_BYTES

    def remember_idle(self) -> None:
        """What is in use now is what an idle training holds."""
        self._idle_bytes = torch.cuda.memory_allocated(self._device)
        if self._idle_outside_bytes is None:
            self._idle_outside_bytes = self.outside_bytes()
        self._allow_most()

    def free_pinned(self) -> None:
        """Give back the page-locked host memory that PyTorch keeps for later batches, where that is too much."""
        stats = _page_lock_stats()
        held = int(stats.get("allocated_bytes.current", 0))
        if not stats or held > _KEPT_SHARE * (read_ram().available_bytes + held):
            torch._C._host_emptyCache()


class CpuMemory:
    """Resident memory of this process: the CPU's allocator keeps no books.

    The peak is the kernel's high-water mark, started anew where that works. Else a mark that has risen since is the
    peak, and instead of one that has not, what is resident when it is read.
    """

    _stale_mark = 0

    def __init__(self, num_ranks: int = 1) -> None:
        """``num_ranks``: that share what is available."""
        self._num_ranks = num_ranks

    def capacity_bytes(self) -> int:
        return read_ram().limit_bytes

    def budget_bytes(self) -> int:
        """What is resident now and what is available, less `RESERVE` of the RAM, at most half of what is available: a
        nearly full machine still trains small batches."""
        ram = read_ram()
        reserve = min(int(RESERVE * ram.limit_bytes), ram.available_bytes // 2)
        return rss_bytes() + (ram.available_bytes - reserve) // self._num_ranks

    def reset_peaks(self) -> None:
        with suppress(OSError):  # sandboxes may refuse it, or ignore it
            (_OWN / "clear_refs").write_text("5")  # see proc(5)
        mark = status_bytes("VmHWM") or 0
        # Believed where it came down to what is resident: a stale mark would be some earlier, larger batch's.
        # 5%: the two numbers are read one after the other.
        self._stale_mark = 0 if mark <= rss_bytes() * 1.05 else mark

    def peak_bytes(self) -> int:
        mark = status_bytes("VmHWM") or 0
        return max(mark if mark > self._stale_mark else 0, rss_bytes())

    def num_retries(self) -> int | None:
        return None

    peak_reserved_bytes = outside_bytes = num_retries

    @contextmanager
    def capped(self) -> Iterator[None]:
        """Refuse allocations beyond the budget, before the kernel has to kill for them.

        The limit is on what is mapped (VmData), so what was mapped earlier and never touched, 0.25 GiB, comes on top.
        Nothing is limited where the kernel does not count it, and nothing is loosened that somebody else has set.
        """
        # OpenMP starts its threads: each maps a stack, and where that is refused OpenMP ends the process.
        torch.ones(_GRAIN * torch.get_num_threads(), dtype=torch.uint8)
        room, mapped = max(0, self.budget_bytes() - rss_bytes()), status_bytes("VmData")
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        # Below 0 stands for none, as in RLIM_INFINITY.
        limits = [limit for limit in (-1 if mapped is None else mapped + room, soft, hard) if limit >= 0]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits, default=soft), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def recovers(self) -> bool:
        """True: what is not freed shows as resident memory and cannot be told from caches."""
        gc.collect()
        with suppress(OSError, AttributeError):  # glibc keeps freed heap, in which one batch's peak would stand
            ctypes.CDLL(None).malloc_trim(0)
        return True

    def remember_idle(self) -> None: ...

    free_pinned = remember_idle


DeviceMemory = CudaMemory | CpuMemory


def _page_lock_stats() -> Mapping[str, Any]:
    """Of the allocator of page-locked memory. Empty: this torch keeps none, as 2.6."""
    return getattr(torch.cuda, "host_memory_stats", dict)()


def page_lock_s(device: torch.device) -> float | None:
    """Seconds this process has spent on page-locking memory for pinned batches. None: without CUDA, or not known."""
    stats = _page_lock_stats() if device.type == "cuda" else {}
    return stats.get("host_alloc_time.total", 0) / 1e6 if stats else None


_OWN = Path("/proc/self")


def rss_bytes() -> int:
    """Resident memory right now; 0 where the platform does not say."""
    return status_bytes("VmRSS") or 0


def status_bytes(field: str) -> int | None:
    """A field of ``/proc/self/status``. None: not there."""
    return parse_counters(read_text(_OWN / "status")).get(field)
