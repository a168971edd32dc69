"""The options of ``loadtune run``, each with its help. Apart from `cli`, so that a command reads as what it does."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

Dataset = Annotated[str, typer.Option(help="FakeData, a class of torchvision.datasets, or pkg.mod:factory.")]
Model = Annotated[str, typer.Option(help="A name of torchvision.models.list_models(), or pkg.mod:factory.")]
DataRoot = Annotated[str | None, typer.Option(help="Folder that torchvision's dataset reads.")]
ImageSize = Annotated[int | None, typer.Option(help="Height and width in pixels. [default: the model's]")]
NumClasses = Annotated[int | None, typer.Option(help="Classes. [default: the dataset's, else 1000]")]
Optimizer = Annotated[str, typer.Option(metavar="sgd|adamw", help="What updates the weights.")]
BatchSize = Annotated[int | None, typer.Option(help="What you train with now; gives a second winner, at this size.")]
NumWorkers = Annotated[int | None, typer.Option(help="What you use now. [default: 0]")]
PinMemory = Annotated[bool | None, typer.Option("--pin-memory/--no-pin-memory", help="What you do now. [default: no]")]
Amp = Annotated[str | None, typer.Option(metavar="off|fp16|bf16", help="What you use now. [default: off]")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or a UUID. [default: the freest GPU]")]
Precisions = Annotated[
    list[str] | None,
    typer.Option(metavar="off|fp16|bf16", help="Which to consider; repeat or join by commas. [default: all]"),
]
MaxBatchSize = Annotated[int | None, typer.Option(help="Largest to consider. [default: what fits]")]
MaxGpuMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Most that training may take of the GPU, such as 24GiB.")
]
MaxWorkers = Annotated[int | None, typer.Option(help="Most to consider. [default: the usable cores]")]
Tune = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIMENSION",
        help="Search it too: prefetch_factor, memory_format, in_order, persistent_workers, compile; repeat or join by"
        " commas.",
    ),
]
Fix = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Do not search this dimension; repeat or join by commas."),
]
WarmStart = Annotated[
    str | None, typer.Option(metavar="RESULT", help="Try the winner of this result.json, or run's folder, first.")
]
Resume = Annotated[
    str | None,
    typer.Option(metavar="[FOLDER]", help="Go on with this run, or the newest; --trials then says how many more."),
]
Objective = Annotated[
    str,
    typer.Option(metavar="samples-per-s|samples-per-joule", help="What the best has most of; joules are the GPU's."),
]
Trials = Annotated[int, typer.Option(help="Most trials that are really run.")]
TimeBudget = Annotated[float, typer.Option(help="Seconds for the whole run.")]
Out = Annotated[str, typer.Option(help="Parent of the run's own folder.")]
Seed = Annotated[int, typer.Option(help="Of the search and of the workload.")]
Json = Annotated[bool, typer.Option("--json", help="Result as JSON on stdout, all else on stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No banner, no progress; warnings stay.")]
Debug = Annotated[bool, typer.Option("--debug", help="Tracebacks, and the log of a run that failed.")]


def stray(word: str) -> str:
    """What to do about a word that follows no option: mostly a name whose flag was left out."""
    found = f"{word!r} is given without an option before it. "
    if not word[:1].isalpha():
        return f"{found}Each option takes one value, and nothing stands alone."
    return f"{found}If it names the model, write --model {word}; if the dataset, --dataset {word}."


class RunCommand(TyperCommand):
    """It takes options alone, and ``--resume`` may come without a folder: typer knows no way to say either well."""

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
"""Stands for the newest run: no folder is called so, as a colon is no part of a run's name."""

RUN_EXAMPLES = """\b
Examples:
  loadtune run --dataset FakeData --model resnet50
  loadtune run --dataset train:make_dataset --model train:make_model \\
    --batch-size 64 --num-workers 4 --pin-memory --amp bf16
  loadtune run --dataset CIFAR10 --data-root ~/data --model resnet18 \\
    --time-budget 120 --precision bf16
  loadtune run --resume"""

MEMORY_EXAMPLES = """\b
Examples:
  loadtune memory --model resnet50 --batch-size 32 --memory 24GiB
  loadtune memory --model vit_b_16 --precision bf16 --per-layer
  loadtune memory --model resnet50 --batch-size 32 --what-if
  loadtune memory --trace train.py"""
