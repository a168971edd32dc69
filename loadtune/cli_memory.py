"""``loadtune memory``: where the memory of a training step goes.

An estimate is made in this process: nothing is trained, and no CUDA context is created. A training measures on a GPU.
torch is imported within the command, with `loadtune.footprint`, so that ``--help`` stays fast.
"""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from loadtune.cli_options import Json, Verbose, settings, takes
from loadtune.ending import show, told_plainly
from loadtune.errors import NothingFitsError, UsageError, WorkloadError
from loadtune.options import TABLE, check, memory_of, number_of, one_of, with_settings
from loadtune.records.config import PRECISIONS, Precision, TuneConfig, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.footprint import FootprintReport, StepAccount

# Large enough that activations show their share, and what most scripts begin with.
_BATCH_SIZE = "32"
_JOB = [row for row in TABLE if row.owner is WorkloadSpec and row.name not in ("step", "accumulate")]


@takes([replace(row, option=replace(row.option, panel="What to train")) for row in _JOB])
def memory(
    batch_size: Annotated[str, typer.Option(metavar="N", help="Batch size of the step.")] = _BATCH_SIZE,
    precision: Annotated[str, typer.Option(metavar="fp32|fp16|bf16", help="Precision of the step.")] = "fp32",
    device: Annotated[
        str | None,
        typer.Option(
            "--device",  # typer 0.27 would call it --DEVICE
            metavar="DEVICE",
            help="cuda, cuda:1 or a GPU's UUID: measure there. cpu: estimate from tensor shapes. [default: the GPU with"
            " most free memory, else cpu]",
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="24GiB", help="Also estimate the largest batch for this much GPU memory.")
    ] = None,
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
      loadtune memory --trace train.py
    """
    with told_plainly(verbose):
        if trace is not None:
            if per_layer or memory or batch_size != _BATCH_SIZE:
                raise UsageError("--trace runs a script; of the other options it takes --json only.")
            _trace(trace, arguments or [], json=json)
            return
        if arguments:
            raise UsageError(f"{arguments[0]!r} stands without an option. Arguments of a script need --trace SCRIPT.")
        found = one_of("--precision", precision.lower(), PRECISIONS)
        size = number_of("--batch-size", int, batch_size, 1)
        given = settings(_JOB, words)
        spec = check(with_settings(TuneConfig(), given), given).workload
        num_bytes = None if memory is None else memory_of("--memory", memory)
        gpu = None if device == "cpu" else _gpu(device)
        report = _report(spec, found, size, gpu, num_bytes, per_layer=per_layer)
        from loadtune.report.footprint import footprint_view
        from loadtune.report.store import as_json
        from loadtune.report.tables import view_text

        if json:
            typer.echo(as_json(report).decode(), nl=False)
        else:
            show(view_text(footprint_view(report)))


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


def _gpu(requested: str | None) -> Device | None:
    """Where to measure. None: there is no GPU; a line on stderr says so."""
    from loadtune.host.machine import choose_device, read_host

    chosen = choose_device(read_host(), requested)
    if chosen.kind == "cuda":
        return chosen
    typer.echo("Found no CUDA GPU: estimating from tensor shapes, as with --device cpu.", err=True)
    return None


def _report(
    spec: WorkloadSpec,
    precision: Precision,
    batch_size: int,
    gpu: Device | None,
    memory_bytes: int | None,
    *,
    per_layer: bool,
) -> FootprintReport:
    """Measured on the GPU, with the estimate beside it; None: the estimate alone. This process has no CUDA context."""
    from loadtune.footprint.estimate import estimate_step, largest_batch, plan_of_spec

    plan = plan_of_spec(spec, precision)
    measured = None if gpu is None else _measured(spec, gpu, precision, batch_size)
    try:
        estimate, layers = estimate_step(plan, batch_size)
    except WorkloadError:  # the forward pass depends on the values of tensors: shapes are not enough
        if measured is None or per_layer or memory_bytes is not None:
            raise
        return FootprintReport(account=measured)
    return FootprintReport(
        account=measured or estimate,
        estimate=None if measured is None else estimate,
        layers=layers if per_layer else (),
        largest_batch=None if memory_bytes is None else largest_batch(plan, memory_bytes),
    )


def _measured(spec: WorkloadSpec, gpu: Device, precision: Precision, batch_size: int) -> StepAccount:
    """Raises WorkloadError, NothingFitsError, TrainingError."""
    from loadtune.training import TrainingClient

    with TrainingClient(spec, gpu) as training:
        training.describe()  # says what of the workload does not train
        found = training.account(precision, batch_size)
    if isinstance(found, StepAccount):
        return found
    if found.is_of_memory:
        raise NothingFitsError(
            f"A batch of {batch_size} does not fit into GPU memory: {found.message} Lower --batch-size."
        )
    raise WorkloadError(f"The memory of the step could not be measured: {found.message}", found.log_tail or None)
