"""``loadtune memory``: where the memory of a training step goes. Words to a plan, a `FootprintReport` to the terminal.

Estimates are worked out in this command's own process: nothing is trained, so nothing can crash, and no CUDA context is
created. What is measured on a GPU is measured by a bench. torch comes in with `loadtune.footprint`, within the command,
so that ``--help`` answers at once.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from loadtune.arguments import check_at_least, memory_of, precision_of, workload_of
from loadtune.ending import told_plainly
from loadtune.errors import UsageError
from loadtune.options import stray
from loadtune.records import Device, FootprintReport, WorkloadSpec
from loadtune.terminal import show

if TYPE_CHECKING:
    from loadtune.bench import BenchClient

_DEFAULT = WorkloadSpec()
# Large enough that activations show their share, and what most scripts begin with.
_DEFAULT_BATCH_SIZE = 32
_COUNTS = ("--batch-size", "--image-size", "--num-classes")


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
    device: Annotated[
        str | None, typer.Option(help="cuda, cuda:1 or a UUID, to measure on; cpu: estimate. [default: freest GPU]")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="24GiB", help="Also estimate the largest batch for so much memory.")
    ] = None,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Also other precisions, optimizers, image sizes, and checkpointing.")
    ] = False,
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
            if what_if or per_layer or checkpoint or memory or estimate or batch_size != _DEFAULT_BATCH_SIZE:
                raise UsageError("--trace follows a script of yours; it takes --only and --json. Leave the rest out.")
            _trace(trace, arguments or [], only, as_json=json)
        _check_of_no_script(only, arguments)
        for flag, value in zip(_COUNTS, (batch_size, image_size, num_classes), strict=True):
            check_at_least(flag, value, 1)
        spec = workload_of(dataset, model, data_root, image_size, num_classes, optimizer, _DEFAULT.seed)
        from loadtune.step_memory import Wanted, step_report

        wanted = Wanted(
            precision=precision_of("--precision", precision),
            batch_size=batch_size,
            memory_bytes=None if memory is None else memory_of("--memory", memory),
            per_layer=per_layer,
            checkpoint=checkpoint,
            what_if=what_if,
        )
        report = step_report(spec, wanted, None if estimate else _measuring(spec, device))
        _print_report(report, as_json=json)


def _check_of_no_script(only: list[str] | None, arguments: list[str] | None) -> None:
    """Without --trace there is no script that these could be for."""
    if only:
        raise UsageError(f"--only is {only[0]!r}; it goes with --trace SCRIPT. Name the script, or leave --only out.")
    if arguments:
        raise UsageError(f"{stray(arguments[0])} A script's own arguments go with --trace SCRIPT.")


def _trace(script: Path, arguments: list[str], only: list[str] | None, *, as_json: bool) -> NoReturn:
    """Show what each line of the script did to memory, and end as the script would have."""
    from loadtune.footprint.trace import run_traced, trace_json, trace_text

    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():  # stdout is the JSON's
        found = run_traced(script, arguments, only)
    typer.echo(trace_json(found) if as_json else trace_text(found))
    if found.error:
        typer.echo(found.error, err=True)
    raise typer.Exit(found.exit_code)


def _measuring(spec: WorkloadSpec, requested: str | None) -> "Callable[[], AbstractContextManager[BenchClient]] | None":
    """What opens a bench on the GPU asked for. None: it is to be estimated, and why was said."""
    from loadtune.host import choose_device, read_host

    chosen = choose_device(read_host(), requested)
    if chosen.kind == "cuda":
        return lambda: _bench(spec, chosen)
    why = "A CPU keeps no books of memory" if requested else "No CUDA device is here"
    typer.echo(f"{why}: estimated from shapes, as with --estimate.", err=True)
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
    from loadtune.report.text import footprint_text

    show(footprint_text(footprint_view(report)), sys.stdout)
