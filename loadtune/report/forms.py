"""The answer of a result as text for other programs: `export`, a form for each of them, and the code to paste.

Code uses the names ``dataset``, ``model`` and ``loss_fn``, which the user's script defines. Lightning 2.6, Transformers
5.23, Accelerate 1.15. A setting that a framework has no argument for is written as code or as a comment, so that no
setting is lost.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from loadtune.errors import UsageError
from loadtune.records.answer import doubt_of, handed_winner, loader_kwargs
from loadtune.records.config import Recipe, TrialConfig
from loadtune.records.result import TriedRemedy, TuningResult, Winner
from loadtune.report.store import as_json
from loadtune.report.tables import Section, winners_table
from loadtune.report.wording import answer_text, gain_text, limit_sentences, remedy_text, settings_text
from loadtune.units import counted

_WIDTH = 78
_AUTOCAST = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
# Learning rates are placeholders from PyTorch's examples; the measured speed does not depend on them.
OPTIMIZER = {"sgd": ("SGD", "lr=0.1, momentum=0.9"), "adamw": ("AdamW", "lr=0.001")}
# Without "own": the user's training step decides the precision, and all else but the loader.
_LIGHTNING_PRECISION = {"fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
_ACCELERATE_PRECISION = {"fp32": "no", "fp16": "fp16", "bf16": "bf16"}

_DATA_MODULE = '''
class TunedData(LightningDataModule):
    """Your training dataset with the measured loader arguments."""

    def __init__(self, train_dataset):
        super().__init__()
        self.train_dataset = train_dataset

    def train_dataloader(self):
        return DataLoader(
            self.train_dataset, shuffle=True, drop_last=True, **LOADER_KWARGS
        )
'''


def export(result: TuningResult, format: str, *, keep_batch_size: bool = False) -> str:
    """The answer of a result as text for another program.

    ``format`` is a key of `FORMS`. ``keep_batch_size`` exports the answer at the batch size that the run was given,
    instead of that at any batch size. Warns with UserWarning where the answer is not confirmed. Raises UsageError for
    an unknown format, ResultError where the result has no answer.
    """
    form = FORMS.get(format)
    if form is None:
        raise UsageError(f"{format!r} is not a text format. Allowed: {', '.join(FORMS)}.")
    return form(result, handed_winner(result, keep_batch_size=keep_batch_size))


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


def changes_code(result: TuningResult, *, kept: bool = False) -> tuple[Section, ...]:
    """What to paste for each change that was tried, and what it gains; ``kept``: of those that gain for sure
    together, in the order to paste."""
    return tuple(
        Section(
            title=f"{remedy_text(each.name)}: {each.title}",
            note=f"{_gain_of(each)}What changes for training: {each.changes}.",
            lines=tuple(each.code.splitlines()),
        )
        for each in (result.remedies.tried if result.remedies and result.best else ())
        if each.code and (each.kept or not kept)
    )


def _gain_of(each: TriedRemedy) -> str:
    if each.gain is not None:
        return f"Measured alone: {gain_text(each.gain, '99% interval ')}. "
    predicted = "" if each.predicted is None else f"Predicted: {gain_text(each.predicted)}. "
    return predicted + (f"Not measured alone: {each.reason}. " if each.reason else "")


def step_code(result: TuningResult, config: TrialConfig) -> str:
    """Model, optimizer and training step as the recipe was measured, for the device and the batches of a result."""
    return "".join(f"{line}\n" for line in _step(result, config))


def changed_lines(result: TuningResult, config: TrialConfig) -> list[str]:
    """What the recipe changes in a plain training step: lines of `step_code`, those of the loop as if outside of it."""
    if config.precision == "own":
        return []
    plain = _step(result, replace(config, recipe=Recipe()))
    changed = (lines for lines in _step(result, config) if lines not in plain)
    return [line.removeprefix("    ") for lines in changed for line in lines.splitlines()]


def _step(result: TuningResult, config: TrialConfig) -> list[str]:
    """Lines that belong together are one. A function of the user's own has the name of the option that takes it."""
    spec, facts, device, recipe = result.config.workload, result.facts, result.device.kind, config.recipe
    if config.precision == "own":
        return [f'step = make_step("{device}")\n', "for batch in loader:", "    step(batch)"]
    # Of weights and inputs: where only one of them is channels_last, cuDNN converts in every layer.
    layout = ", memory_format=torch.channels_last" if recipe.memory_format == "channels_last" else ""
    lines = ["import torch\n", f'model = model.to("{device}"{layout})']
    if spec.named_optimizer is None:
        lines.append("optimizer = make_optimizer(model.parameters())  # your own function, which may take the model")
    else:
        name, arguments = OPTIMIZER[spec.named_optimizer]
        made = f"torch.optim.{name}(model.parameters(), {arguments}{', fused=True' * recipe.fused_optimizer})"
        lines += ["# set your own learning rate", f"optimizer = {made}"]
    # Compiled for one batch size, as it was measured: a graph for any size may be slower.
    lines += ["model = torch.compile(model, dynamic=False)"] if recipe.compile else []
    lines += [f'scaler = torch.amp.GradScaler("{device}")'] if config.precision == "fp16" else []
    batch, loss = "inputs, targets", "loss_fn(model(inputs), targets)"
    to = f'"{device}"{", non_blocking=True" if config.loader.pin_memory else ""}'
    body = [f"inputs = inputs.to({to}{layout})", f"targets = targets.to({to})"]
    if facts is not None and (facts.own_batches or facts.batch_is_mapping):
        batch, loss = "batch", "loss_fn(model, batch)" if facts.own_batches else "model(**batch).loss"
        body = ["# move the tensors of the batch to the device"]
    loop = f"for {batch} in loader:"
    if spec.accumulate > 1:
        loop = f"for number, {batch if batch == 'batch' else f'({batch})'} in enumerate(loader, start=1):"
    body.append(f"loss = {loss}")
    if config.precision != "fp32":
        body[-1:] = [f'with torch.autocast("{device}", dtype={_AUTOCAST[config.precision]}):', f"    loss = {loss}"]
    body += _update(config.precision == "fp16", spec.accumulate)
    return [*lines, f"\n{loop}", *(textwrap.indent(line, "    ") for line in body)]


def _update(is_scaled: bool, accumulate: int) -> list[str]:
    loss, clear = "loss" if accumulate == 1 else f"loss / {accumulate}", "optimizer.zero_grad(set_to_none=True)"
    backward, update = f"{loss if accumulate == 1 else f'({loss})'}.backward()", ["optimizer.step()"]
    if is_scaled:
        backward, update = f"scaler.scale({loss}).backward()", ["scaler.step(optimizer)", "scaler.update()"]
    if accumulate == 1:
        return [clear, backward, *update]
    return [backward, "\n    ".join([f"if number % {accumulate} == 0:", *update, clear])]


def _loader_call(result: TuningResult) -> str:
    return f"DataLoader(dataset, {'…' if has_own_loader(result) else 'shuffle=True, drop_last=True'}, **LOADER_KWARGS)"


def _recipe(winner: Winner) -> dict[str, Any]:
    """By name. Empty: the user's training step decides."""
    return {} if winner.config.precision == "own" else asdict(winner.config.recipe)


def _machine(result: TuningResult) -> str:
    cores = counted(result.host.num_usable_cores, "usable core")
    return f"{result.device.name}, {cores}, torch {result.host.torch or 'not known'}"


def _provenance(result: TuningResult, winner: Winner) -> str:
    how = "Confirmed" if doubt_of(result, winner) is None else "Measured, but not confirmed,"
    return (
        f"{answer_text(result, winner)} {how} by loadtune {result.loadtune_version} in training of"
        f" {result.config.workload.title} on {_machine(result)}. Run of {result.created}."
    )


def _advice(result: TuningResult, winner: Winner, fused: str) -> list[str]:
    """Parts of the recipe that a framework has no argument for; ``fused``: where its optimizer is made."""
    said = list[str]()
    if winner.config.recipe.memory_format == "channels_last":
        said.append(
            "Measured with channels_last. Before training: model = model.to(memory_format=torch.channels_last)."
            " In forward, convert the images in the same way."
        )
    name = result.config.workload.named_optimizer
    if winner.config.recipe.fused_optimizer and name and fused:
        said.append(f"{fused}: torch.optim.{OPTIMIZER[name][0]}(…, fused=True), as measured.")
    return said


def _assignment(name: str, values: Mapping[str, object]) -> str:
    """``NAME = {…}``, one entry per line."""
    return f"{name} = {{\n{''.join(f'    {key!r}: {value!r},{chr(10)}' for key, value in values.items())}}}\n"


def _script(result: TuningResult, winner: Winner, said: Sequence[str], *parts: str) -> str:
    """Parts of Python below comments: where the answer comes from, how to use it. Names may hold line breaks."""
    sentences = (" ".join(each.split()) for each in (_provenance(result, winner), *said))
    comment = "".join(f"# {line}\n" for each in sentences for line in textwrap.wrap(each, _WIDTH))
    return "\n".join([comment, *parts])


def python(result: TuningResult, winner: Winner) -> str:
    """``loader_kwargs.py``: two dictionaries; importing it imports nothing else."""
    use, parts = f"Use: {_loader_call(result)}.", [_assignment("LOADER_KWARGS", loader_kwargs(result, winner.config))]
    if recipe := _recipe(winner):
        use += " Train with RECIPE too: the throughput was measured with both."
        parts.append(_assignment("RECIPE", recipe))
    return _script(result, winner, [use], *parts)


def pytorch(result: TuningResult, winner: Winner) -> str:
    """Loader and training step; the user's script defines ``dataset``, ``model`` and ``loss_fn``.

    Changes of the code that gain follow as comments, because they belong into several places of that script.
    """
    code = [loader_code(result, winner.config), step_code(result, winner.config)]
    if winner == result.best and result.remedies is not None and result.remedies.config is not None:
        with_changes = settings_text(result.remedies.config)
        lines = ["What gains on top, in your own code, measured with", f"{with_changes}:"]
        lines += [line for each in changes_code(result, kept=True) for line in ("", each.title, *each.lines)]
        code.append("".join(f"# {line}".rstrip() + "\n" for line in lines))
    return _script(result, winner, [], *code)


def json(result: TuningResult, winner: Winner) -> str:
    """The loader's arguments, the recipe and their throughput. The whole record is ``result.json``."""
    recipe = _recipe(winner) or None
    return as_json(
        {
            "loader": loader_kwargs(result, winner.config),
            "recipe": recipe,
            "optimizer": recipe and result.config.workload.optimizer,
            "samples_per_s": winner.samples_per_s,
            "half_width_fraction": winner.half_width_fraction,
            "workload": result.config.workload.title,
            "device": result.device,
            "num_usable_cores": result.host.num_usable_cores,
            "torch": result.host.torch,
            "created": result.created,
            "loadtune_version": result.loadtune_version,
        }
    )


def env(result: TuningResult, winner: Winner) -> str:
    """``LOADTUNE_BATCH_SIZE=256``, …; booleans as 1 and 0. No comments, because $GITHUB_ENV allows none."""
    values = loader_kwargs(result, winner.config) | _recipe(winner)
    words = {name: int(value) if isinstance(value, bool) else value for name, value in values.items()}
    return "".join(f"LOADTUNE_{name.upper()}={value}\n" for name, value in words.items())


def markdown(result: TuningResult, winner: Winner) -> str:
    """The table of the page and code, for a pull request, a wiki or a job's summary."""
    table = winners_table(result, {"answer": winner})
    rows = [table.columns, ("---",) * len(table.columns), *table.rows]
    limits = limit_sentences(result) if winner == result.best else ()  # of the best at any batch size only
    return (
        f"### {_escaped(result.config.workload.title)} on {_escaped(result.device.name)}\n\n"
        + "".join(f"| {' | '.join(cell.strip() for cell in row)} |\n" for row in rows)
        + "".join(f"\n{_escaped(sentence)}\n" for sentence in (_provenance(result, winner), *limits))
        + f"\n```python\n{loader_code(result, winner.config)}\n{step_code(result, winner.config)}```\n"
    )


def _escaped(text: str) -> str:
    """Names may hold characters that are markup in Markdown."""
    return "".join(f"\\{char}" if char in "\\`*_|<>[]#" else char for char in " ".join(text.split()))


def github_action_benchmark(result: TuningResult, _: Winner) -> str:
    """A list for the tool ``customBiggerIsBetter``, in which larger is better.

    Names hold no settings, so that a curve continues when the winner changes; ``extra`` holds the settings.
    """
    winners = {"best": result.best, "best at your batch": result.best_at_your_batch}
    entries: list[dict[str, object]] = [
        {
            "name": f"{result.config.workload.title}: {which}",
            "unit": "samples/s",
            "value": winner.samples_per_s,
            **({} if (half := winner.throughput.half_width) is None else {"range": f"± {half:.4g}"}),
            "extra": f"{settings_text(winner.config)}\n{_machine(result)}",
        }
        for which, winner in winners.items()
        if winner is not None
    ]
    return as_json(entries)


def lightning(result: TuningResult, winner: Winner) -> str:
    """``TunedData``, a LightningDataModule, and ``TRAINER_KWARGS``."""
    trainer: dict[str, object] = {"accelerator": result.device.kind, "devices": 1}
    if winner.config.precision in _LIGHTNING_PRECISION:
        trainer["precision"] = _LIGHTNING_PRECISION[winner.config.precision]
    said = ["Use: Trainer(**TRAINER_KWARGS).fit(model, datamodule=TunedData(dataset))."]
    said += _advice(result, winner, "In configure_optimizers")
    if winner.config.recipe.compile:
        said.append("Before fit(model, …): model = torch.compile(model, dynamic=False), as measured.")
    imports = "from lightning.pytorch import LightningDataModule\nfrom torch.utils.data import DataLoader\n"
    kwargs = _assignment("LOADER_KWARGS", loader_kwargs(result, winner.config))
    return _script(result, winner, said, imports, kwargs, _DATA_MODULE, "", _assignment("TRAINER_KWARGS", trainer))


def hf(result: TuningResult, winner: Winner) -> str:
    """``TRAINING_ARGUMENTS``, fields of ``transformers.TrainingArguments``."""
    config, optimizer, on_cpu = winner.config, result.config.workload.named_optimizer, result.device.kind == "cpu"
    names = {"batch_size": "per_device_train_batch_size"}
    given = loader_kwargs(result, config).items()
    arguments: dict[str, object] = {names.get(name, f"dataloader_{name}"): value for name, value in given}
    arguments["dataloader_drop_last"] = True
    if config.precision in ("fp16", "bf16"):
        arguments[config.precision] = True
    if optimizer == "sgd":  # Trainer's has no momentum by default, and no fused form
        arguments |= {"optim": "sgd", "optim_args": "momentum=0.9"}
    elif optimizer is not None:
        arguments["optim"] = "adamw_torch_fused" if config.recipe.fused_optimizer else "adamw_torch"
    arguments |= {"accelerator_config": {"non_blocking": True}} if config.loader.pin_memory else {}
    arguments |= {"torch_compile": True} if config.recipe.compile else {}
    arguments |= {"use_cpu": True} if on_cpu else {}
    one_gpu = " The batch size is per GPU: with several visible GPUs, Trainer trains one batch on each."
    use = f"Use: TrainingArguments(output_dir=…, **TRAINING_ARGUMENTS).{'' if on_cpu else one_gpu}"
    fused = "Trainer has no fused SGD; pass one with optimizers=" if optimizer == "sgd" else ""
    said = [use, *_advice(result, winner, fused)]
    return _script(result, winner, said, _assignment("TRAINING_ARGUMENTS", arguments))


def accelerate(result: TuningResult, winner: Winner) -> str:
    """``ACCELERATOR_KWARGS``, and the loader's arguments, which PyTorch takes."""
    arguments: dict[str, object] = {"cpu": True} if result.device.kind == "cpu" else {}
    if winner.config.precision in _ACCELERATE_PRECISION:
        arguments["mixed_precision"] = _ACCELERATE_PRECISION[winner.config.precision]
    objects = dict[str, str]()  # arguments that are objects of Accelerate
    if winner.config.loader.pin_memory:
        objects["dataloader_config"] = "DataLoaderConfiguration(non_blocking=True)"
    if winner.config.recipe.compile:
        objects["dynamo_plugin"] = 'TorchDynamoPlugin(backend="inductor", dynamic=False)'
    use = (
        "Use: accelerator = Accelerator(**ACCELERATOR_KWARGS), then accelerator.prepare(model, optimizer,"
        f" {_loader_call(result)})."
    )
    parts = [_assignment("LOADER_KWARGS", loader_kwargs(result, winner.config))]
    parts.append(_assignment("ACCELERATOR_KWARGS", arguments))
    if objects:
        imported = ", ".join(value.partition("(")[0] for value in objects.values())
        parts.insert(0, f"from accelerate.utils import {imported}\n")
        parts[-1] += "".join(f'ACCELERATOR_KWARGS["{name}"] = {value}\n' for name, value in objects.items())
    return _script(result, winner, [use, *_advice(result, winner, "The optimizer")], *parts)


_FORMS = (python, pytorch, lightning, hf, accelerate, json, env, markdown, github_action_benchmark)
FORMS: Mapping[str, Callable[[TuningResult, Winner], str]] = {form.__name__.replace("_", "-"): form for form in _FORMS}
