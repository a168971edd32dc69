"""What happened while a line ran: the records of a trace, and the `Ledger` that they are written in.

A dispatch mode sees every operation's outputs, a weak reference on the storage its end. What no operation returned
(NumPy's memory, a loader's batch, what C++ made for itself) is met as an argument of the first operation that uses it.
Visits that did the same are folded into one row. PyTorch hands the mode on to the threads that run a backward pass on a
GPU; the line is then still the one that called ``backward``.
"""

import gc
import linecache
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from loadtune.records.memory import block_bytes
from loadtune.workload.batches import leaf_tensors

TensorKind = Literal["Tensor", "Parameter", "gradient", "optimizer state"]


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class TracedTensor:
    """A storage, described by the first tensor seen on it; views of it are not listed again. Its kind is found out
    later, and then shown in every line that names it."""

    shape: tuple[int, ...]
    dtype: str
    """As PyTorch names it, without ``torch.``: ``float32``."""
    storage_bytes: int
    """Of the whole storage, which may be more than the shape needs."""
    device: str
    kind: TensorKind = "Tensor"
    """What it was used as in the end, as far as that was seen."""
    made_file: str | None = None
    """None: it was there before the trace began. NumPy's memory or a loader's batch: where it was first used."""
    made_line: int | None = None


@dataclass(slots=True, kw_only=True)
class LineUse:
    """One device's memory around one line. CPU: storages of live tensors. CUDA: the allocator's own count."""

    in_use_bytes: int = 0
    """After the line."""
    change_bytes: int = 0
    """What this line alone did; lines of functions it called have records of their own."""
    peak_bytes: int = 0
    """Most in use while the line ran, temporary tensors included. Of several visits: the largest of their peaks."""
    unattributed_bytes: int = 0
    """The part of the change that no tensor explains: workspaces, blocks still in use by a stream. CPU: always 0."""
    last_in_use_bytes: int = 0
    """After the last of the visits that this record stands for; equal to `in_use_bytes` for one visit."""


@dataclass(slots=True, kw_only=True)
class TracedLine:
    """One visit of a source line, or several that did the same."""

    file: str | None
    """None: what ran outside of every kept file."""
    line: int
    """From 1; 0 where there is no file."""
    source: str = ""
    """The line's text without indentation; empty where it cannot be read."""
    cpu: LineUse = field(default_factory=LineUse)
    cuda: LineUse | None = None
    """None: CUDA was not in use yet."""
    appeared: list[TracedTensor] = field(default_factory=list)
    """Made during the line, and still there after it."""
    went: list[TracedTensor] = field(default_factory=list)
    """There before the line, and not after it."""
    num_temporaries: int = 0
    """Made and gone within the line."""
    temporary_bytes: int = 0
    """Of all of those together; they need not have lived at the same time."""
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

    @property
    def peak(self) -> TracedLine | None:
        """The line with the highest peak on `device`; the first of equals. None: no line ran."""
        lines = [line for line in self.lines if self.device == "cpu" or line.cuda is not None]
        return max(lines, key=lambda line: line.use.peak_bytes, default=None)


@dataclass(slots=True)
class Reading:
    in_use_bytes: int = 0
    peak_bytes: int = 0
    """Highest in use since it was started anew."""


class CudaMeter:
    """Of the device that is current when CUDA is first seen in use; its allocator's peak counter is started anew."""

    device: str | None = None

    def read(self) -> Reading | None:
        """None: CUDA is not in use yet."""
        if self.device is None:
            if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                return None
            self.device = f"cuda:{torch.cuda.current_device()}"
        # The flat `memory_stats` sorts 100 figures for every question.
        allocated = torch.cuda.memory_stats_as_nested_dict(self.device)["allocated_bytes"]["all"]
        return Reading(int(allocated["current"]), int(allocated["peak"]))

    def restart_peak(self) -> None:
        if self.device is not None:
            torch.cuda.reset_peak_memory_stats(self.device)


def _cuda_bytes(tensors: Iterable[TracedTensor]) -> int:
    """What the CUDA allocator takes for those that lie there."""
    return sum(block_bytes(tensor.storage_bytes) for tensor in tensors if tensor.device.startswith("cuda"))


class Ledger:
    """What is in use, and the line it is put down to."""

    def __init__(self, cuda: CudaMeter) -> None:
        self._cpu, self._cuda = Reading(), cuda
        self.in_use = Counter[str]()
        """By device, when it was last read."""
        self.lines: dict[tuple[object, ...], TracedLine] = {}
        """By what a visit of the line did."""
        self.current = TracedLine(file=None, line=0)

    def begin(self, file: str | None, line: int, *, num_visits: int = 1) -> TracedLine:
        """``num_visits`` 0: a frame before its first line, of interest only if something happens there."""
        begun = TracedLine(file=file, line=line, num_visits=num_visits)
        self.resume(begun)
        return begun

    def resume(self, line: TracedLine) -> None:
        """From here on everything is this line's, until the next one begins: that of a function it calls, say."""
        self.current = line
        self._cpu.peak_bytes = self._cpu.in_use_bytes
        self._cuda.restart_peak()

    def pause(self) -> None:
        """Take down what the devices did since `resume`."""
        for name, reading in (("cpu", self._cpu), ("cuda", self._cuda.read())):
            if reading is not None:
                use: LineUse = getattr(self.current, name) or LineUse()
                use.change_bytes += reading.in_use_bytes - self.in_use[name]
                use.peak_bytes = max(use.peak_bytes, reading.peak_bytes)
                use.in_use_bytes = use.last_in_use_bytes = self.in_use[name] = reading.in_use_bytes
                setattr(self.current, name, use)

    def end(self, line: TracedLine) -> None:
        """The line is done; it has been paused before."""
        uses = [use for use in (line.cpu, line.cuda) if use is not None]
        happened = line.appeared or line.went or line.num_temporaries or any(use.change_bytes for use in uses)
        if not (line.num_visits or happened):
            return
        if line.cuda is not None:
            line.cuda.unattributed_bytes = line.cuda.change_bytes - _cuda_bytes(line.appeared) + _cuda_bytes(line.went)
        did = tuple((use.change_bytes, use.peak_bytes - use.in_use_bytes) for use in uses)
        tensors = (
            tuple((t.shape, t.dtype, t.storage_bytes, t.device, t.made_file, t.made_line) for t in each)
            for each in (line.appeared, line.went)
        )
        first = self.lines.setdefault((line.file, line.line, did, *tensors), line)
        if first is line:
            line.num_visits = 1
            line.source = linecache.getline(line.file, line.line).strip() if line.file else ""
            return
        first.num_visits += 1
        for before, use in zip((first.cpu, first.cuda), uses, strict=False):
            assert before is not None  # they did the same
            before.peak_bytes = max(before.peak_bytes, use.peak_bytes)
            before.last_in_use_bytes = use.in_use_bytes

    def born(self, tensor: TracedTensor) -> None:
        line = self.current
        tensor.made_file, tensor.made_line = line.file, line.line if line.file else None
        line.appeared.append(tensor)
        self.grow(tensor, tensor.storage_bytes)

    def died(self, tensor: TracedTensor) -> None:
        line = self.current
        at = next((at for at in reversed(range(len(line.appeared))) if line.appeared[at] is tensor), None)
        if at is None:
            line.went.append(tensor)
        else:
            del line.appeared[at]
            line.num_temporaries += 1
            line.temporary_bytes += tensor.storage_bytes
        self.grow(tensor, -tensor.storage_bytes)

    def grow(self, tensor: TracedTensor, num_bytes: int) -> None:
        if tensor.device == "cpu":
            self._cpu.in_use_bytes += num_bytes
            self._cpu.peak_bytes = max(self._cpu.peak_bytes, self._cpu.in_use_bytes)


_LIFT = torch.ops.aten.lift_fresh.default
"""How ``torch.tensor`` and ``from_numpy`` hand out what they just made: its argument is no tensor from elsewhere."""


class TensorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Active between ``__enter__`` and ``__exit__``, as every mode; `forget` drops the weak references."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger
        self._known: dict[int, tuple[TracedTensor, weakref.ref[Any]]] = {}
        self._leaves = WeakTensorKeyDictionary()
        self._in_backward = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not _LIFT:
            for tensor in leaf_tensors((args, kwargs)):
                self._meet(tensor)
        result = func(*args, **kwargs)
        for tensor in leaf_tensors(result):
            self._see(tensor)
        self._in_backward = self._in_backward or torch._C._current_graph_task_id() != -1
        return result

    def look_around(self) -> None:
        """Count what is there before the first line, but for tensors that C++ alone holds: nobody lists those."""
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor):  # not isinstance: a proxy's ``__class__`` may run code
                self._meet(thing)
        self.name_gradients()

    def before_end(self) -> None:
        """Of a line: what its backward pass made is named."""
        if self._in_backward:
            self._in_backward = False
            self.name_gradients()

    def name_gradients(self) -> None:
        """Gradients are ``.grad`` of the leaves met so far; whatever C++ put there is met here at the latest."""
        for leaf in list(self._leaves):
            if leaf.grad is not None and (seen := self._see(leaf.grad)) is not None:
                seen.kind = "gradient"
                seen.shape = tuple(leaf.grad.shape)  # was (1, n) before a bias's sum was viewed

    def name_state(self, optimizer: torch.optim.Optimizer) -> None:
        for tensor in leaf_tensors(list(optimizer.state.values())):
            if (seen := self._see(tensor)) is not None:
                seen.kind = "optimizer state"

    def forget(self) -> None:
        self._known.clear()
        self._leaves.clear()

    def _meet(self, tensor: torch.Tensor) -> None:
        seen = self._see(tensor)
        if tensor.requires_grad and tensor.is_leaf and tensor not in self._leaves:
            self._leaves[tensor] = True
            if isinstance(tensor, torch.nn.Parameter) and seen is not None:
                seen.kind = "Parameter"

    def _see(self, tensor: torch.Tensor) -> TracedTensor | None:
        """The record of its storage, put down to the current line where it is new. None: it has none in memory."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse, or a wrapper around other tensors
            return None
        device, key, num_bytes = storage.device, storage._cdata, storage.nbytes()
        if device.type == "meta":
            return None
        if key in self._known:
            known = self._known[key][0]
            if num_bytes != known.storage_bytes:  # resize_, out=
                self._ledger.grow(known, num_bytes - known.storage_bytes)
                known.storage_bytes = num_bytes
            return known
        new = TracedTensor(
            shape=tuple(int(size) for size in tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            storage_bytes=num_bytes,
            device=device.type if device.type == "cpu" else str(device),
        )
        self._known[key] = new, weakref.ref(storage, lambda _: self._gone(key))
        self._ledger.born(new)
        return new

    def _gone(self, key: int) -> None:
        if known := self._known.pop(key, None):
            self._ledger.died(known[0])
