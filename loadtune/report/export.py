"""A configuration as Python code to paste. In: a `TrialConfig`. Out: source text that runs as it stands.

The code uses the names ``dataset``, ``model`` and ``loss_fn``, which the user's script defines. Apart from the views,
because code is tested by running it.
"""

import ast
import re
from dataclasses import replace

from loadtune.records.answer import loader_kwargs
from loadtune.records.config import Recipe, TrialConfig, WorkloadSpec
from loadtune.records.result import TuningResult

_AUTOCAST = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
# Learning rates are placeholders from PyTorch's examples; the measured speed does not depend on them.
_OPTIMIZER = {"sgd": ("SGD", "lr=0.1, momentum=0.9"), "adamw": ("AdamW", "lr=1e-3")}


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


def step_code(result: TuningResult, config: TrialConfig) -> str:
    """Model, optimizer and training step as the recipe was measured, for the device and the batches of a result.

    A function of the user's own has the name of the option that takes it.
    """
    spec, facts, device = result.config.workload, result.facts, result.device.kind
    if config.precision == "own":
        return f'step = make_step("{device}")\n\nfor batch in loader:\n    step(batch)\n'
    # Of weights and inputs: where only one of them is channels_last, cuDNN converts in every layer.
    layout = ", memory_format=torch.channels_last" if config.recipe.memory_format == "channels_last" else ""
    optimizer = ["optimizer = make_optimizer(model.parameters())  # your own function, which may take the model"]
    if spec.named_optimizer is not None:
        name, arguments = _OPTIMIZER[spec.named_optimizer]
        fused = ", fused=True" if config.recipe.fused_optimizer else ""
        optimizer = [
            "# set your own learning rate",
            f"optimizer = torch.optim.{name}(",
            f"    model.parameters(), {arguments}{fused}",
            ")",
        ]
    # Compiled for one batch size, as it was measured: a graph for any size may be slower.
    compiled = ["model = torch.compile(model, dynamic=False)"] if config.recipe.compile else []
    scaler = [f'scaler = torch.amp.GradScaler("{device}")'] if config.precision == "fp16" else []
    before = ["import torch", "", f'model = model.to("{device}"{layout})', *optimizer, *compiled, *scaler]
    whole = None
    if facts is not None and (facts.own_batches or facts.batch_is_mapping):
        whole = "loss_fn(model, batch)" if facts.own_batches else "model(**batch).loss"
    batch = "inputs, targets" if whole is None else "batch"
    loop = f"for {batch} in loader:"
    if spec.accumulate > 1:
        loop = f"for number, {f'({batch})' if whole is None else batch} in enumerate(loader, start=1):"
    copied = ["# move the tensors of the batch to the device"]
    if whole is None:
        to = f'"{device}"{", non_blocking=True" if config.loader.pin_memory else ""}'
        copied = [f"inputs = inputs.to({to}{layout})", f"targets = targets.to({to})"]
    forward = [f"loss = {whole or 'loss_fn(model(inputs), targets)'}"]
    if config.precision != "fp32":
        forward = [f'with torch.autocast("{device}", dtype={_AUTOCAST[config.precision]}):', f"    {forward[0]}"]
    step = (f"    {line}" for line in (*copied, *forward, *_update(config, spec)))
    return "".join(f"{line}\n" for line in (*before, "", loop, *step))


def _update(config: TrialConfig, spec: WorkloadSpec) -> list[str]:
    backward, update = ["loss.backward()"], ["optimizer.step()"]
    if config.precision == "fp16":
        backward, update = ["scaler.scale(loss).backward()"], ["scaler.step(optimizer)", "scaler.update()"]
    clear = "optimizer.zero_grad(set_to_none=True)"
    if spec.accumulate == 1:
        return [clear, *backward, *update]
    share = f"loss / {spec.accumulate}"
    backward = [f"scaler.scale({share}).backward()" if config.precision == "fp16" else f"({share}).backward()"]
    return [*backward, f"if number % {spec.accumulate} == 0:", *(f"    {line}" for line in (*update, clear))]


def changed_statements(result: TuningResult, config: TrialConfig) -> list[str]:
    """What the recipe changes in a plain training step: of the lines of `step_code` a statement each."""
    if config.precision == "own":
        return []
    known = _statements(step_code(result, replace(config, recipe=Recipe())))
    changed = [each for each in _statements(step_code(result, config)) if each not in known]
    return re.sub(r"\n(scaler\.(?:step|update))", r"; \1", "\n".join(changed)).splitlines()


def _statements(code: str) -> list[str]:
    """Those of the loop beside those before it."""
    lines = ast.parse(code).body
    inner = [each for line in lines for each in (line.body if isinstance(line, ast.For) else [line])]
    return [ast.unparse(each).replace("'", '"') for each in inner]
