"""Where memory goes, as plain data: the account of a step, its layers, the largest batch in words.

In: a `FootprintReport`. Out: `Table`s and lines, which `text` renders. A module of its own because nothing of it
belongs to a run of the tuner.
"""

from collections.abc import Callable
from dataclasses import dataclass

from loadtune.records import BatchEstimate, FootprintReport, LayerFootprint, MemoryLines, StepAccount, WhatIf
from loadtune.report.figures import Table
from loadtune.report.wording import PRECISION_TEXT
from loadtune.units import MISSING, bytes_text, count_text, departure_text, percent_text, seconds_text

_LINES: tuple[tuple[str, Callable[[MemoryLines], int | None]], ...] = (
    ("parameters", lambda lines: lines.parameters_bytes),
    ("buffers", lambda lines: lines.buffers_bytes),
    ("gradients", lambda lines: lines.gradients_bytes),
    ("optimizer state", lambda lines: lines.optimizer_state_bytes),
    ("activations kept for backward", lambda lines: lines.activations_bytes),
    ("input batch", lambda lines: lines.input_bytes),
    ("temporary tensors", lambda lines: lines.temporary_bytes),
    ("workspace of libraries", lambda lines: lines.workspace_bytes),
    ("larger blocks than asked for", lambda lines: lines.rounding_bytes),
)
# Widths that leave a row of the layers' table below 80 columns.
_NAME_WIDTH, _KIND_WIDTH = 20, 12
_LARGEST = " ◀"
ESTIMATED = "≈ "
"""Stands before a figure that was worked out, where others of its table were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FootprintView:
    """Top to bottom."""

    tables: tuple[Table, ...]
    lines: tuple[str, ...]


def footprint_view(report: FootprintReport) -> FootprintView:
    tables = [_account_table(report.account, report.estimate)]
    if report.checkpointed is not None:
        tables.append(_checkpoint_table(report.account, report.checkpointed))
    if report.layers:
        tables.append(_layers_table(report.layers, report.account.batch_size))
    if report.what_if:
        tables.append(_what_if_table(report))
    lines = () if report.largest_batch is None else _batch_lines(report.largest_batch)
    return FootprintView(tables=tuple(tables), lines=(*_notes(report), *_what_if_notes(report), *lines))


def _account_table(account: StepAccount, estimate: StepAccount | None) -> Table:
    """Measured beside estimated where both are there."""
    parts = [account.largest, account.at_peak, *([] if estimate is None else [estimate.at_peak]), account.forward_only]
    shown = [account, *([] if estimate is None else [estimate])]
    forward_rest, forward_peak = account.forward_only_unexplained_bytes, account.forward_only_peak_bytes
    rows = [(name, *(bytes_text(of(part)) for part in parts)) for name, of in _LINES]
    rows += [
        ("not explained", "", *(bytes_text(each.unexplained_bytes) for each in shown), bytes_text(forward_rest)),
        ("peak", "", *(bytes_text(each.peak_bytes) for each in shown), bytes_text(forward_peak)),
    ]
    blank = [""] * len(shown)
    rows.append(("fragmentation", "", bytes_text(account.fragmentation_bytes), *blank))
    rows.append(("outside the allocator", "", bytes_text(account.outside_bytes), *blank))
    columns = ("at the peak",) if estimate is None else ("at the peak", "estimated")
    return Table(title=_title(account), columns=("", "largest", *columns, "forward only"), rows=tuple(rows))


def _title(account: StepAccount) -> str:
    shape = "×".join(map(str, (account.batch_size, *account.input_shape)))
    how = "estimated" if account.estimated else "measured"
    return f"{account.model}, {shape}, {PRECISION_TEXT[account.precision]}, {account.optimizer}: {how}"


def _checkpoint_table(plain: StepAccount, checkpointed: StepAccount) -> Table:
    rows = [(name, bytes_text(of(plain.largest)), bytes_text(of(checkpointed.largest))) for name, of in _LINES]
    rows.append(("peak", bytes_text(plain.peak_bytes), bytes_text(checkpointed.peak_bytes)))
    return Table(title="With checkpointed blocks", columns=("", "plain", "checkpointed"), rows=tuple(rows))


def _layers_table(layers: tuple[LayerFootprint, ...], batch_size: int) -> Table:
    columns = ("layer", "type", "output\nper sample", "param-\neters", "output", "kept")
    return Table(title=f"Layers at a batch of {batch_size}", columns=columns, rows=tuple(map(_layer_cells, layers)))


def _layer_cells(layer: LayerFootprint) -> tuple[str, ...]:
    shape = MISSING if layer.output_shape is None else "×".join(map(str, layer.output_shape[1:])) or "1"
    return (
        _end_of(layer.name),
        layer.kind[:_KIND_WIDTH],
        shape,
        count_text(layer.num_parameters),
        bytes_text(layer.output_bytes),
        bytes_text(layer.kept_bytes) + (_LARGEST if layer.is_largest else ""),
    )


def _end_of(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else f"…{name[1 - _NAME_WIDTH :]}"


def _notes(report: FootprintReport) -> tuple[str, ...]:
    account = report.account
    if account.estimated:
        return ("Estimated from shapes; nothing was run. What shows as – only a run on CUDA can tell.",)
    share = percent_text(abs(account.unexplained_bytes) / account.peak_bytes, 1)
    notes = [f"Measured in a process of its own; one step took {seconds_text(account.step_s)}, {share} is unexplained."]
    if report.error_fraction is not None:
        notes.append(f"The estimate from shapes is off by {departure_text(report.error_fraction)} of the peak.")
    return tuple(notes)


def _what_if_table(report: FootprintReport) -> Table:
    columns: tuple[str, ...] = ("", "memory of\na step", "time of\na step")
    if report.memory_bytes is not None:
        columns += (f"largest batch\nin {bytes_text(report.memory_bytes)}",)
    rows = tuple(_what_if_cells(row)[: len(columns)] for row in report.what_if)
    return Table(title="What if", columns=columns, rows=rows)


def _what_if_cells(row: WhatIf) -> tuple[str, ...]:
    mark = ESTIMATED if row.estimated and row.peak_bytes is not None else ""
    largest = MISSING if row.largest_batch is None else f"{ESTIMATED}{row.largest_batch:,}"
    return (row.name, f"{mark}{bytes_text(row.peak_bytes)}", seconds_text(row.step_s), largest)


def _what_if_notes(report: FootprintReport) -> tuple[str, ...]:
    if not report.what_if:
        return ()
    notes = [f"{row.name}: {row.remark}" for row in report.what_if if row.remark is not None]
    if report.memory_bytes is None:
        notes.append("--memory 24GiB, or as much as yours has, adds the largest batch that each allows.")
    return (f"{ESTIMATED}an estimate from shapes", *notes)


def _batch_lines(found: BatchEstimate) -> tuple[str, ...]:
    low, high = found.batch_sizes
    line = f"{bytes_text(found.fixed_bytes)} + {bytes_text(found.bytes_per_sample)} a sample"
    largest = f"a batch of {found.batch_size:,}" if found.batch_size else "not even one sample"
    return (
        f"In {bytes_text(found.memory_bytes)}: {largest}, an estimate.",
        f"By the line {line} through batches of {low} and {high},",
        f"less {bytes_text(found.context_bytes)} for CUDA's context; workspace and fragmentation come on top.",
    )
