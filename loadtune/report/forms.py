"""The answer of a result as text for other programs: `export`, and a form for each of them.

Lightning 2.6, Transformers 5.23, Accelerate 1.15. A setting that a framework has no argument for is written as code or
as a comment, so that no setting is lost.
"""

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loadtune.errors import UsageError
from loadtune.records.answer import doubt_of, handed_winner, loader_kwargs
from loadtune.records.config import Precision, TrialConfig
from loadtune.records.result import TuningResult, Winner
from loadtune.report.export import has_own_loader, loader_code, step_code
from loadtune.report.sentences import bottleneck_sentence, changes_code, keep_text
from loadtune.report.store import as_json
from loadtune.report.tables import winners_table
from loadtune.report.wording import interval_text, settings_text
from loadtune.units import counted

_WIDTH = 78
_LIGHTNING_PRECISION: dict[Precision, str] = {"fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
_ACCELERATE_PRECISION: dict[Precision, str] = {"fp32": "no", "fp16": "fp16", "bf16": "bf16"}

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
    return form(ExportContext(result, handed_winner(result, keep_batch_size=keep_batch_size)))


@dataclass(frozen=True, slots=True)
class ExportContext:
    """One winner and its result."""

    result: TuningResult
    winner: Winner

    @property
    def config(self) -> TrialConfig:
        return self.winner.config

    @property
    def loader_kwargs(self) -> dict[str, Any]:
        return loader_kwargs(self.result, self.config)

    @property
    def loader_call(self) -> str:
        """How the exported arguments are used."""
        others = "…" if has_own_loader(self.result) else "shuffle=True, drop_last=True"
        return f"DataLoader(dataset, {others}, **LOADER_KWARGS)"

    @property
    def has_own_step(self) -> bool:
        """Whether the user's training step decides precision, optimizer and all else but the loader."""
        return self.config.precision == "own"

    @property
    def recipe(self) -> dict[str, Any]:
        """By name. Empty: the user's training step decides."""
        return {} if self.has_own_step else asdict(self.config.recipe)

    @property
    def machine(self) -> str:
        host = self.result.host
        cores = counted(host.num_usable_cores, "usable core")
        return f"{self.result.device.name}, {cores}, torch {host.torch or 'not known'}"

    @property
    def provenance(self) -> str:
        how = "Confirmed" if doubt_of(self.result, self.winner) is None else "Measured, but not confirmed,"
        return (
            f"{keep_text(self.result, self.winner)} {how} by loadtune {self.result.loadtune_version}:"
            f" {interval_text(self.winner.throughput)} in training of {self.result.config.workload.title}"
            f" on {self.machine}. Run of {self.result.created}."
        ).lstrip()

    def advice(self, fused: str = "") -> tuple[str, ...]:
        """Parts of the recipe that a framework has no argument for; ``fused``: where its optimizer is made."""
        recipe, said = self.config.recipe, list[str]()
        if self.has_own_step:
            return ()
        if recipe.memory_format == "channels_last":
            said.append(
                "Measured with channels_last. Before training: model = model.to(memory_format=torch.channels_last)."
                " In forward, convert the images in the same way."
            )
        name = {"sgd": "SGD", "adamw": "AdamW"}.get(self.result.config.workload.named_optimizer or "")
        if recipe.fused_optimizer and name and fused:
            said.append(f"{fused}: torch.optim.{name}(…, fused=True), as measured.")
        return tuple(said)


def comment(*sentences: str) -> str:
    """Lines that begin with ``# ``, also where the name of a workload holds a line break."""
    lines = [line for sentence in sentences for line in textwrap.wrap(" ".join(sentence.split()), _WIDTH)]
    return "".join(f"# {line}\n" for line in lines)


def assignment(name: str, values: Mapping[str, object]) -> str:
    """``NAME = {…}``, one entry per line."""
    return f"{name} = {{\n{''.join(f'    {key!r}: {value!r},{chr(10)}' for key, value in values.items())}}}\n"


def python_module(context: ExportContext) -> str:
    """``loader_kwargs.py``: two dictionaries; importing it imports nothing else."""
    with_recipe = "" if context.has_own_step else " Train with RECIPE too: the throughput was measured with both."
    parts = [
        comment(context.provenance, f"Use: {context.loader_call}.{with_recipe}"),
        assignment("LOADER_KWARGS", context.loader_kwargs),
    ]
    parts += [assignment("RECIPE", context.recipe)] if context.recipe else []
    return "\n".join(parts)


def pytorch_loop(context: ExportContext) -> str:
    """Loader and training step; the user's script defines ``dataset``, ``model`` and ``loss_fn``.

    Changes of the code that gain follow as comments, because they belong into several places of that script.
    """
    result, code = context.result, [loader_code(context.result, context.config)]
    code.append(step_code(result, context.config))
    if context.winner == result.best and result.remedies is not None and result.remedies.config is not None:
        with_changes = settings_text(result.remedies.config)
        lines = ["What gains on top, in your own code, measured with", f"{with_changes}:"]
        lines += [line for each in changes_code(result, kept=True) for line in ("", each.title, *each.lines)]
        code.append("".join(f"# {line}".rstrip() + "\n" for line in lines))
    return "\n".join([comment(context.provenance), *code])


def json(context: ExportContext) -> str:
    """The loader's arguments, the recipe and their throughput. The whole record is ``result.json``."""
    winner, result = context.winner, context.result
    return as_json(
        {
            "loader": context.loader_kwargs,
            "recipe": None if context.has_own_step else context.config.recipe,
            "optimizer": None if context.has_own_step else result.config.workload.optimizer,
            "samples_per_s": winner.samples_per_s,
            "half_width_fraction": winner.half_width_fraction,
            "workload": result.config.workload.title,
            "device": result.device,
            "num_usable_cores": result.host.num_usable_cores,
            "torch": result.host.torch,
            "created": result.created,
            "loadtune_version": result.loadtune_version,
        }
    ).decode()


def env(context: ExportContext) -> str:
    """``LOADTUNE_BATCH_SIZE=256``, …; booleans as 1 and 0. No comments, because $GITHUB_ENV allows none."""
    values = context.loader_kwargs | context.recipe
    words = {name: int(value) if isinstance(value, bool) else value for name, value in values.items()}
    return "".join(f"LOADTUNE_{name.upper()}={value}\n" for name, value in words.items())


def markdown(context: ExportContext) -> str:
    """The table of the page and code, for a pull request, a wiki or a job's summary."""
    config, result = context.config, context.result
    table = winners_table(result, {"answer": context.winner})
    rows = [table.columns, ("---",) * len(table.columns), *table.rows]
    limit = bottleneck_sentence(result) if context.winner == result.best else ()  # of the best at any batch size only
    return (
        f"### {_escaped(result.config.workload.title)} on {_escaped(result.device.name)}\n\n"
        + "".join(f"| {' | '.join(cell.strip() for cell in row)} |\n" for row in rows)
        + "".join(f"\n{_escaped(sentence)}\n" for sentence in (context.provenance, *limit))
        + f"\n```python\n{loader_code(result, config)}\n{step_code(result, config)}```\n"
    )


def _escaped(text: str) -> str:
    """Names may hold characters that are markup in Markdown."""
    return "".join(f"\\{char}" if char in "\\`*_|<>[]#" else char for char in " ".join(text.split()))


def github_action_benchmark(context: ExportContext) -> str:
    """A list for the tool ``customBiggerIsBetter``, in which larger is better.

    Names hold no settings, so that a curve continues when the winner changes; ``extra`` holds the settings.
    """
    result, entries = context.result, list[dict[str, object]]()
    for which, winner in {"best": result.best, "best at your batch": result.best_at_your_batch}.items():
        if winner is not None:
            half = winner.throughput.half_width
            entries.append(
                {
                    "name": f"{result.config.workload.title}: {which}",
                    "unit": "samples/s",
                    "value": winner.samples_per_s,
                    **({} if half is None else {"range": f"± {half:.4g}"}),
                    "extra": f"{settings_text(winner.config)}\n{context.machine}",
                }
            )
    return as_json(entries).decode()


def lightning(context: ExportContext) -> str:
    """``TunedData``, a LightningDataModule, and ``TRAINER_KWARGS``."""
    trainer: dict[str, object] = {"accelerator": context.result.device.kind, "devices": 1}
    if not context.has_own_step:  # which decides the precision too
        trainer["precision"] = _LIGHTNING_PRECISION[context.config.precision]
    # Trainer has no argument for it: the module is compiled before `fit`
    compiled = ["Before fit(model, …): model = torch.compile(model, dynamic=False), as measured."]
    code = [
        comment(
            context.provenance,
            "Use: Trainer(**TRAINER_KWARGS).fit(model, datamodule=TunedData(dataset)).",
            *context.advice("In configure_optimizers"),
            *(compiled if context.config.recipe.compile else ()),
        ),
        "from lightning.pytorch import LightningDataModule\nfrom torch.utils.data import DataLoader\n",
        assignment("LOADER_KWARGS", context.loader_kwargs),
        _DATA_MODULE,
        "",
        assignment("TRAINER_KWARGS", trainer),
    ]
    return "\n".join(code)


def transformers(context: ExportContext) -> str:
    """``TRAINING_ARGUMENTS``, fields of ``transformers.TrainingArguments``."""
    config, loader = context.config, context.loader_kwargs
    on_cpu, optimizer = context.result.device.kind == "cpu", context.result.config.workload.named_optimizer
    fixed = "batch_size" not in loader
    arguments: dict[str, object] = {} if fixed else {"per_device_train_batch_size": loader.pop("batch_size")}
    arguments |= {f"dataloader_{name}": value for name, value in loader.items()} | {"dataloader_drop_last": True}
    arguments |= {} if config.precision in ("fp32", "own") else {config.precision: True}
    if optimizer == "sgd":  # Trainer's has no momentum by default, and no fused form
        arguments |= {"optim": "sgd", "optim_args": "momentum=0.9"}
    elif optimizer is not None:
        arguments["optim"] = "adamw_torch_fused" if config.recipe.fused_optimizer else "adamw_torch"
    arguments |= {"accelerator_config": {"non_blocking": True}} if config.loader.pin_memory else {}
    arguments |= {"torch_compile": True} if config.recipe.compile else {}
    arguments |= {"use_cpu": True} if on_cpu else {}
    one_gpu = " The batch size is per GPU: with several visible GPUs, Trainer trains one batch on each."
    use = f"Use: TrainingArguments(output_dir=…, **TRAINING_ARGUMENTS).{'' if on_cpu else one_gpu}"
    advice = context.advice("Trainer has no fused SGD; pass one with optimizers=" if optimizer == "sgd" else "")
    return comment(context.provenance, use, *advice) + "\n" + assignment("TRAINING_ARGUMENTS", arguments)


def accelerate(context: ExportContext) -> str:
    """``ACCELERATOR_KWARGS``, and the loader's arguments, which PyTorch takes."""
    arguments: dict[str, object] = {"cpu": True} if context.result.device.kind == "cpu" else {}
    if not context.has_own_step:  # which decides the precision too
        arguments["mixed_precision"] = _ACCELERATE_PRECISION[context.config.precision]
    objects = dict[str, str]()  # arguments that are objects of Accelerate
    if context.config.loader.pin_memory:
        objects["dataloader_config"] = "DataLoaderConfiguration(non_blocking=True)"
    if context.config.recipe.compile:
        objects["dynamo_plugin"] = 'TorchDynamoPlugin(backend="inductor", dynamic=False)'
    imported = ", ".join(value.partition("(")[0] for value in objects.values())
    code = [
        comment(
            context.provenance,
            "Use: accelerator = Accelerator(**ACCELERATOR_KWARGS), then accelerator.prepare(model, optimizer,"
            f" {context.loader_call}).",
            *context.advice("The optimizer"),
        ),
        *([f"from accelerate.utils import {imported}\n"] if objects else []),
        assignment("LOADER_KWARGS", context.loader_kwargs),
        assignment("ACCELERATOR_KWARGS", arguments),
    ]
    return "\n".join(code) + "".join(f'ACCELERATOR_KWARGS["{name}"] = {value}\n' for name, value in objects.items())


FORMS: Mapping[str, Callable[[ExportContext], str]] = {
    "python": python_module,
    "pytorch": pytorch_loop,
    "lightning": lightning,
    "hf": transformers,
    "accelerate": accelerate,
    "json": json,
    "env": env,
    "markdown": markdown,
    "github-action-benchmark": github_action_benchmark,
}
