"""What happened while a line ran: the records of a trace, and the `Ledger` that they are written in.

A dispatch mode sees every operation's outputs, a weak reference on the storage its end. A storage is counted once
however many views it has. What no operation returned (NumPy's memory, a loader's batch, what C++ made for itself) is
met as an argument of the first operation that uses it. Visits that did the same are folded into one row, so that a loop
of a million lines stays as small as its first turns. PyTorch hands the mode on to the threads that run a backward pass
on a GPU; the line is then still the one that called ``backward``.
"""

import gc
import linecache
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from loadtune.records.footprint import block_bytes

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
    last_in_use_bytes: int
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


class CudaReading(NamedTuple):
    allocated_bytes: int
    peak_bytes: int
    """Highest allocated since `restart_peak`."""


class Meter(Protocol):
    """A GPU's counters; tests give their own."""

    device: str | None

    def read(self) -> CudaReading | None: ...

    def restart_peak(self) -> None: ...


@dataclass(slots=True, eq=False)
class Visit:
    """A line while it runs: changes and peaks of its own parts, not those of functions it calls."""

    file: str | None
    line: int
    function: str
    is_line: bool = True
    """False: a frame before its first line, of interest only if something happens there."""
    appeared: dict[int, TracedTensor] = field(default_factory=dict)
    """By `id`, which is theirs for as long as they stand here."""
    went: list[TracedTensor] = field(default_factory=list)
    num_temporaries: int = 0
    temporary_bytes: int = 0
    in_backward: bool = False
    change: int = 0
    peak: int = 0
    cuda_change: int = 0
    cuda_peak: int = 0


def _signature(tensor: TracedTensor) -> tuple[object, ...]:
    return (tensor.shape, tensor.dtype, tensor.storage_bytes, tensor.device, tensor.made_file, tensor.made_line)


def _cuda_bytes(tensors: Iterable[TracedTensor]) -> int:
    """What the CUDA allocator takes for those that lie there."""
    return sum(block_bytes(tensor.storage_bytes) for tensor in tensors if tensor.device.startswith("cuda"))


def _and_later(first: LineUse, later: LineUse) -> LineUse:
    """Of two visits: the later one may begin with more memory in use."""
    peak_bytes = max(first.peak_bytes, later.peak_bytes)
    return replace(first, peak_bytes=peak_bytes, last_in_use_bytes=later.in_use_bytes)


class Ledger:
    """What is in use, and the visit it is put down to."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.in_use = 0
        self.lines: dict[tuple[object, ...], TracedLine] = {}
        """By what a visit of the line did."""
        self.current = Visit(None, 0, "")
        self._cuda: CudaReading | None = None
        self._cuda_base = 0

    def start(self) -> None:
        """What the GPU holds already is nobody's change."""
        reading = self.meter.read()
        self._cuda_base = 0 if reading is None else reading.allocated_bytes

    def begin(self, file: str | None, line: int, function: str, *, is_line: bool = True) -> Visit:
        visit = Visit(file, line, function, is_line)
        self.resume(visit)
        return visit

    def resume(self, visit: Visit) -> None:
        """From here on everything is this visit's."""
        self.current = visit
        visit.peak = max(visit.peak, self.in_use)
        self.meter.restart_peak()
        visit.cuda_peak = max(visit.cuda_peak, self._cuda_base)

    def pause(self) -> None:
        """Take down what the GPU did since `resume`; the CPU's is kept up to date."""
        self._cuda = reading = self.meter.read()
        if reading is not None:
            self.current.cuda_change += reading.allocated_bytes - self._cuda_base
            self.current.cuda_peak = max(self.current.cuda_peak, reading.peak_bytes)
            self._cuda_base = reading.allocated_bytes

    def end(self, visit: Visit) -> None:
        """The line is done; it has been paused before."""
        if not (visit.is_line or visit.appeared or visit.num_temporaries or visit.went or visit.cuda_change):
            return
        appeared, went = tuple(visit.appeared.values()), tuple(visit.went)
        cpu = LineUse(
            in_use_bytes=self.in_use,
            change_bytes=visit.change,
            peak_bytes=visit.peak,
            last_in_use_bytes=self.in_use,
        )
        cuda = None
        if self._cuda is not None:
            cuda = LineUse(
                in_use_bytes=self._cuda.allocated_bytes,
                change_bytes=visit.cuda_change,
                peak_bytes=visit.cuda_peak,
                unattributed_bytes=visit.cuda_change - _cuda_bytes(appeared) + _cuda_bytes(went),
                last_in_use_bytes=self._cuda.allocated_bytes,
            )
        uses = ((use.change_bytes, use.peak_bytes - use.in_use_bytes) if use else None for use in (cpu, cuda))
        key = (visit.file, visit.line, *uses, tuple(map(_signature, appeared)), tuple(map(_signature, went)))
        if (first := self.lines.get(key)) is None:
            self.lines[key] = TracedLine(
                file=visit.file,
                line=visit.line,
                function=visit.function,
                source=linecache.getline(visit.file, visit.line).strip() if visit.file else "",
                cpu=cpu,
                cuda=cuda,
                appeared=appeared,
                went=went,
                num_temporaries=visit.num_temporaries,
                temporary_bytes=visit.temporary_bytes,
            )
        else:
            self.lines[key] = replace(
                first,
                cpu=_and_later(first.cpu, cpu),
                cuda=None if first.cuda is None or cuda is None else _and_later(first.cuda, cuda),
                num_visits=first.num_visits + 1,
            )

    def born(self, tensor: TracedTensor) -> None:
        visit = self.current
        tensor.made_file, tensor.made_line = visit.file, visit.line if visit.file else None
        visit.appeared[id(tensor)] = tensor
        self.grow(tensor, tensor.storage_bytes)

    def died(self, tensor: TracedTensor) -> None:
        visit = self.current
        if visit.appeared.pop(id(tensor), None) is None:
            visit.went.append(tensor)
        else:
            visit.num_temporaries += 1
            visit.temporary_bytes += tensor.storage_bytes
        self.grow(tensor, -tensor.storage_bytes)

    def grow(self, tensor: TracedTensor, num_bytes: int) -> None:
        if tensor.device == "cpu":
            self.in_use += num_bytes
            self.current.change += num_bytes
            self.current.peak = max(self.current.peak, self.in_use)


_LIFT = torch.ops.aten.lift_fresh.default
"""How ``torch.tensor`` and ``from_numpy`` hand out what they just made: its argument is no tensor from elsewhere."""


class TensorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Active between ``__enter__`` and ``__exit__``, as every mode; `forget` drops the weak references."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger
        self._known: dict[int, tuple[TracedTensor, weakref.ref[Any]]] = {}
        self._leaves: dict[int, weakref.ref[torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not _LIFT:
            for tensor in _tensors((*args, *kwargs.values())):
                self._meet(tensor)
        result = func(*args, **kwargs)
        for tensor in _tensors((result,)):
            self._see(tensor)
        visit = self._ledger.current
        if not visit.in_backward and torch._C._current_graph_task_id() != -1:
            visit.in_backward = True
        return result

    def look_around(self) -> None:
        """Count what is there before the first line, but for tensors that C++ alone holds: nobody lists those."""
        visit = self._ledger.current
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor):  # not isinstance: a proxy's ``__class__`` may run code
                self._meet(thing)
        self.name_gradients()
        for tensor in visit.appeared.values():
            tensor.made_file = tensor.made_line = None
        visit.change, visit.peak = 0, self._ledger.in_use
        visit.appeared.clear()

    def name_gradients(self) -> None:
        """Gradients are ``.grad`` of the leaves met so far; whatever C++ put there is met here at the latest."""
        for key, reference in list(self._leaves.items()):
            leaf = reference()
            if leaf is None:
                del self._leaves[key]
            elif leaf.grad is not None and (seen := self._see(leaf.grad)) is not None:
                seen.kind = "gradient"
                seen.shape = tuple(leaf.grad.shape)  # was (1, n) before a bias's sum was viewed

    def name_state(self, optimizer: torch.optim.Optimizer) -> None:
        for state in optimizer.state.values():
            for tensor in _tensors(state.values()) if isinstance(state, dict) else ():
                if (seen := self._see(tensor)) is not None:
                    seen.kind = "optimizer state"

    def forget(self) -> None:
        self._known.clear()
        self._leaves.clear()

    def _meet(self, tensor: torch.Tensor) -> None:
        seen = self._see(tensor)
        if tensor.requires_grad and id(tensor) not in self._leaves and tensor.is_leaf:
            self._leaves[id(tensor)] = weakref.ref(tensor)
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
        self._known[key] = new, weakref.ref(storage, self._end_of(key))
        self._ledger.born(new)
        return new

    def _end_of(self, key: int) -> Callable[[Any], None]:
        def gone(_: Any) -> None:
            if known := self._known.pop(key, None):
                self._ledger.died(known[0])

        return gone


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
