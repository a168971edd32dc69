"""The device's memory behind one face: CUDA's caching allocator, or on the CPU this process's resident memory."""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from loadtune.bench import own_memory
from loadtune.host.memory import read_ram

# Left behind by a healthy failure at most: cuBLAS keeps a workspace of 32 MiB a handle and stream on Hopper, the
# backward pass runs in a thread with handles of its own, and cuBLASLt keeps as much again. What a step leaks is
# activations, which are far more.
_CUDA_SLACK_BYTES = 256 << 20

RESERVE = 0.1
"""Share of the RAM that a CPU's budget leaves alone. Below a tenth available (and of free swap), earlyoom ends the
largest process; and it is what page cache, loader workers and everybody else's growth during a run have to live in."""

# Elements a thread: PyTorch splits an elementwise operation into pieces of this many (at::internal::GRAIN_SIZE).
_GRAIN = 32_768

_LATER_BYTES = 1 << 30
"""What an idle bench may still take outside the allocator, for kernels and libraries' workspaces."""


class DeviceMemory(Protocol):
    """What the bench asks about memory. ``peak_bytes`` counts from `reset_peaks`."""

    def capacity_bytes(self) -> int: ...

    def budget_bytes(self) -> int:
        """What this process may have of it at most, its own share included."""
        ...

    def reset_peaks(self) -> None: ...

    def peak_bytes(self) -> int: ...

    def peak_reserved_bytes(self) -> int | None: ...

    def outside_bytes(self) -> int | None:
        """What this process holds of the device outside the allocator: context, libraries. None: not known."""
        ...

    def num_retries(self) -> int | None:
        """Times the allocator gave its cache back and tried again, since the process began."""
        ...

    def capped(self) -> AbstractContextManager[None]:
        """While this context is entered, going over the budget raises instead of taking what others need."""
        ...

    def recovers(self) -> bool:
        """Free everything that can be freed; True: what is in use is back where it was when idle."""
        ...

    def remember_idle(self) -> None:
        """What is in use now is what an idle bench holds."""
        ...

    def free_pinned(self) -> None:
        """Give back the page-locked host memory that PyTorch keeps for the next batch to pin."""
        ...

    def pinned_bytes(self) -> int | None:
        """Page-locked host memory that PyTorch holds, in use or kept. None: not told."""
        ...

    def is_the_hosts(self) -> bool:
        """Whether the device has no memory of its own."""
        ...


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
        available = self._available_bytes()
        if self._most_bytes is None:
            return available
        return min(available, max(0, self._most_bytes - self._own_outside_bytes()))

    def _own_outside_bytes(self) -> int:
        """What counts against a limit outside the allocator: more than a little beyond the idle bench's is others'."""
        outside = self.outside_bytes() or 0
        return outside if self._idle_outside_bytes is None else min(outside, self._idle_outside_bytes + _LATER_BYTES)

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
        if self._free_before is None:
            return None
        return max(0, self._free_before - self._available_bytes())

    def num_retries(self) -> int | None:
        return int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))

    @contextmanager
    def capped(self) -> Iterator[None]:
        self._allow(self.budget_bytes())
        try:
            yield
        finally:
            self._allow_most()

    def _allow_most(self) -> None:
        """Where a limit was asked for it holds for every run, so that a trial above it fails instead of passing it."""
        self._allow(self.capacity_bytes() if self._most_bytes is None else self.budget_bytes())

    def _allow(self, allocated_bytes: int) -> None:
        fraction = min(1.0, allocated_bytes / self.capacity_bytes())
        torch.cuda.set_per_process_memory_fraction(fraction, self._device)

    def recovers(self) -> bool:
        gc.collect()
        try:
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
        except RuntimeError:
            return False  # the context is lost: nothing on this device answers any more
        return torch.cuda.memory_allocated(self._device) <= self._idle_bytes + _CUDA_SLACK_BYTES

    def remember_idle(self) -> None:
        self._idle_bytes = torch.cuda.memory_allocated(self._device)
        if self._idle_outside_bytes is None:
            self._idle_outside_bytes = self.outside_bytes()
        self._allow_most()

    def free_pinned(self) -> None:
        empty = getattr(torch._C, "_host_emptyCache", None)
        if empty is not None:
            empty()

    def pinned_bytes(self) -> int | None:
        return host_books("allocated_bytes", "current")

    def is_the_hosts(self) -> bool:
        return bool(getattr(torch.cuda.get_device_properties(self._device), "is_integrated", False))


class CpuMemory:
    """Resident memory of this process: the CPU's allocator keeps no books. `most_bytes` is as in `CudaMemory`."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._most_bytes = most_bytes
        self._peak = own_memory.PeakRss()

    def capacity_bytes(self) -> int:
        return read_ram().limit_bytes

    def budget_bytes(self) -> int:
        """What is resident now and what is available, less a reserve for the rest of the machine.

        The reserve is `RESERVE` of the RAM, and at most half of what is available, so that a nearly full machine still
        trains small batches.
        """
        ram = read_ram()
        reserve = min(int(RESERVE * ram.limit_bytes), ram.available_bytes // 2)
        free = own_memory.rss_bytes() + ram.available_bytes - reserve
        return free if self._most_bytes is None else min(free, self._most_bytes)

    def reset_peaks(self) -> None:
        self._peak.reset()

    def peak_bytes(self) -> int:
        return self._peak.read_bytes()

    def peak_reserved_bytes(self) -> int | None:
        return None

    def outside_bytes(self) -> int | None:
        return None

    def num_retries(self) -> int | None:
        return None

    def capped(self) -> AbstractContextManager[None]:
        """Refuse allocations beyond the budget, before the kernel has to kill for them."""
        _start_threads()
        return own_memory.growth_limited(self.budget_bytes() - own_memory.rss_bytes())

    def recovers(self) -> bool:
        gc.collect()
        own_memory.give_back_memory()
        return True  # what is not freed shows as resident memory and cannot be told from caches

    def remember_idle(self) -> None:
        pass

    def free_pinned(self) -> None:
        pass

    def pinned_bytes(self) -> int | None:
        return None

    def is_the_hosts(self) -> bool:
        return True


def host_books(figure: str, kind: str) -> int | None:
    """Of PyTorch's allocator of page-locked memory. None: it keeps no such book."""
    try:
        return int(torch.cuda.host_memory_stats_as_nested_dict()[figure][kind])
    except (AttributeError, KeyError):
        return None


def _start_threads() -> None:
    """Have OpenMP start its threads: each maps a stack, and where that is refused OpenMP ends the process."""
    torch.ones(_GRAIN * torch.get_num_threads(), dtype=torch.uint8)


def memory_of(device: torch.device, free_before: int | None = None, most_bytes: int | None = None) -> DeviceMemory:
    """The books of this device, of which `most_bytes` may be held."""
    return CudaMemory(device, free_before, most_bytes) if device.type == "cuda" else CpuMemory(most_bytes)
