"""``loadtune memory``: where the memory of a training step goes. Words to a plan, a `FootprintReport` to the terminal.

It runs in this command's own process, unlike a run of the tuner: nothing is trained, so nothing can crash, and no CUDA
context is created. torch comes in with `loadtune.footprint`, within the command, so that ``--help`` answers at once.
"""

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from loadtune.arguments import check_at_least, memory_of, precision_of, workload_of
from loadtune.ending import told_plainly
from loadtune.errors import UsageError
from loadtune.records import FootprintReport, Precision, WorkloadSpec
from loadtune.terminal import show

_DEFAULT = WorkloadSpec()
# Large enough that activations show their share, and what most scripts begin with.
_DEFAULT_BATCH_SIZE = 32


def memory(
    dataset: Annotated[
        str, typer.Option(help="FakeData, a class of torchvision.datasets, or pkg.mod:factory.")
    ] = _DEFAULT.dataset,
    model: Annotated[
        str, typer.Option(help="A name of torchvision.models.list_models(), or pkg.mod:factory.")
    ] = _DEFAULT.model,
    data_root: Annotated[str | None, typer.Option(help="Folder that torchvision's dataset reads.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Height and width in pixels. [default: the model's]")] = None,
    num_classes: Annotated[int | None, typer.Option(help="Classes. [default: the dataset's, else 1000]")] = None,
    optimizer: Annotated[str, typer.Option(metavar="sgd|adamw", help="What updates the weights.")] = "sgd",
    batch_size: Annotated[int, typer.Option(help="Samples in the step.")] = _DEFAULT_BATCH_SIZE,
    precision: Annotated[str, typer.Option(metavar="off|fp16|bf16", help="What autocast computes in.")] = "off",
    estimate: Annotated[
        bool, typer.Option("--estimate", help="From shapes, without running. [default: where CUDA is missing]")
    ] = False,
    memory: Annotated[
        str | None, typer.Option(metavar="24GiB", help="Also estimate the largest batch for so much memory.")
    ] = None,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="Also what each layer returns and keeps.")] = False,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Also what checkpointing the model's blocks would leave.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="SCRIPT", help="Instead run this script, and show each line's memory.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="With --trace: a file or folder of yours; repeatable.")] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="With --trace: the script's own, after --.")] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Show where the memory of one training step goes."""
    with told_plainly(debug):
        if trace is not None:
            _trace(trace, arguments or [], only, as_json=json)
        if only or arguments:
            raise UsageError(f"{(only or arguments or [''])[0]!r} belongs to a script: name that with --trace.")
        for flag, value in (
            ("--batch-size", batch_size),
            ("--image-size", image_size),
            ("--num-classes", num_classes),
        ):
            check_at_least(flag, value, 1)
        spec = workload_of(dataset, model, data_root, image_size, num_classes, optimizer, _DEFAULT.seed)
        named = precision_of("--precision", precision)
        capacity = None if memory is None else memory_of("--memory", memory)
        if not estimate:
            _say_why_estimated()
        report = _report(spec, named, batch_size, capacity, per_layer=per_layer, checkpoint=checkpoint)
        _print_report(report, as_json=json)


def _trace(script: Path, arguments: list[str], only: list[str] | None, *, as_json: bool) -> NoReturn:
    """Show what each line of the script did to memory, and end as the script would have."""
    from loadtune.footprint.trace import run_traced, trace_json, trace_text

    found = run_traced(script, arguments, only)
    typer.echo(trace_json(found) if as_json else trace_text(found))
    if found.error:
        typer.echo(found.error, err=True)
    raise typer.Exit(found.exit_code)


def _say_why_estimated() -> None:
    from loadtune.host import read_host

    if not read_host().gpus:
        typer.echo("No CUDA device is here: estimated from shapes, as with --estimate.", err=True)
    else:
        typer.echo("A measured account is not available yet: estimated from shapes, as with --estimate.", err=True)


def _report(
    spec: WorkloadSpec,
    precision: Precision,
    batch_size: int,
    capacity: int | None,
    *,
    per_layer: bool,
    checkpoint: bool,
) -> FootprintReport:
    from loadtune.footprint.estimate import estimate_layers, estimate_step, largest_batch
    from loadtune.footprint.plan import plan_of_spec

    plan = plan_of_spec(spec, precision)
    return FootprintReport(
        account=estimate_step(plan, batch_size),
        checkpointed=estimate_step(plan, batch_size, checkpoint=True) if checkpoint else None,
        layers=estimate_layers(plan, batch_size) if per_layer else (),
        largest_batch=None if capacity is None else largest_batch(plan, capacity),
    )


def _print_report(report: FootprintReport, *, as_json: bool) -> None:
    from loadtune.report import store

    if as_json:
        typer.echo(store.as_json(report).decode(), nl=False)
        return
    from loadtune.report.footprint import footprint_view
    from loadtune.report.text import footprint_text

    show(footprint_text(footprint_view(report)), sys.stdout)
