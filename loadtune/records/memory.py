"""The device's memory. What fits: one tried batch, and the ceiling they add up to. And where the memory of a training
step goes: its account, its layers, the largest batch; there each storage counts once, rounded up as CUDA's allocator
does."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from loadtune.records.config import Precision, Recipe
from loadtune.records.measurement import TrialFailure
from loadtune.units import MISSING, bytes_text

NUM_STEPS = 3
"""Full ones: the first makes the optimizer's state, and the last repeats what every later step does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTry:
    """One batch size to be trained for `NUM_STEPS` steps, from a fresh state."""

    recipe: Recipe
    batch_size: int
    trace: bool = False
    """Also record what is asked of the allocator, where the device has one that tells."""
    verify: bool = False
    """Put an evaluation pass and, where it is given, a step on `partial_batch_size` samples before the last step."""
    partial_batch_size: int | None = None
    """What the dataset leaves over at this size. None: nothing that trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationTrace:
    """What training one size asked of CUDA's caching allocator, in order: enough to work out how another size goes."""

    batch_size: int
    idle_bytes: int
    """What the allocator held from the driver before the first event."""
    events: tuple[tuple[int, int], ...]
    """Address of a block, and the bytes that were asked for. 0: it is given back, also one from before the trace."""
    step_starts: tuple[int, ...]
    """Where in `events` each training step begins."""


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
    """Times the allocator had to give its cache back and try again, all steps together. None on CPU."""
    num_steady_retries: int | None = None
    """The same within the last full step alone: above 0 the size fits, but steps keep paying. None: not verified."""
    budget_bytes: int | None = None
    """What the allocator could have taken at most when this ran: free memory plus its own."""
    step_s: float | None = None
    """Of the quickest full step after the first, which loads and allocates. None: there was none."""
    seconds: float = 0.0
    """What this probe took, all told."""
    allocations: AllocationTrace | None = None
    """Where a trace was asked for; taken off before the report is kept."""

    @property
    def fits(self) -> bool:
        return self.failure is None

    @property
    def peak_bytes(self) -> int | None:
        """The larger of the two peaks."""
        known = [peak for peak in (self.first_step_peak_bytes, self.steady_peak_bytes) if peak is not None]
        return max(known, default=None)


CeilingLimit = Literal["memory", "failure", "dataset", "fixed", "cap", "host_memory"]
"""What keeps the batch from being larger."""

LIMIT_TEXT: Mapping[CeilingLimit, str] = {
    "memory": "memory",
    "failure": "an error at larger batches that is not out of memory",
    "dataset": "the length of an epoch",
    "fixed": "your loader, which makes batches of this size only",
    "cap": "max_batch_size",
    "host_memory": "RAM: prefetched batches would not fit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCeiling:
    """The largest batch size that trains in one precision, and every size that was tried. ``print`` shows a table."""

    precision: Precision
    batch_size: int
    """The largest that was run and trains. If not ``verified``: the largest that is predicted to fit."""
    safe_batch_size: int
    """The largest to train with for hours: memory is left over, and PyTorch's allocator did not have to free its cache
    in a steady step. It was run as well; if not ``verified``, predicted with the same margins."""
    limit: CeilingLimit
    """Why no larger size trains."""
    probes: tuple[FitReport, ...]
    """The sizes that were tried, in this order."""
    capacity_bytes: int | None = None
    """Total memory of the device; on CPU the RAM limit in force."""
    budget_bytes: int | None = None
    """What training could take when the ceiling was found."""
    verified: bool = True
    """Whether ``batch_size`` and ``safe_batch_size`` were run. False: both are predicted from smaller sizes."""

    @property
    def peak_bytes(self) -> int | None:
        """Allocated peak at the ceiling itself. None: not known, or the ceiling is predicted."""
        return next((p.peak_bytes for p in self.probes if p.fits and p.batch_size == self.batch_size), None)

    def __str__(self) -> str:
        """A table of at most 80 columns: every size that was run, smallest first."""
        lines = [
            f"{'Largest' if self.verified else 'Predicted largest'} batch size in {self.precision}: "
            f"{self.batch_size:,}; safe batch size: {self.safe_batch_size:,}",
            f"Limited by {LIMIT_TEXT[self.limit]}.",
            "",
            "  batch size   allocated    reserved  retries  result",
        ]
        for each in sorted(self.probes, key=lambda report: report.batch_size):
            marks = {"largest": self.batch_size, "safe": self.safe_batch_size}
            outcome = ", ".join(["trained", *(name for name, size in marks.items() if size == each.batch_size)])
            if each.failure is not None:
                outcome = "out of memory" if each.failure.is_of_memory else f"failed: {each.failure.kind}"
            peaks = f"{bytes_text(each.peak_bytes):>12}{bytes_text(each.reserved_peak_bytes):>12}"
            retries = MISSING if each.num_alloc_retries is None else f"{each.num_alloc_retries:,}"
            lines.append(f"{each.batch_size:>12,}{peaks}{retries:>9}  {outcome}")
        lines += ["", "Peak memory as PyTorch's allocator counts it; on a CPU, resident memory."]
        if self.budget_bytes is not None:
            capacity = "" if self.capacity_bytes is None else f" of {bytes_text(self.capacity_bytes)}"
            lines.append(f"Memory for training: {bytes_text(self.budget_bytes)}{capacity}.")
        return "\n".join(lines)


# Where the memory of a step goes

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
