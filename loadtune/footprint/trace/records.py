"""What a traced piece of code did to memory, source line by source line."""

from dataclasses import dataclass
from typing import Literal

TensorKind = Literal["Tensor", "Parameter", "gradient", "optimizer state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTensor:
    """A storage, described by the first tensor seen on it; views of it are not listed again."""

    shape: tuple[int, ...]
    dtype: str
    """As PyTorch names it, without ``torch.``: ``float32``."""
    storage_bytes: int
    """Of the whole storage, which may be more than the shape needs."""
    device: str
    kind: TensorKind
    """What it was used as in the end, as far as that was seen."""
    op: str | None = None
    """The operation that returned it: ``aten.addmm``. None: no operation did, or it was not seen."""
    made_file: str | None = None
    """None: it was there before the trace began."""
    made_line: int | None = None
    first_seen: bool = False
    """True: nobody saw it made; the line is where it was first used (NumPy's memory, a loader's batch, C++)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineUse:
    """One device's memory around one line. CPU: storages of live tensors. CUDA: the allocator's own count."""

    in_use_bytes: int
    """After the line."""
    change_bytes: int
    """What this line alone did; lines of functions it called have records of their own."""
    peak_bytes: int
    """Most in use while the line ran, temporary tensors included. Of several visits: the largest of their peaks."""
    unattributed_bytes: int = 0
    """The part of the change that no tensor explains: workspaces, blocks still in use by a stream. CPU: always 0."""
    last_in_use_bytes: int = 0
    """After the last of the visits that this record stands for; equal to `in_use_bytes` for one visit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLine:
    """One visit of a source line, or several that did the same."""

    file: str | None
    """None: what ran outside of every kept file."""
    line: int
    """From 1; 0 where there is no file."""
    function: str
    source: str
    """The line's text without indentation; empty where it cannot be read."""
    cpu: LineUse
    cuda: LineUse | None = None
    """None: CUDA was not in use yet."""
    appeared: tuple[TracedTensor, ...] = ()
    """Made during the line, and still there after it."""
    went: tuple[TracedTensor, ...] = ()
    """There before the line, and not after it."""
    num_temporaries: int = 0
    """Made and gone within the line."""
    temporary_bytes: int = 0
    """Of all of those together; they need not have lived at the same time."""
    num_ops: int = 0
    """Tensor operations seen in the first of the visits."""
    num_visits: int = 1
    """How often the line ran with the same change, peak above it and tensors."""

    @property
    def use(self) -> LineUse:
        """The GPU's, where one is in use; else the CPU's."""
        return self.cpu if self.cuda is None else self.cuda


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrace:
    """All lines in the order in which they first ended."""

    device: str
    """Whose memory the text shows: ``cpu`` or ``cuda:N``."""
    lines: tuple[TracedLine, ...]
    before_bytes: int
    """Storages of CPU tensors that were there before the first line."""
    error: str | None = None
    """Traceback of what ended a traced script, or the words of its `SystemExit`. None: nothing to say."""
    exit_code: int = 0
    """What the script would have ended with."""

    @property
    def peak(self) -> TracedLine | None:
        """The line with the highest peak on `device`; the first of equals. None: no line ran."""
        lines = [line for line in self.lines if self.device == "cpu" or line.cuda is not None]
        return max(lines, key=lambda line: line.use.peak_bytes, default=None)
