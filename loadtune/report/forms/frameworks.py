"""Arguments for training frameworks, as Python to import: Lightning 2.6, Transformers 5.23, Accelerate 1.15.

A setting that a framework has no argument for is written as code or as a comment, so that no setting is lost.
"""

from loadtune.records.config import Precision
from loadtune.report.forms.export_context import ExportContext, assignment, comment

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
_INPUTS_CHANNELS_LAST = """
    def on_after_batch_transfer(self, batch, dataloader_idx):
        inputs, targets = batch
        return inputs.to(memory_format=torch.channels_last), targets
"""
_MODEL_CHANNELS_LAST = """

class ChannelsLast(Callback):
    def setup(self, trainer, pl_module, stage):
        pl_module.to(memory_format=torch.channels_last)
"""


def lightning(context: ExportContext) -> str:
    """``TunedData``, a LightningDataModule, and ``TRAINER_KWARGS``."""
    last, compiled = context.config.recipe.memory_format == "channels_last", context.config.recipe.compile
    trainer: dict[str, object] = {"accelerator": context.result.device.kind, "devices": 1}
    if not context.has_own_step:  # which decides the precision too
        trainer["precision"] = _LIGHTNING_PRECISION[context.config.precision]
    imports = "import torch\nfrom lightning.pytorch import Callback, LightningDataModule\n"
    code = [
        comment(
            context.provenance,
            "Use: Trainer(**TRAINER_KWARGS).fit(model, datamodule=TunedData(dataset)).",
            *_fused(context, "In configure_optimizers"),
            # Trainer has no argument for it: the module is compiled before `fit`
            *(["Before fit(model, …): model = torch.compile(model, dynamic=False), as measured."] * compiled),
        ),
        (imports if last else "from lightning.pytorch import LightningDataModule\n")
        + "from torch.utils.data import DataLoader\n",
        assignment("LOADER_KWARGS", context.loader_kwargs),
        _DATA_MODULE + (_INPUTS_CHANNELS_LAST + _MODEL_CHANNELS_LAST if last else "") + "\n",
        assignment("TRAINER_KWARGS", trainer),
    ]
    return "\n".join(code) + ('TRAINER_KWARGS["callbacks"] = [ChannelsLast()]\n' if last else "")


_OF_ONE_GPU = " The batch size is per GPU: with several visible GPUs, Trainer trains one batch on each."


def transformers(context: ExportContext) -> str:
    """``TRAINING_ARGUMENTS``, fields of ``transformers.TrainingArguments``."""
    loader = context.loader_kwargs
    fixed = "batch_size" not in loader
    arguments: dict[str, object] = {} if fixed else {"per_device_train_batch_size": loader.pop("batch_size")}
    arguments |= {f"dataloader_{name}": value for name, value in loader.items()}
    arguments["dataloader_drop_last"] = True
    arguments |= {} if context.config.precision in ("fp32", "own") else {context.config.precision: True}
    optimizer = context.result.config.workload.named_optimizer
    if optimizer == "sgd":  # Trainer's has no momentum by default, and no fused form
        arguments |= {"optim": "sgd", "optim_args": "momentum=0.9"}
    elif optimizer is not None:
        arguments["optim"] = "adamw_torch_fused" if context.config.recipe.fused_optimizer else "adamw_torch"
    arguments |= {"accelerator_config": {"non_blocking": True}} if context.config.loader.pin_memory else {}
    on_cpu = context.result.device.kind == "cpu"
    arguments |= {"torch_compile": True} if context.config.recipe.compile else {}
    arguments |= {"use_cpu": True} if on_cpu else {}
    return "\n".join(
        [
            comment(
                context.provenance,
                "Use: TrainingArguments(output_dir=…, **TRAINING_ARGUMENTS)." + ("" if on_cpu else _OF_ONE_GPU),
                *_model_channels_last(context),
                *(_fused(context, "Trainer has no fused SGD; pass one with optimizers=") if optimizer == "sgd" else ()),
            ),
            assignment("TRAINING_ARGUMENTS", arguments),
        ]
    )


def accelerate(context: ExportContext) -> str:
    """``ACCELERATOR_KWARGS``, and the loader's arguments, which PyTorch takes."""
    arguments: dict[str, object] = {}
    if not context.has_own_step:  # which decides the precision too
        arguments["mixed_precision"] = _ACCELERATE_PRECISION[context.config.precision]
    arguments |= {"cpu": True} if context.result.device.kind == "cpu" else {}
    plugins = dict[str, tuple[str, str]]()  # arguments that are objects of Accelerate: class, its arguments
    if context.config.loader.pin_memory:
        plugins["dataloader_config"] = ("DataLoaderConfiguration", "non_blocking=True")
    if context.config.recipe.compile:
        plugins["dynamo_plugin"] = ("TorchDynamoPlugin", 'backend="inductor", dynamic=False')
    code = [
        comment(
            context.provenance,
            "Use: accelerator = Accelerator(**ACCELERATOR_KWARGS), then accelerator.prepare(model, optimizer,"
            f" {context.loader_call}).",
            *_model_channels_last(context),
            *_fused(context, "The optimizer"),
        ),
        *([f"from accelerate.utils import {', '.join(name for name, _ in plugins.values())}\n"] if plugins else []),
        assignment("LOADER_KWARGS", context.loader_kwargs),
        assignment("ACCELERATOR_KWARGS", arguments),
    ]
    lines = (f'ACCELERATOR_KWARGS["{key}"] = {name}({given})\n' for key, (name, given) in plugins.items())
    return "\n".join(code) + "".join(lines)


def _model_channels_last(context: ExportContext) -> tuple[str, ...]:
    """Neither Trainer nor Accelerate has an argument for the memory format."""
    if context.config.recipe.memory_format != "channels_last":
        return ()
    return (
        "Measured with channels_last, which has no argument here. Before training: model ="
        " model.to(memory_format=torch.channels_last). In forward, convert the images in the same way.",
    )


def _fused(context: ExportContext, where: str) -> tuple[str, ...]:
    optimizer = context.result.config.workload.named_optimizer
    if optimizer is None or not context.config.recipe.fused_optimizer:
        return ()
    name = {"sgd": "SGD", "adamw": "AdamW"}[optimizer]
    return (f"{where}: torch.optim.{name}(…, fused=True), as measured.",)
