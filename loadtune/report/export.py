"""A configuration as Python code to paste. In: a `TrialConfig`. Out: source text that runs as it stands.

The code uses the names ``dataset``, ``model`` and ``loss_fn``, which the user's script defines. Apart from the views,
because code is tested by running it.
"""

from typing import NamedTuple

from loadtune.records.answer import loader_kwargs
from loadtune.records.config import TrialConfig
from loadtune.records.result import TuningResult

_AUTOCAST = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
# Learning rates are placeholders from PyTorch's examples; the measured speed does not depend on them.
OPTIMIZER = {"sgd": ("SGD", "lr=0.1, momentum=0.9"), "adamw": ("AdamW", "lr=0.001")}


def has_own_loader(result: TuningResult) -> bool:
    """Whether the settings are for a ``DataLoader`` of the user's own, which has more arguments than those."""
    spec = result.config.workload
    return spec.loader is not None or "loader" in spec.objects


def loader_code(result: TuningResult, config: TrialConfig) -> str:
    """``loader = DataLoader(…)`` with the measured arguments, shuffled and without a partial last batch.

    Of a loader of the user's own the other arguments stay, such as its sampler.
    """
    chosen = "".join(f"    {name}={value!r},\n" for name, value in loader_kwargs(result, config).items())
    others = "    shuffle=True,\n    drop_last=True,\n"
    if has_own_loader(result):
        others = "    # your other arguments, such as sampler and collate_fn\n"
    return f"from torch.utils.data import DataLoader\n\nloader = DataLoader(\n    dataset,\n{others}{chosen})\n"


class Line(NamedTuple):
    code: str
    is_changed: bool = False
    """Whether a plain training step has it otherwise, or not at all."""


def step_code(result: TuningResult, config: TrialConfig) -> str:
    """Model, optimizer and training step as the recipe was measured, for the device and the batches of a result."""
    return "".join(f"{line.code}\n" for line in _step(result, config))


def changed_lines(result: TuningResult, config: TrialConfig) -> list[str]:
    """What the recipe changes in a plain training step: lines of `step_code`, those of the loop as if outside of it."""
    return [line.code.removeprefix("    ") for line in _step(result, config) if line.is_changed]


def _step(result: TuningResult, config: TrialConfig) -> list[Line]:
    """A function of the user's own has the name of the option that takes it."""
    spec, facts, device, recipe = result.config.workload, result.facts, result.device.kind, config.recipe
    if config.precision == "own":
        return [Line(f'step = make_step("{device}")\n'), Line("for batch in loader:"), Line("    step(batch)")]
    # Of weights and inputs: where only one of them is channels_last, cuDNN converts in every layer.
    layout = ", memory_format=torch.channels_last" if recipe.memory_format == "channels_last" else ""
    lines = [Line("import torch\n"), Line(f'model = model.to("{device}"{layout})', bool(layout))]
    if spec.named_optimizer is None:
        made = "make_optimizer(model.parameters())  # your own function, which may take the model"
        lines.append(Line(f"optimizer = {made}"))
    else:
        name, arguments = OPTIMIZER[spec.named_optimizer]
        made = f"torch.optim.{name}(model.parameters(), {arguments}{', fused=True' * recipe.fused_optimizer})"
        lines += [Line("# set your own learning rate"), Line(f"optimizer = {made}", recipe.fused_optimizer)]
    # Compiled for one batch size, as it was measured: a graph for any size may be slower.
    lines += [Line("model = torch.compile(model, dynamic=False)", True)] if recipe.compile else []
    lines += [Line(f'scaler = torch.amp.GradScaler("{device}")', True)] if config.precision == "fp16" else []
    batch, loss = "inputs, targets", "loss_fn(model(inputs), targets)"
    to = f'"{device}"{", non_blocking=True" if config.loader.pin_memory else ""}'
    body = [Line(f"inputs = inputs.to({to}{layout})", bool(layout)), Line(f"targets = targets.to({to})")]
    if facts is not None and (facts.own_batches or facts.batch_is_mapping):
        batch, loss = "batch", "loss_fn(model, batch)" if facts.own_batches else "model(**batch).loss"
        body = [Line("# move the tensors of the batch to the device")]
    loop = f"for {batch} in loader:"
    if spec.accumulate > 1:
        loop = f"for number, {batch if batch == 'batch' else f'({batch})'} in enumerate(loader, start=1):"
    if config.precision == "fp32":
        body.append(Line(f"loss = {loss}"))
    else:
        dtype = _AUTOCAST[config.precision]
        body += [Line(f'with torch.autocast("{device}", dtype={dtype}):', True), Line(f"    loss = {loss}", True)]
    body += _update(config.precision == "fp16", spec.accumulate)
    return [*lines, Line(f"\n{loop}"), *(Line(f"    {line.code}", line.is_changed) for line in body)]


def _update(is_scaled: bool, accumulate: int) -> list[Line]:
    loss, clear = "loss" if accumulate == 1 else f"loss / {accumulate}", "optimizer.zero_grad(set_to_none=True)"
    backward, update = f"{loss if accumulate == 1 else f'({loss})'}.backward()", ["optimizer.step()"]
    if is_scaled:
        backward, update = f"scaler.scale({loss}).backward()", ["scaler.step(optimizer)", "scaler.update()"]
    if accumulate == 1:
        return [Line(clear), *(Line(code, is_scaled) for code in (backward, *update))]
    within = (f"    {code}" for code in (*update, clear))
    return [Line(code, is_scaled) for code in (backward, f"if number % {accumulate} == 0:", *within)]
