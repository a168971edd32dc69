"""The options of ``loadtune run`` with their help texts."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

_PATH = "pkg.mod:name or FILE.py:name"

Dataset = Annotated[
    str, typer.Option(help=f"FakeData, a class name of torchvision.datasets, or your factory: {_PATH}.")
]
Model = Annotated[str, typer.Option(help=f"A model name of torchvision, timm:NAME, or your factory: {_PATH}.")]
Loader = Annotated[
    str | None,
    typer.Option(
        metavar="PATH:FN",
        help="Function that returns your DataLoader: in place of --dataset. Its settings are the baseline.",
    ),
]
MemoryLoader = Annotated[
    str | None, typer.Option(metavar="PATH:FN", help="Function that returns your DataLoader: in place of --dataset.")
]
Collate = Annotated[
    str | None, typer.Option(metavar="PATH:FN", help="Collate function for --dataset. [default: PyTorch's]")
]
Loss = Annotated[
    str | None,
    typer.Option(
        metavar="PATH:FN", help="fn(outputs, targets). [default: cross entropy; model(**batch).loss for mappings]"
    ),
]
ComputeLoss = Annotated[
    str | None, typer.Option(metavar="PATH:FN", help="fn(model, batch) that returns the loss; in place of --loss.")
]
Step = Annotated[
    str | None,
    typer.Option(
        metavar="PATH:FN",
        help="make_step(device) that returns step(batch): your whole training step. Only the loader is tuned then.",
    ),
]
Accumulate = Annotated[
    int, typer.Option(metavar="N", help="Batches per optimizer step, which uses the mean of their gradients.")
]
BatchDim = Annotated[
    int | None,
    typer.Option(metavar="N", help="Dimension of a batch's tensors along which samples lie. [default: detected]"),
]
DataRoot = Annotated[str | None, typer.Option(help="Folder that the torchvision dataset reads.")]
ImageSize = Annotated[int | None, typer.Option(help="Image height and width in pixels. [default: the model's]")]
NumClasses = Annotated[int | None, typer.Option(help="Number of classes. [default: the dataset's, else 1000]")]
Optimizer = Annotated[
    str,
    typer.Option(
        metavar="sgd|adamw|PATH:FN", help="sgd (with momentum 0.9), adamw, or fn(parameters) that returns an optimizer."
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="Baseline: your batch size. The best at this size is reported too. [default: your loader's, else 64]"
    ),
]
NumWorkers = Annotated[int | None, typer.Option(help="Baseline: your num_workers. [default: your loader's, else 0]")]
PinMemory = Annotated[
    bool | None,
    typer.Option("--pin-memory/--no-pin-memory", help="Baseline: your pin_memory. [default: your loader's, else no]"),
]
PersistentWorkers = Annotated[
    bool | None,
    typer.Option(
        "--persistent-workers/--no-persistent-workers",
        help="Baseline: your persistent_workers. [default: your loader's, else no]",
    ),
]
Amp = Annotated[str | None, typer.Option(metavar="off|fp16|bf16", help="Baseline: your AMP dtype. [default: off]")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 or a GPU's UUID. [default: the GPU with most free memory]")
]
Precisions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="off|fp16|bf16",
        help="Precisions to try; repeat, or join by commas. [default: all that the device supports]",
    ),
]
MaxBatchSize = Annotated[int | None, typer.Option(help="Largest batch size to try. [default: what fits]")]
MaxGpuMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="GPU memory that training may use, such as 24GiB. [default: all that is free]"),
]
RanksPerNode = Annotated[
    int,
    typer.Option(metavar="N", help="Measure one rank of N on this machine: cores, RAM and /dev/shm are divided by N."),
]
Probe = Annotated[
    str,
    typer.Option(
        metavar="bound|all",
        help="Largest batch that fits: predict it per precision and verify the winner's, or verify all of them.",
    ),
]
Remedies = Annotated[
    str,
    typer.Option(
        metavar="none|auto|all",
        help="Try changes of your code on the best settings: those that are expected to gain 3%, or all that apply.",
    ),
]
MaxWorkers = Annotated[
    int | None, typer.Option(help="Largest num_workers to try. [default: the usable cores; more where workers wait]")
]
Tune = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Tune this as well: prefetch_factor, memory_format, in_order, persistent_workers or compile; repeat, or"
        " join by commas.",
    ),
]
Fix = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Keep a setting at this value; repeat, or join by commas."),
]
WarmStart = Annotated[
    str | None,
    typer.Option(metavar="RESULT", help="Try the best configuration of this result.json or run's folder first."),
]
Resume = Annotated[
    str | None,
    typer.Option(metavar="[FOLDER]", help="Continue this run, or the newest one; --trials then adds that many."),
]
Objective = Annotated[
    str,
    typer.Option(
        metavar="samples-per-s|samples-per-joule", help="What to maximize; joules are those of the GPU board."
    ),
]
Trials = Annotated[int, typer.Option(help="Largest number of trials that are measured.")]
TimeBudget = Annotated[float, typer.Option(help="Time limit of the whole run, in seconds.")]
Out = Annotated[str, typer.Option(help="Folder in which the run makes its own folder.")]
Seed = Annotated[int, typer.Option(help="Seed of the data order and of the order of measurements.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON to stdout, everything else to stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress; warnings stay.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print tracebacks; keep the log of a run that failed.")]


def stray(word: str) -> str:
    """The message for a word before which no option stands, such as a model's name without ``--model``."""
    found = f"{word!r} stands without an option. "
    if not word[:1].isalpha():
        return f"{found}Each option takes one value. Remove the word, or put its option before it."
    return f"{found}If it is the model, write --model {word}; if it is the dataset, write --dataset {word}."


class RunCommand(TyperCommand):
    """Takes options only, and lets ``--resume`` come without a folder; typer can declare neither."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for at, word in enumerate(args):
            if word == "--resume" and (at + 1 == len(args) or args[at + 1].startswith("-")):
                args = [*args[:at], f"--resume={NEWEST}", *args[at + 1 :]]
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            ctx.fail(stray(rest[0]))
        return rest


NEWEST = ":newest"
"""Stands for the newest run; no folder of a run has a colon in its name."""

RUN_EXAMPLES = """\b
Examples:
  loadtune run --dataset FakeData --model resnet50
  loadtune run --dataset train:make_dataset --model train:make_model \\
    --batch-size 64 --num-workers 4 --pin-memory --amp bf16
  loadtune run --loader train.py:make_loader --model train.py:make_model \\
    --loss train.py:loss --optimizer train.py:make_optimizer
  loadtune run --dataset CIFAR10 --data-root ~/data --model resnet18 \\
    --time-budget 120 --precision bf16
  loadtune run --resume"""

MEMORY_EXAMPLES = """\b
Examples:
  loadtune memory --model resnet50 --batch-size 32 --memory 24GiB
  loadtune memory --model vit_b_16 --precision bf16 --per-layer
  loadtune memory --model resnet50 --batch-size 32 --what-if
  loadtune memory --trace train.py"""


def given(ctx: typer.Context) -> set[str]:
    """Names of the options that were given on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
