"""A configuration as Python for pasting. In: a `TrialConfig`. Out: source text that runs as it stands.

It expects the names ``dataset``, ``model`` and ``loss_fn`` from around it. Apart from the views, because code is tested
by running it.
"""

from loadtune.records import OptimizerName, TrialConfig

_AUTOCAST = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
# The learning rates are placeholders that PyTorch's own examples use; the measured speed does not depend on them.
_OPTIMIZER = {
    "sgd": "SGD(\n    model.parameters(), lr=0.1, momentum=0.9",
    "adamw": "AdamW(\n    model.parameters(), lr=1e-3",
}

# Of a line in the training loop, so that with its indentation it fits 80 columns.
_LINE = 76


def loader_code(config: TrialConfig) -> str:
    """``loader = DataLoader(…)`` with the chosen arguments; shuffled and full batches are what was measured."""
    chosen = "".join(f"    {name}={value!r},\n" for name, value in config.loader.kwargs().items())
    return (
        "from torch.utils.data import DataLoader\n\n"
        "loader = DataLoader(\n    dataset,\n    shuffle=True,\n    drop_last=True,\n" + chosen + ")\n"
    )


def recipe_code(config: TrialConfig, optimizer: OptimizerName, device: str = "cuda") -> str:
    """The training loop's lines that the recipe concerns; ``device`` is ``cuda`` or ``cpu``."""
    scaler = f'scaler = torch.amp.GradScaler("{device}")\n' if config.precision == "fp16" else ""
    return (
        "import torch\n\n"
        + f'model = model.to("{device}"{_memory_format(config)})\n'
        + "# the learning rate is yours to set\n"
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
    """Weights and inputs both: with only one of them converted, cuDNN converts back and forth."""
    return ", memory_format=torch.channels_last" if config.recipe.memory_format == "channels_last" else ""


def _compile(config: TrialConfig) -> str:
    """For one batch size, as it was measured: a graph for any size may be slower."""
    return "model = torch.compile(model, dynamic=False)\n" if config.recipe.compile else ""


def _fused(config: TrialConfig) -> str:
    return ", fused=True" if config.recipe.fused_optimizer else ""
