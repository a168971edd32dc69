"""Where the memory of a training step goes: its account, its layers, the largest batch. All bytes are of the device's
memory, each storage counted once and rounded up as CUDA's allocator does.
"""

from dataclasses import dataclass, fields

from loadtune.records.config import Precision

# CUDA's caching allocator hands out multiples of this (c10/cuda/CUDACachingAllocator: kMinBlockSize).
BLOCK_BYTES = 512


def block_bytes(count: int) -> int:
    """What the allocator takes at the least for so many bytes."""
    return -(-count // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLines:
    """The account's lines. Each is counted by itself from the tensors it names; none is what the others leave over."""

    parameters_bytes: int = 0
    """Weights and biases, whether trained or frozen."""
    buffers_bytes: int = 0
    """What a model keeps beside its parameters: running means of batch normalisation."""
    gradients_bytes: int = 0
    """One for each trained parameter: as large as those, in their own dtype also under autocast."""
    optimizer_state_bytes: int = 0
    """0 for plain SGD, as large as the trained parameters for SGD with momentum, twice that for Adam and AdamW."""
    activations_bytes: int = 0
    """What the forward pass keeps for the backward pass, without parameters and input. Grows with the batch."""
    input_bytes: int = 0
    """The batch itself: inputs and targets."""
    temporary_bytes: int = 0
    """Tensors that an operation made and nothing above keeps: outputs on their way, gradients of activations."""
    workspace_bytes: int | None = None
    """What libraries take without a tensor. None, here and below: not seen without running."""
    rounding_bytes: int | None = None
    """What the allocator gives beyond the next multiple of 512 bytes, where it leaves a block whole."""

    @property
    def total_bytes(self) -> int:
        return sum(getattr(self, field.name) or 0 for field in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAccount:
    """One training step: forward pass, loss, backward pass, optimizer."""

    model: str
    precision: Precision
    optimizer: str
    batch_size: int
    input_shape: tuple[int, ...]
    """Of one sample, without the batch dimension."""
    estimated: bool
    """True: worked out from shapes, nothing was run. False: measured."""
    num_parameters: int
    largest: MemoryLines
    """Each line at its own largest within the step; they are not all largest at the same moment."""
    at_peak: MemoryLines
    """What each line held at the moment of the step's peak: these add up to it, but for `unexplained_bytes`."""
    peak_bytes: int
    """Most that was alive at one moment of a step whose optimizer has its state already."""
    fragmentation_bytes: int | None = None
    """Held by the allocator and not in use at the peak. None: there is no CUDA allocator to ask."""
    outside_bytes: int | None = None
    """Held by the process outside the allocator: context, libraries. None: there is no CUDA device to ask."""
    step_s: float | None = None
    """Wall time of one step. None: nothing was run."""

    @property
    def unexplained_bytes(self) -> int:
        """Of the peak, what none of the lines accounts for; below 0 where they account for more."""
        return self.peak_bytes - self.at_peak.total_bytes


@dataclass(slots=True, kw_only=True)
class LayerFootprint:
    """One layer in the order of calls; a layer called twice comes twice."""

    name: str
    """Path within the model; ``(loss)`` for what comes after it."""
    kind: str
    """Its class."""
    output_shape: tuple[int, ...] | None = None
    """Of the first tensor it returns. None: it returns none."""
    num_parameters: int
    """Of its own. Each parameter counts once: a layer that is called again has 0 from its second row on."""
    kept_bytes: int = 0
    """What autograd keeps on account of this layer and no earlier one kept already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEstimate:
    """Largest batch for an amount of memory, by a line through two estimated sizes. Nothing was run: an estimate."""

    memory_bytes: int
    context_bytes: int
    """Taken off for what CUDA holds outside the allocator."""
    fixed_bytes: float
    """The line at batch 0."""
    bytes_per_sample: float
    batch_size: int
    """0: not even one sample fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FootprintReport:
    """What ``loadtune memory`` found."""

    account: StepAccount
    """Measured where there is a GPU and nothing else was asked for, else estimated."""
    estimate: StepAccount | None = None
    """The same step by shapes, beside one that was measured. None: `account` is that, or shapes alone cannot tell."""
    layers: tuple[LayerFootprint, ...] = ()
    """Empty: not asked for."""
    largest_batch: BatchEstimate | None = None
    """None: no memory was named."""
