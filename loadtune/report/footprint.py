"""Where memory goes, as plain data: the account of a step, its layers, the largest batch in words.

In: a `FootprintReport`. Out: `Table`s and lines, which `text` renders. A module of its own because nothing of it
belongs to a run of the tuner.
"""

from collections.abc import Callable
from dataclasses import dataclass

from loadtune.records import BatchEstimate, FootprintReport, LayerFootprint, MemoryLines, StepAccount
from loadtune.report.figures import Table
from loadtune.report.wording import PRECISION_TEXT
from loadtune.units import MISSING, bytes_text, count_text

_LINES: tuple[tuple[str, Callable[[MemoryLines], int]], ...] = (
    ("parameters", lambda lines: lines.parameters_bytes),
    ("buffers", lambda lines: lines.buffers_bytes),
    ("gradients", lambda lines: lines.gradients_bytes),
    ("optimizer state", lambda lines: lines.optimizer_state_bytes),
    ("activations kept for backward", lambda lines: lines.activations_bytes),
    ("input batch", lambda lines: lines.input_bytes),
    ("temporary tensors", lambda lines: lines.temporary_bytes),
)
# Widths that leave a row of the layers' table below 80 columns.
_NAME_WIDTH, _KIND_WIDTH = 20, 12
_LARGEST = " ◀"


@dataclass(frozen=True, slots=True, kw_only=True)
class FootprintView:
    """Top to bottom."""

    tables: tuple[Table, ...]
    lines: tuple[str, ...]


def footprint_view(report: FootprintReport) -> FootprintView:
    tables = [_account_table(report.account)]
    if report.checkpointed is not None:
        tables.append(_checkpoint_table(report.account, report.checkpointed))
    if report.layers:
        tables.append(_layers_table(report.layers, report.account.batch_size))
    lines = () if report.largest_batch is None else _batch_lines(report.largest_batch)
    return FootprintView(tables=tuple(tables), lines=(*_notes(report.account), *lines))


def _account_table(account: StepAccount) -> Table:
    at_peak, forward = account.at_peak, account.forward_only
    rows = [(name, *(bytes_text(of(part)) for part in (account.largest, at_peak, forward))) for name, of in _LINES]
    forward_rest = account.forward_only_peak_bytes - forward.total_bytes
    rows += [
        ("not explained", "", bytes_text(account.unexplained_bytes), bytes_text(forward_rest)),
        ("peak", "", bytes_text(account.peak_bytes), bytes_text(account.forward_only_peak_bytes)),
        *(
            (name, "", bytes_text(count), "")
            for name, count in (
                ("workspace of libraries", account.workspace_bytes),
                ("fragmentation", account.fragmentation_bytes),
                ("outside the allocator", account.outside_bytes),
            )
        ),
    ]
    return Table(title=_title(account), columns=("", "largest", "at the peak", "forward only"), rows=tuple(rows))


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


def _notes(account: StepAccount) -> tuple[str, ...]:
    if not account.estimated:
        return ()
    return ("Estimated from shapes; nothing was run. What shows as – only a run on CUDA can tell.",)


def _batch_lines(found: BatchEstimate) -> tuple[str, ...]:
    low, high = found.batch_sizes
    line = f"{bytes_text(found.fixed_bytes)} + {bytes_text(found.bytes_per_sample)} a sample"
    largest = f"a batch of {found.batch_size:,}" if found.batch_size else "not even one sample"
    return (
        f"In {bytes_text(found.memory_bytes)}: {largest}, an estimate.",
        f"By the line {line} through batches of {low} and {high},",
        f"less {bytes_text(found.context_bytes)} for CUDA's context; workspace and fragmentation come on top.",
    )
