"""Plain PyTorch training of one cell: what a user's own script would do, without a line of loadtune.

The step is the one a probe tries: gradients dropped to None at its start, autocast around forward and loss, the
cell's optimizer, SGD with momentum 0.9 or AdamW at 1e-3.
"""

import re
from dataclasses import dataclass

import memory_cells
import torch
from memory_grid import Cell
from torch.nn.functional import cross_entropy

# What lack of memory looks like, beside the allocator's own exception: libraries and kernels fail in words of theirs.
_OOM = re.compile(
    r"DefaultCPUAllocator|CUDA out of memory|CUDA (driver )?error: out of memory|CUDNN_STATUS_NOT_SUPPORTED"
    r"|CUDNN_STATUS_ALLOC_FAILED|unable to find an engine|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)


def is_oom(error: BaseException) -> bool:
    """Whether it was memory that was lacking."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _OOM.search(str(error)) is not None
    )


@dataclass(frozen=True, slots=True)
class Books:
    """The allocator's figures since the process began; None on a CPU, where there is none."""

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    num_retries: int | None = None


_ahead: dict[str, torch.nn.Module] = {}


def build_ahead(cell: Cell) -> None:
    """Initialise the cell's model on the CPU, for the first `Training` of it: seconds that no device need wait for."""
    torch.manual_seed(0)
    _ahead[cell.model] = getattr(memory_cells, cell.model)()


class Training:
    """A model on the device with its optimizer, from the initial weights."""

    def __init__(self, cell: Cell, device: torch.device) -> None:
        if cell.model not in _ahead:
            build_ahead(cell)
        self.cell, self.device = cell, device
        self.dataset = getattr(memory_cells, cell.dataset)()
        self.model = _ahead.pop(cell.model).to(device).train()
        if cell.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        self.optimizer = make_optimizer(cell, self.model)
        self._dtype = torch.bfloat16 if cell.precision == "bf16" else None

    def make_batch(self, batch_size: int) -> memory_cells.Sample:
        """Random inputs and targets of the dataset's shapes, made on the device."""
        x, y = self.dataset[0]
        format_ = torch.channels_last if self.cell.channels_last else torch.contiguous_format
        inputs = torch.empty((batch_size, *x.shape), dtype=x.dtype, device=self.device, memory_format=format_)
        inputs = inputs.normal_() if x.is_floating_point() else inputs.random_(0, self.cell.num_classes)
        return inputs, torch.randint(
            0, self.cell.num_classes, (batch_size, *torch.as_tensor(y).shape), device=self.device
        )

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, dtype=self._dtype, enabled=self._dtype is not None):
            return loss_of(self.model(inputs), targets)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(inputs, targets).backward()
        self.optimizer.step()

    def evaluate(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.model.eval()
        with torch.no_grad():
            self.loss(inputs, targets)
        self.model.train()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def books(self) -> Books:
        if self.device.type != "cuda":
            return Books()
        retries = int(torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0))
        return Books(torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device), retries)


def make_optimizer(cell: Cell, model: torch.nn.Module) -> torch.optim.Optimizer:
    if cell.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=cell.fused)
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=cell.fused)


def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of (B, K), (B, K, H, W) or (B, T, K) logits."""
    if output.dim() == 3:
        return cross_entropy(output.flatten(0, 1), targets.flatten())
    return cross_entropy(output, targets)


def memory_info(device: torch.device) -> tuple[int | None, int | None]:
    """Free and total bytes of the device, as the driver says; None on a CPU."""
    return torch.cuda.mem_get_info(device) if device.type == "cuda" else (None, None)
