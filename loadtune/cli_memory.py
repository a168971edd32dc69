"""``loadtune memory``: where the memory of a training step goes. In: options. Out: a `FootprintReport` on the terminal.

An estimate is made in this process: nothing is trained, and no CUDA context is created. A bench measures on a GPU.
torch is imported within the command, with `loadtune.footprint`, so that ``--help`` stays fast.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from loadtune import options
from loadtune.arguments import check_at_least, check_job, check_together, memory_of, precision_of
from loadtune.ending import told_plainly
from loadtune.errors import UsageError
from loadtune.records.config import WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.footprint import FootprintReport
from loadtune.terminal import show

if TYPE_CHECKING:
    from loadtune.bench import BenchClient

_DEFAULT = WorkloadSpec()
# Large enough that activations show their share, and what most scripts begin with.
_DEFAULT_BATCH_SIZE = 32
_COUNTS = ("--batch-size", "--image-size", "--num-classes")


def memory(
    ctx: typer.Context,
    dataset: options.Dataset = _DEFAULT.dataset,
    model: options.Model = _DEFAULT.model,
    data_root: options.DataRoot = None,
    image_size: options.ImageSize = None,
    num_classes: options.NumClasses = None,
    loader: options.MemoryLoader = None,
    collate: options.Collate = None,
    loss: options.Loss = None,
    compute_loss: options.ComputeLoss = None,
    optimizer: options.Optimizer = "sgd",
    batch_dim: options.BatchDim = None,
    batch_size: Annotated[int, typer.Option(help="Batch size of the step.")] = _DEFAULT_BATCH_SIZE,
    precision: Annotated[
        str, typer.Option(metavar="off|fp16|bf16", help="Mixed precision (AMP). off: float32.")
    ] = "off",
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Estimate from tensor shapes. [default: where there is no CUDA GPU]")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            help="cuda, cuda:1 or a GPU's UUID: measure there. cpu: estimate. [default: GPU with most free memory]"
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="24GiB", help="Also estimate the largest batch for this much GPU memory.")
    ] = None,
    what_if: Annotated[
        bool,
        typer.Option(
            "--what-if", help="Also compare other precisions, optimizers, image sizes, and activation checkpointing."
        ),
    ] = False,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Also list each layer's parameters, output and saved activations.")
    ] = False,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Also show the step with activation checkpointing.")
    ] = False,
    checkpoint_segments: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --checkpoint or --what-if: run the longest nn.Sequential in N segments. [default: each block is"
            " checkpointed; in a model without blocks, about sqrt(number of layers) segments]",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="SCRIPT", help="Instead run this script and show the memory of each line.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="With --trace: show lines of this file or folder only. Can be repeated."),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="With --trace: arguments of the script, after --.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Show where the memory of one training step goes.

    Measured on a GPU, with an estimate from tensor shapes beside it. Without a GPU: the estimate alone.
    """
    with told_plainly(debug):
        if trace is not None:
            if what_if or per_layer or checkpoint or memory or estimate or batch_size != _DEFAULT_BATCH_SIZE:
                raise UsageError("--trace runs a script; of the other options it takes --only and --json only.")
            _trace(trace, arguments or [], only, as_json=json)
        if only:
            raise UsageError(f"--only is {only[0]!r}; it needs --trace SCRIPT. Add --trace, or leave --only out.")
        if arguments:
            raise UsageError(f"{options.stray(arguments[0])} Arguments of a script need --trace SCRIPT.")
        for flag, value in zip(_COUNTS, (batch_size, image_size, num_classes), strict=True):
            check_at_least(flag, value, 1)
        if checkpoint_segments is not None and not (checkpoint or what_if):
            raise UsageError("--checkpoint-segments needs --checkpoint or --what-if. Add one of them.")
        check_at_least("--checkpoint-segments", checkpoint_segments, 2)
        spec = WorkloadSpec(
            dataset=dataset,
            model=model,
            data_root=data_root,
            image_size=image_size,
            num_classes=num_classes,
            loader=loader,
            collate=collate,
            loss=loss,
            compute_loss=compute_loss,
            optimizer=optimizer,
            batch_dim=batch_dim,
        )
        check_together(options.given(ctx))
        check_job(spec)
        from loadtune.step_memory import Wanted, step_report

        wanted = Wanted(
            precision=precision_of("--precision", precision),
            batch_size=batch_size,
            memory_bytes=None if memory is None else memory_of("--memory", memory),
            per_layer=per_layer,
            checkpoint=checkpoint,
            checkpoint_segments=checkpoint_segments,
            what_if=what_if,
        )
        report = step_report(spec, wanted, None if estimate else _measuring(spec, device))
        _print_report(report, as_json=json)


def _trace(script: Path, arguments: list[str], only: list[str] | None, *, as_json: bool) -> NoReturn:
    """Show the memory of each line of the script, and exit as the script would."""
    from loadtune.footprint.trace import run_traced, trace_json, trace_text

    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():  # stdout is the JSON's
        found = run_traced(script, arguments, only)
    typer.echo(trace_json(found) if as_json else trace_text(found))
    if found.error:
        typer.echo(found.error, err=True)
    raise typer.Exit(found.exit_code)


def _measuring(spec: WorkloadSpec, requested: str | None) -> "Callable[[], AbstractContextManager[BenchClient]] | None":
    """What opens a bench on the GPU. None: there is none to measure on; a line on stderr says so."""
    from loadtune.host import choose_device, read_host

    chosen = choose_device(read_host(), requested)
    if chosen.kind == "cuda":
        return lambda: _bench(spec, chosen)
    why = "Memory can be measured on a CUDA GPU only" if requested else "Found no CUDA GPU"
    typer.echo(f"{why}: estimating from tensor shapes, as with --estimate.", err=True)
    return None


@contextmanager
def _bench(spec: WorkloadSpec, device: Device) -> "Iterator[BenchClient]":
    from loadtune.bench import BenchClient

    with BenchClient(spec, device) as bench:
        bench.start()
        yield bench


def _print_report(report: FootprintReport, *, as_json: bool) -> None:
    from loadtune.report import store

    if as_json:
        typer.echo(store.as_json(report), nl=False)
        return
    from loadtune.report.footprint import footprint_view
    from loadtune.report.text import view_text

    show(view_text(footprint_view(report)), sys.stdout)
