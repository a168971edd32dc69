"""The trace as a table or JSON. Nothing is judged here."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from loadtune.footprint.trace.records import MemoryTrace, TracedLine, TracedTensor
from loadtune.units import bytes_text, counted

_WIDTH = 80
_MOST_GROUPS = 6
"""Kinds of tensors listed under a line: a backward pass of a large model makes hundreds; JSON holds them all."""


def trace_json(trace: MemoryTrace) -> bytes:
    """Indented JSON that ends in a newline; `MemoryTrace` reads it back through msgspec."""
    return msgspec.json.format(msgspec.json.encode(trace), indent=2) + b"\n"


def trace_text(trace: MemoryTrace) -> str:
    """A table of at most 80 columns: lines that ran a tensor operation or changed memory, then the peak."""
    return "\n".join(line[:_WIDTH].rstrip() for line in _table(trace)) + "\n"


def _table(trace: MemoryTrace) -> Iterator[str]:
    before = bytes_text(trace.before_bytes)
    yield f"Memory of {trace.device} after each line. CPU tensors before the trace: {before}."
    yield _columns("line", "source", "in use", "change", "peak")
    file: str | None = ""
    shown = [line for line in trace.lines if line.num_ops or line.appeared or line.went or line.use.change_bytes]
    for line in shown:
        if line.file != file:
            file = line.file
            yield f"{_cut_left(_near(file), _WIDTH)}"
        yield from _row(line)
    if left_out := len(trace.lines) - len(shown):
        yield f"{counted(left_out, 'more line')} ran no tensor operation and changed no memory."
    if (peak := trace.peak) is not None:
        place = f"{os.path.basename(peak.file)}:{peak.line}" if peak.file else "code outside the traced files"
        yield f"Peak {bytes_text(peak.use.peak_bytes)} at {place}  {peak.source}"


def _row(line: TracedLine) -> Iterator[str]:
    use = line.use
    figures = (bytes_text(use.in_use_bytes), _signed(use.change_bytes), bytes_text(use.peak_bytes))
    unread = "(source not available)" if line.file else "(code outside the traced files)"
    yield _columns(str(line.line or ""), line.source or unread, *figures)
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


def _columns(number: str, source: str, in_use: str, change: str, peak: str) -> str:
    """5 + 1 + 41 + 3 × 11 make 80."""
    cut = source if len(source) < 41 else source[:39] + "…"
    return f"{number:>5} {cut:<41}{in_use:>11}{change:>11}{peak:>11}"


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
