"""``loadtune memory``: where the memory of a training step goes. In: options. Out: a `FootprintReport` on the terminal.

An estimate is made in this process: nothing is trained, and no CUDA context is created. A training measures on a GPU.
torch is imported within the command, with `loadtune.footprint`, so that ``--help`` stays fast.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadtune.cli_options import Json, Verbose, settings, takes
from loadtune.ending import show, told_plainly
from loadtune.errors import UsageError
from loadtune.options import TABLE, check, check_at_least, memory_of, one_of, with_settings
from loadtune.records.config import PRECISIONS, TuneConfig, WorkloadSpec
from loadtune.records.facts import Device

if TYPE_CHECKING:
    from loadtune.training import TrainingClient

# Large enough that activations show their share, and what most scripts begin with.
_BATCH_SIZE = 32
_JOB = [row for row in TABLE if row.owner is WorkloadSpec and row.name not in ("step", "accumulate")]


@takes([replace(row, option=replace(row.option, panel="What to train")) for row in _JOB])
def memory(
    batch_size: Annotated[int, typer.Option(metavar="N", help="Batch size of the step.")] = _BATCH_SIZE,
    precision: Annotated[str, typer.Option(metavar="fp32|fp16|bf16", help="Precision of the step.")] = "fp32",
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="cuda, cuda:1 or a GPU's UUID: measure there. cpu: estimate from tensor shapes. [default: the GPU with"
            " most free memory, else cpu]",
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="24GiB", help="Also estimate the largest batch for this much GPU memory.")
    ] = None,
    what_if: Annotated[
        bool,
        typer.Option("--what-if", help="Also compare other precisions, other optimizers and activation checkpointing."),
    ] = False,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Also list each layer's parameters and saved activations.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="SCRIPT", help="Instead run this script and show the memory of each line.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="With --trace: arguments of the script, after --.")
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
    **words: Any,
) -> None:
    """Show where the memory of one training step goes.

    Measured on a GPU, with an estimate from tensor shapes beside it. Without a GPU: the estimate alone.

    Examples:

    \b
      loadtune memory --model resnet50 --batch-size 32 --memory 24GiB
      loadtune memory --model vit_b_16 --precision bf16 --per-layer
      loadtune memory --model resnet50 --batch-size 32 --what-if
      loadtune memory --trace train.py
    """
    with told_plainly(verbose):
        if trace is not None:
            if what_if or per_layer or memory or batch_size != _BATCH_SIZE:
                raise UsageError("--trace runs a script; of the other options it takes --json only.")
            _trace(trace, arguments or [], json=json)
            return
        if arguments:
            raise UsageError(f"{arguments[0]!r} stands without an option. Arguments of a script need --trace SCRIPT.")
        check_at_least("--batch-size", batch_size, 1)
        found = one_of("--precision", precision.lower(), PRECISIONS)
        given = settings(_JOB, words)
        spec = check(with_settings(TuneConfig(), given), given).workload
        from loadtune.report.footprint import footprint_view
        from loadtune.report.store import as_json
        from loadtune.report.tables import view_text
        from loadtune.step_memory import Wanted, step_report

        wanted = Wanted(
            precision=found,
            batch_size=batch_size,
            memory_bytes=None if memory is None else memory_of("--memory", memory),
            per_layer=per_layer,
            what_if=what_if,
        )
        report = step_report(spec, wanted, None if device == "cpu" else _measuring(spec, device))
        if json:
            typer.echo(as_json(report), nl=False)
        else:
            show(view_text(footprint_view(report)), sys.stdout)


def _trace(script: Path, arguments: list[str], *, json: bool) -> None:
    """Show the memory of each line of the script, however it ends; its exception or exit code is the command's."""
    from loadtune.footprint.trace import run_traced, trace_memory

    trace = trace_memory()
    try:
        with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():  # stdout is the JSON's
            run_traced(script, arguments, trace)
    finally:
        if trace.lines:
            typer.echo(trace.json() if json else trace.text(), nl=False)


def _measuring(
    spec: WorkloadSpec, requested: str | None
) -> "Callable[[], AbstractContextManager[TrainingClient]] | None":
    """What opens a training on the GPU. None: there is none to measure on; a line on stderr says so."""
    from loadtune.host import choose_device, read_host

    chosen = choose_device(read_host(), requested)
    if chosen.kind == "cuda":
        return lambda: _training(spec, chosen)
    typer.echo("Found no CUDA GPU: estimating from tensor shapes, as with --device cpu.", err=True)
    return None


@contextmanager
def _training(spec: WorkloadSpec, device: Device) -> "Iterator[TrainingClient]":
    from loadtune.training import TrainingClient

    with TrainingClient(spec, device) as training:
        training.start()
        yield training
