"""Where memory goes, as plain data: the account of a step, its layers, the largest batch in words."""

from loadtune.records.memory import FootprintReport, LayerFootprint, StepAccount
from loadtune.report.tables import Table, View
from loadtune.report.wording import PRECISION_TEXT
from loadtune.units import MISSING, bytes_text, count_text, percent_text, seconds_text

_OPTIMIZER_TEXT = {"sgd": "SGD with momentum 0.9", "adamw": "AdamW"}
_LINES = {
    "parameters": "parameters_bytes",
    "buffers": "buffers_bytes",
    "gradients": "gradients_bytes",
    "optimizer state": "optimizer_state_bytes",
    "activations kept for backward": "activations_bytes",
    "input batch": "input_bytes",
    "temporary tensors": "temporary_bytes",
    "library workspace": "workspace_bytes",
    "allocator rounding": "rounding_bytes",
}
# Widths that leave a row of the layers' table below 80 columns.
_NAME_WIDTH, _KIND_WIDTH = 20, 12
_LARGEST = " ◀"


def footprint_view(report: FootprintReport) -> View:
    layers = [_layers_table(report.layers, report.account)] if report.layers else []
    return [_account_table(report.account, report.estimate), *layers, _notes(report)]


def _account_table(account: StepAccount, estimate: StepAccount | None) -> Table:
    """Measured beside estimated where both are there."""
    shown = [account, *([] if estimate is None else [estimate])]
    parts = [account.largest, *(each.at_peak for each in shown)]
    rows = [(name, *(bytes_text(getattr(part, field)) for part in parts)) for name, field in _LINES.items()]
    rows += [
        ("not attributed", "", *(bytes_text(each.unexplained_bytes) for each in shown)),
        ("peak", "", *(bytes_text(each.peak_bytes) for each in shown)),
        ("fragmentation", "", *(bytes_text(each.fragmentation_bytes) for each in shown)),
        ("CUDA context and libraries", "", *(bytes_text(each.outside_bytes) for each in shown)),
    ]
    columns = ("", "row's own\nmaximum", "at the\npeak", "at the peak,\nestimated")
    shape = "×".join(map(str, (account.batch_size, *account.input_shape)))
    optimizer = _OPTIMIZER_TEXT.get(account.optimizer, account.optimizer)
    how = "estimated" if account.estimated else "measured"
    title = f"{account.model}, {shape}, {PRECISION_TEXT[account.precision]}, {optimizer}: {how}"
    return Table(title=title, columns=columns[: 2 + len(shown)], rows=tuple(rows))


def _layers_table(layers: tuple[LayerFootprint, ...], account: StepAccount) -> Table:
    rows = list[tuple[str, ...]]()
    most = max(layer.kept_bytes for layer in layers)
    for layer in layers:
        shape = MISSING if layer.output_shape is None else "×".join(map(str, layer.output_shape[1:])) or "1"
        name = layer.name if len(layer.name) <= _NAME_WIDTH else f"…{layer.name[1 - _NAME_WIDTH :]}"
        kept = f"{bytes_text(layer.kept_bytes)}{_LARGEST if layer.kept_bytes == most else ''}"
        rows.append((name, layer.kind[:_KIND_WIDTH], shape, count_text(layer.num_parameters), kept))
    # Of modules that the forward pass uses without calling them, as nn.MultiheadAttention its output projection.
    if rest := account.num_parameters - sum(layer.num_parameters for layer in layers):
        rows.append(("(not called)", "", "", count_text(rest), ""))
    kept_bytes = sum(layer.kept_bytes for layer in layers)
    rows.append(("total", "", "", count_text(account.num_parameters), bytes_text(kept_bytes)))
    columns = ("layer", "type", "output shape\nof a sample", "parameters", "kept for\nbackward")
    return Table(title=f"Layers at batch size {account.batch_size}", columns=columns, rows=tuple(rows))


def _notes(report: FootprintReport) -> tuple[str, ...]:
    account = report.account
    if account.estimated:
        notes = [f"Estimated from tensor shapes; nothing was run. {MISSING}: only a run on a GPU can measure this."]
    else:
        share = percent_text(abs(account.unexplained_bytes) / account.peak_bytes, 1)
        notes = [
            f"Measured in a separate process. One step took {seconds_text(account.step_s)}."
            f" {share} of the peak is not attributed to any row."
        ]
    if report.estimate is not None:
        error = report.estimate.peak_bytes / account.peak_bytes - 1
        notes.append(f"The estimated peak differs from the measured peak by {error:+.1%}.")
    if report.layers:
        notes.append(f"kept for backward: what autograd saves.{_LARGEST}: keeps most.")
    if (found := report.largest_batch) is not None:
        largest = f"{found.batch_size:,}" if found.batch_size else "none, not even one sample fits"
        notes += [
            f"Largest batch size in {bytes_text(found.memory_bytes)}: {largest}. This is an estimate.",
            f"Peak memory = {bytes_text(found.fixed_bytes)} + batch size × {bytes_text(found.bytes_per_sample)},"
            " a line through two estimated peaks.",
            f"{bytes_text(found.context_bytes)} is subtracted for the CUDA context. Library workspace and fragmentation"
            " are not included.",
        ]
    return tuple(notes)
