"""What a machine offers, and what the training process found out about the workload: plain data, judged elsewhere."""

from dataclasses import dataclass, field, replace

from loadtune.records.config import LoaderConfig, Precision


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
    """Those that hold memory of it, most first. In many containers the driver names none: see `others_bytes`."""
    driver_bytes: int | None = None
    """Memory that the driver keeps for itself: 0.60 GiB on an H200. None: the driver does not say."""

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
    """Size of /dev/shm, through which workers send batches. 0: missing or read-only. None: the platform has none."""
    shm_free_bytes: int | None
    gpus: tuple[GpuFacts, ...]
    """Empty: no NVIDIA GPU, or none visible to this process."""

    def shared_by(self, num_ranks: int) -> "HostFacts":
        """What one of so many has."""
        return replace(
            self,
            num_usable_cores=max(1, self.num_usable_cores // num_ranks),
            ram_available_bytes=self.ram_available_bytes // num_ranks,
            ram_limit_bytes=self.ram_limit_bytes // num_ranks,
            shm_free_bytes=self.shm_free_bytes and self.shm_free_bytes // num_ranks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where the training runs."""

    kind: str
    """``cuda`` or ``cpu``."""
    uuid: str | None = None
    """Of the GPU; None on CPU."""
    name: str
    """GPU or CPU model, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePart:
    """The fingerprint of a part of the workload's code."""

    name: str
    """A file of the user, such as ``pkg/mod.py``, or a description, such as ``the model's layers``."""
    sha256: str
    """SHA-256 of its content, in hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """What the training process found when it built the workload and trained one small batch of it."""

    dataset_length: int | None
    """Samples of an epoch: as many as the loader's sampler draws. None: a stream or a sampler that does not tell."""
    input_shape: tuple[int, ...]
    """Of one sample's first tensor, without the batch dimension: (C, H, W) for images."""
    input_dtype: str
    sample_bytes: int
    """Bytes of one sample in a batch, all tensors of it; the mean where samples differ."""
    sample_s: float
    """Seconds in which one process with one thread loads one sample: mean without the slowest tenth of samples."""
    num_classes: int
    num_parameters: int | None
    """None: a script, which does not show its models."""
    precisions: tuple[Precision, ...]
    """The precisions that this device computes natively, fp32 first."""
    min_batch_size: int
    """Smallest batch that the model trains on: 2 if it raises at 1, as batch normalisation does, else 1."""
    device_name: str
    memory_capacity_bytes: int
    """Total memory of the device; on CPU the RAM limit in force."""

    sample_cpu_s: float | None = None
    """CPU seconds of that; the rest is waiting for storage, a network or a timer. None: not measured."""
    code: tuple[CodePart, ...] = ()
    torchvision: str | None = None
    """Its version. None: the job does not use it."""
    own_loader: LoaderConfig | None = None
    """Settings of the user's own ``DataLoader``. None: the workload names a dataset."""
    loader_place: str | None = None
    """``train.py:33``, where the script makes or iterates the DataLoader that it trains on. None: a described job."""
    own_precision: Precision | None = None
    """What the script trains in as it is. None: a described job."""
    autocast_places: tuple[str, ...] = ()
    """``FILE:LINE`` of the script's own autocasts that are switched off around its forward pass."""
    cudnn_benchmark: bool = False
    """Whether the script sets it on a GPU. It is off while settings are measured: each new size would take seconds."""
    loader_class: str | None = None
    """Name of the user's own subclass of ``DataLoader``. None: it is ``DataLoader`` itself, or there is a dataset."""
    fixed_batch_size: int | None = None
    """The only batch size, where the user's batch sampler or dataset makes the batches. None: any can be chosen."""
    num_ranks: int = 1
    """Processes of this machine that train together. All other figures are those of one."""
    budgets_bytes: dict[str, int] = field(default_factory=dict)
    """Of the device's memory: what each rank may take, by its number. Empty: a described job."""
    max_workers: int | None = None
    """Workers beyond which samples would repeat: 1 for a stream that is not shared out. None: no bound."""
    largest_sample_bytes: int | None = None
    """Of the largest sample that was seen. None: all samples have one size."""
    batch_is_mapping: bool = False
    """Whether a batch is a mapping, whose entries are the model's keyword arguments unless the user has a loss."""
    takes_channels_last: bool = False
    """Whether batches are 4-D tensors, for which channels_last exists, and the script's weights can be laid out so."""
    own_batches: bool = False
    """Whether the user's loss or step takes batches as they are: the loss is called with (model, batch)."""

    @property
    def smallest_batch(self) -> int:
        """Smallest batch that can be trained: the only one where the batch size is fixed."""
        return self.fixed_batch_size or self.min_batch_size

    @property
    def largest_batch(self) -> int | None:
        """Largest batch that an epoch has samples for. None: a stream or a sampler that does not tell its length."""
        return self.fixed_batch_size or self.dataset_length
