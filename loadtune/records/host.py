"""What a machine offers. Made by `loadtune.host`, read by everything else; plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU, as the driver lists it."""

    pid: int
    """The host's: within a container it names no process that can be seen there."""
    name: str | None
    """Its program, without the folder. None: the driver does not say."""
    used_bytes: int | None
    """None: the driver does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU as the driver sees it, at the moment it was read."""

    uuid: str
    """The driver's name for it (``GPU-…``), valid in ``CUDA_VISIBLE_DEVICES``. Never an index: those change."""
    index: int
    """NVML's index, for people to recognise it by; CUDA's own numbering may differ."""
    name: str
    total_bytes: int
    free_bytes: int
    """Free for anybody right now; total minus free is what the driver and other processes hold."""
    utilization_fraction: float | None
    """Share of the last second in which any kernel ran: 1.0 does not mean the chip is full. None under MIG."""
    processes: tuple[GpuProcess, ...] = ()
    """Those that hold memory of it, most first. Empty where none does, and where the driver names none, as it does in
    many containers: `others_bytes` tells the two apart."""
    driver_bytes: int | None = None
    """Memory that the driver reserves for itself, 0.60 GiB on an idle H200; no process can use it. None: the driver
    does not say."""
    num_multiprocessors: int | None = None
    """Streaming multiprocessors (SMs). None: the driver does not say."""
    compute_capability: str | None = None
    """CUDA's version number of the architecture: ``9.0`` of an H200. None: the driver does not say."""

    @property
    def others_bytes(self) -> int | None:
        """Memory allocated by processes, named or not. None: the driver does not say what it reserves itself."""
        if self.driver_bytes is None:
            return None
        return max(0, self.total_bytes - self.free_bytes - self.driver_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What this machine really offers to this process: limits in force, not what the hardware lists."""

    hostname: str
    os: str
    python: str
    torch: str | None
    """Version of the installed torch, read without importing it. None: not installed."""
    cuda: str | None
    """CUDA version torch was built for. None: a CPU build, or unknown."""
    driver: str | None
    """NVIDIA driver version. None: no driver answered."""
    cpu_name: str | None
    num_usable_cores: int
    """Least of CPU affinity and cgroup quota, at least 1: how many processes can really run at once."""
    num_listed_cores: int
    """Logical cores as lscpu counts them; in a container this is the host's number."""
    ram_total_bytes: int
    """Physical memory of the machine."""
    ram_limit_bytes: int
    """Least of physical memory and the cgroup's limit."""
    ram_available_bytes: int
    """What could be taken right now within that limit."""
    shm_total_bytes: int | None
    """Size of /dev/shm, through which workers hand batches over. 0: it is missing or read-only. None: the platform has
    none."""
    shm_free_bytes: int | None
    gpus: tuple[GpuFacts, ...]
    """Empty: no NVIDIA GPU, or none visible to this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where the training runs."""

    kind: str
    """``cuda`` or ``cpu``."""
    uuid: str | None = None
    """Of the GPU; None on CPU."""
    name: str
    """GPU or CPU model, for people."""
