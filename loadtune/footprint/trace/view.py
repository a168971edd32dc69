"""Rows to records, and records to a table or JSON. Nothing is judged here."""

import linecache
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from loadtune.footprint.trace.records import MemoryTrace, TracedLine, TracedTensor
from loadtune.footprint.trace.visits import Birth, Row
from loadtune.units import bytes_text, counted

_WIDTH = 80
_MOST_GROUPS = 6
"""Kinds of tensors listed under a line: a backward pass of a large model makes hundreds; JSON holds them all."""


def traced(birth: Birth) -> TracedTensor:
    return TracedTensor(
        shape=birth.shape,
        dtype=birth.dtype,
        storage_bytes=birth.num_bytes,
        device=birth.device,
        kind=birth.kind,
        op=birth.op,
        made_file=birth.file,
        made_line=birth.line if birth.file else None,
        first_seen=birth.first_seen,
    )


def traced_line(row: Row) -> TracedLine:
    visit = row.visit
    return TracedLine(
        file=visit.file,
        line=visit.line,
        function=visit.function,
        source=linecache.getline(visit.file, visit.line).strip() if visit.file else "",
        cpu=row.cpu,
        cuda=row.cuda,
        device_used_bytes=row.used,
        appeared=tuple(map(traced, row.appeared)),
        went=tuple(map(traced, row.went)),
        num_temporaries=len(row.temporaries),
        temporary_bytes=sum(birth.num_bytes for birth in row.temporaries),
        num_ops=visit.num_ops,
        num_visits=row.num_visits,
    )


def trace_json(trace: MemoryTrace) -> bytes:
    """Indented JSON that ends in a newline; `MemoryTrace` reads it back through msgspec."""
    return msgspec.json.format(msgspec.json.encode(trace), indent=2) + b"\n"


def trace_text(trace: MemoryTrace) -> str:
    """A table of at most 80 columns: lines that ran a tensor operation or changed memory, then the peak."""
    return "\n".join(line[:_WIDTH].rstrip() for line in _table(trace)) + "\n"


def _table(trace: MemoryTrace) -> Iterator[str]:
    on_gpu = trace.device != "cpu"
    before = bytes_text(trace.before_bytes)
    yield f"Memory of {trace.device} after each line. CPU tensors before the trace: {before}."
    yield _columns("line", "source", "in use", "change", "peak", "NVML" if on_gpu else None)
    file: str | None = ""
    shown = [line for line in trace.lines if line.num_ops or line.appeared or line.went or line.use.change_bytes]
    for line in shown:
        if line.file != file:
            file = line.file
            yield f"{_cut_left(_near(file), _WIDTH)}"
        yield from _row(line, on_gpu)
    if left_out := len(trace.lines) - len(shown):
        yield f"{counted(left_out, 'more line')} ran no tensor operation and changed no memory."
    yield from _ending(trace)


def _row(line: TracedLine, on_gpu: bool) -> Iterator[str]:
    use = line.use
    nvml = bytes_text(line.device_used_bytes) if on_gpu else None
    figures = (bytes_text(use.in_use_bytes), _signed(use.change_bytes), bytes_text(use.peak_bytes))
    unread = "(source not available)" if line.file else "(code outside the traced files)"
    yield _columns(str(line.line or ""), line.source or unread, *figures, nvml)
    yield from _tensor_lines("+", line.appeared)
    yield from _tensor_lines("-", line.went)
    if line.num_temporaries:
        temporary = counted(line.num_temporaries, "temporary tensor")
        yield f"        ~ {temporary}, {bytes_text(line.temporary_bytes)} in total"
    if use.unattributed_bytes:
        yield f"        ? {_signed(use.unattributed_bytes)} not owned by a tensor"
    if line.num_visits > 1:
        last = bytes_text(use.last_in_use_bytes)
        yield f"        ran {line.num_visits:,} times; peak of all runs; {last} in use after the last"


def _tensor_lines(sign: str, tensors: Iterable[TracedTensor]) -> Iterator[str]:
    groups = Counter(replace(tensor, op=None) for tensor in tensors)
    ordered = sorted(groups, key=lambda tensor: -tensor.storage_bytes * groups[tensor])
    for tensor in ordered[:_MOST_GROUPS]:
        times = f"{groups[tensor]} × " if groups[tensor] > 1 else ""
        what = f"{times}{tensor.kind} {list(tensor.shape)} {tensor.dtype}, {bytes_text(tensor.storage_bytes)}"
        yield f"        {sign} {what}, {tensor.device}{_origin(tensor, sign)}"
    rest = ordered[_MOST_GROUPS:]
    if rest:
        total = sum(tensor.storage_bytes * groups[tensor] for tensor in rest)
        yield f"        {sign} {sum(groups[tensor] for tensor in rest)} more, {bytes_text(total)}"


def _origin(tensor: TracedTensor, sign: str) -> str:
    if sign != "-":
        return " (first seen here)" if tensor.first_seen and tensor.made_file else ""
    if tensor.made_file is None:
        return " (from before)"
    return f" ({os.path.basename(tensor.made_file)}:{tensor.made_line})"


def _ending(trace: MemoryTrace) -> Iterator[str]:
    if trace.unattributed:
        yield "Alive at the end, but created and used by no traced line:"
        yield from _tensor_lines("?", trace.unattributed)
    if (peak := trace.peak) is not None:
        place = f"{os.path.basename(peak.file)}:{peak.line}" if peak.file else "code outside the traced files"
        yield f"Peak {bytes_text(peak.use.peak_bytes)} at {place}  {peak.source}"


def _columns(number: str, source: str, in_use: str, change: str, peak: str, nvml: str | None) -> str:
    """5 + 1 + 41 + 3 × 11, or a narrower source beside a fourth figure, make 80."""
    width = 41 if nvml is None else 30
    cut = source if len(source) < width else source[: width - 2] + "…"
    return f"{number:>5} {cut:<{width}}{in_use:>11}{change:>11}{peak:>11}{nvml or '':>{0 if nvml is None else 11}}"


def _signed(num_bytes: int) -> str:
    return "0" if num_bytes == 0 else f"{'+' if num_bytes > 0 else '-'}{bytes_text(abs(num_bytes))}"


def _near(file: str | None) -> str:
    """Relative to the working folder where it lies below."""
    if file is None:
        return "code outside the traced files"
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def _cut_left(text: str, width: int) -> str:
    return text if len(text) <= width else "…" + text[-(width - 1) :]
