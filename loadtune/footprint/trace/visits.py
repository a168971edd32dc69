"""The bookkeeping between the tracer and the tensors: what happened while a line ran. Knows neither torch nor frames.

In: lines that begin, pause for a call, and end; storages born and gone. Out: rows, in which visits that did the same
are folded, so that a loop of a million lines stays as small as its first turns.
"""

import linecache
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from loadtune.footprint.trace.records import LineUse, TensorKind, TracedLine, TracedTensor

_BLOCK_BYTES = 512
"""The CUDA allocator rounds every block up to this."""


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
class Birth:
    """A live or past storage. Its kind is found out later, and shown in every record that names it."""

    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    device: str
    op: str | None = None
    first_seen: bool = False
    kind: TensorKind = "Tensor"
    file: str | None = None
    line: int | None = None
    visit: int = -1
    died_in: int | None = None

    @property
    def signature(self) -> tuple[object, ...]:
        return (self.shape, self.dtype, self.num_bytes, self.device, self.file, self.line)

    @property
    def block_bytes(self) -> int:
        """What the CUDA allocator takes for it; 0: it does not lie there."""
        return -(-self.num_bytes // _BLOCK_BYTES) * _BLOCK_BYTES if self.device.startswith("cuda") else 0

    def record(self) -> TracedTensor:
        return TracedTensor(
            shape=self.shape,
            dtype=self.dtype,
            storage_bytes=self.num_bytes,
            device=self.device,
            kind=self.kind,
            op=self.op,
            made_file=self.file,
            made_line=self.line if self.file else None,
            first_seen=self.first_seen,
        )


@dataclass(slots=True, eq=False)
class Visit:
    """A line while it runs: changes and peaks of its own parts, not those of functions it calls."""

    number: int
    file: str | None
    line: int
    function: str
    is_line: bool = True
    """False: a frame before its first line, of interest only if something happens there."""
    births: list[Birth] = field(default_factory=list)
    deaths: list[Birth] = field(default_factory=list)
    num_ops: int = 0
    in_backward: bool = False
    change: int = 0
    peak: int = 0
    cuda_change: int = 0
    cuda_peak: int = 0


@dataclass(slots=True, eq=False)
class Row:
    """Visits of one line that made the same change; `visit` is the first of them."""

    visit: Visit
    cpu: LineUse
    cuda: LineUse | None
    appeared: list[Birth]
    went: list[Birth]
    temporaries: list[Birth]
    num_visits: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        visit = self.visit
        tensors = (tuple(birth.signature for birth in births) for births in (self.appeared, self.went))
        uses = ((use.change_bytes, use.peak_bytes - use.in_use_bytes) if use else None for use in (self.cpu, self.cuda))
        return (visit.file, visit.line, *uses, *tensors)

    def record(self) -> TracedLine:
        visit = self.visit
        return TracedLine(
            file=visit.file,
            line=visit.line,
            function=visit.function,
            source=linecache.getline(visit.file, visit.line).strip() if visit.file else "",
            cpu=self.cpu,
            cuda=self.cuda,
            appeared=tuple(birth.record() for birth in self.appeared),
            went=tuple(birth.record() for birth in self.went),
            num_temporaries=len(self.temporaries),
            temporary_bytes=sum(birth.num_bytes for birth in self.temporaries),
            num_ops=visit.num_ops,
            num_visits=self.num_visits,
        )


def _and_later(first: LineUse, later: LineUse) -> LineUse:
    """Of two visits: the later one may begin with more memory in use."""
    peak_bytes = max(first.peak_bytes, later.peak_bytes)
    return replace(first, peak_bytes=peak_bytes, last_in_use_bytes=later.in_use_bytes)


class Ledger:
    """What is in use, and the visit it is put down to."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.in_use = 0
        self.rows: dict[tuple[object, ...], Row] = {}
        self.current = Visit(0, None, 0, "")
        self._count = 0
        self._cuda_base = 0
        self._cuda: CudaReading | None = None

    def begin(self, file: str | None, line: int, function: str, *, is_line: bool = True) -> Visit:
        self._count += 1
        visit = Visit(self._count, file, line, function, is_line)
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

    def start(self) -> None:
        """What the GPU holds already is nobody's change."""
        reading = self.meter.read()
        self._cuda_base = 0 if reading is None else reading.allocated_bytes

    def end(self, visit: Visit) -> None:
        """The line is done; it has been paused before."""
        if not (visit.is_line or visit.births or visit.deaths or visit.cuda_change):
            return
        appeared = [birth for birth in visit.births if birth.died_in != visit.number]
        went = [birth for birth in visit.deaths if birth.visit != visit.number]
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
                unattributed_bytes=visit.cuda_change
                - sum(birth.block_bytes for birth in appeared)
                + sum(birth.block_bytes for birth in went),
                last_in_use_bytes=self._cuda.allocated_bytes,
            )
        temporaries = [birth for birth in visit.births if birth.died_in == visit.number]
        row = Row(visit, cpu, cuda, appeared, went, temporaries)
        kept = self.rows.setdefault(row.key, row)
        kept.num_visits += 1
        kept.cpu = _and_later(kept.cpu, cpu)
        kept.cuda = None if kept.cuda is None or cuda is None else _and_later(kept.cuda, cuda)

    def born(self, birth: Birth) -> None:
        visit = self.current
        birth.file, birth.line, birth.visit = visit.file, visit.line, visit.number
        visit.births.append(birth)
        self.grow(birth, birth.num_bytes)

    def died(self, birth: Birth) -> None:
        birth.died_in = self.current.number
        self.current.deaths.append(birth)
        self.grow(birth, -birth.num_bytes)

    def grow(self, birth: Birth, num_bytes: int) -> None:
        if birth.device == "cpu":
            self.in_use += num_bytes
            self.current.change += num_bytes
            self.current.peak = max(self.current.peak, self.in_use)
