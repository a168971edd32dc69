"""A configuration as Python code to paste. In: a `TrialConfig`. Out: source text that runs as it stands.

The code uses the names ``dataset``, ``model`` and ``loss_fn``, which the user's script defines. Apart from the views,
because code is tested by running it.
"""

from loadtune.records import OptimizerName, TrialConfig

_AUTOCAST = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
# Learning rates are placeholders from PyTorch's examples; the measured speed does not depend on them.
_OPTIMIZER = {
    "sgd": "SGD(\n    model.parameters(), lr=0.1, momentum=0.9",
    "adamw": "AdamW(\n    model.parameters(), lr=1e-3",
}

# Longest line of the training loop: indented by 4, it fits 80 columns.
_LINE = 76


def loader_code(config: TrialConfig) -> str:
    """``loader = DataLoader(…)`` with the measured arguments, shuffled and without a partial last batch."""
    chosen = "".join(f"    {name}={value!r},\n" for name, value in config.loader.kwargs().items())
    return (
        "from torch.utils.data import DataLoader\n\n"
        "loader = DataLoader(\n    dataset,\n    shuffle=True,\n    drop_last=True,\n" + chosen + ")\n"
    )


def recipe_code(config: TrialConfig, optimizer: OptimizerName, device: str = "cuda") -> str:
    """Model, optimizer and training step as the recipe was measured; ``device`` is ``cuda`` or ``cpu``."""
    scaler = f'scaler = torch.amp.GradScaler("{device}")\n' if config.precision == "fp16" else ""
    return (
        "import torch\n\n"
        + f'model = model.to("{device}"{_memory_format(config)})\n'
        + "# set your own learning rate\n"
        + f"optimizer = torch.optim.{_OPTIMIZER[optimizer]}{_fused(config)}\n)\n"
        + _compile(config)
        + scaler
        + "\nfor inputs, targets in loader:\n"
        + "".join(f"    {line}\n" for line in _step(config, device))
    )


def _step(config: TrialConfig, device: str) -> list[str]:
    asynchronous = ", non_blocking=True" if config.loader.pin_memory else ""
    arguments = f'"{device}"{asynchronous}{_memory_format(config)}'
    on_one_line = f"inputs = inputs.to({arguments})"
    fits = len(on_one_line) <= _LINE
    return [
        *([on_one_line] if fits else ["inputs = inputs.to(", f"    {arguments}", ")"]),
        f'targets = targets.to("{device}"{asynchronous})',
        *_forward(config, device),
        "optimizer.zero_grad(set_to_none=True)",
        *_update(config),
    ]


def _forward(config: TrialConfig, device: str) -> list[str]:
    forward = "loss = loss_fn(model(inputs), targets)"
    if config.precision == "fp32":
        return [forward]
    return [f'with torch.autocast("{device}", dtype={_AUTOCAST[config.precision]}):', f"    {forward}"]


def _update(config: TrialConfig) -> list[str]:
    if config.precision == "fp16":
        return ["scaler.scale(loss).backward()", "scaler.step(optimizer)", "scaler.update()"]
    return ["loss.backward()", "optimizer.step()"]


def _memory_format(config: TrialConfig) -> str:
    """Of weights and inputs: where only one of them is channels_last, cuDNN converts in every layer."""
    return ", memory_format=torch.channels_last" if config.recipe.memory_format == "channels_last" else ""


def _compile(config: TrialConfig) -> str:
    """Compiled for one batch size, as it was measured: a graph for any size may be slower."""
    return "model = torch.compile(model, dynamic=False)\n" if config.recipe.compile else ""


def _fused(config: TrialConfig) -> str:
    return ", fused=True" if config.recipe.fused_optimizer else ""
