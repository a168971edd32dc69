"""``loadtune memory``: where the memory of a training step goes. An estimate is made in this process, without a CUDA
context; the training process measures on a GPU. torch is imported within the command, so that ``--help`` stays fast.
"""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtune.api.options import TABLE, check, with_settings
from loadtune.cli.ending import show
from loadtune.cli.options import JSON, VERBOSE, Parser, of_row, option, settings
from loadtune.errors import NothingFitsError, UsageError, WorkloadError
from loadtune.records.config import Precision, TuneConfig, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.memory import FootprintReport, StepAccount

_ROWS = {row.name: row for row in TABLE}
_BATCH_SIZE = 32  # large enough that activations show their share, and what most scripts begin with
_STEP = (
    *(row for row in TABLE if row.owner is WorkloadSpec and row.name != "accumulate"),
    replace(_ROWS["batch_size"], help="Batch size of the step.", default=str(_BATCH_SIZE)),
    replace(_ROWS["precision"], help="Precision of the step.", flags=("--precision",)),
    replace(
        _ROWS["device"],
        help="cuda, cuda:1 or a GPU's UUID: measure there. cpu: estimate from tensor shapes.",
        default="the GPU with most free memory, else cpu",
    ),
    replace(
        _ROWS["max_gpu_memory_bytes"],
        help="Also estimate the largest batch for this much GPU memory.",
        flags=("--memory",),
        value="24GiB",
        default=None,
    ),
)


def memory(arguments: list[str], per_layer: bool, trace: str | None, json: bool, verbose: bool, **words: Any) -> None:
    """Show where the memory of one training step goes.

    Measured on a GPU, with an estimate from tensor shapes beside it. Without a GPU: the estimate alone.

    Examples:

      loadtune memory --model resnet50 --batch-size 32 --memory 24GiB
      loadtune memory --model vit_b_16 --precision bf16 --per-layer
      loadtune memory --trace train.py
    """
    given = settings(_STEP, words)
    if trace is not None:
        beside = [row.flag for row in _STEP if row.name in given and row.name != "device"] + ["--per-layer"] * per_layer
        if beside:
            raise UsageError(
                f"--trace runs a script, which has its own data, model and settings. Leave {', '.join(beside)} out: "
                "with --trace only --json and --verbose can be given."
            )
        _trace(Path(trace), arguments, json=json)
        return
    if arguments:
        raise UsageError(f"{arguments[0]!r} stands without an option. Arguments of a script need --trace SCRIPT.")
    from loadtune.host.machine import choose_device, read_host
    from loadtune.report.footprint import footprint_view

    config = check(with_settings(TuneConfig(), given), given)
    chosen = choose_device(read_host(), config.device)
    gpu = chosen if chosen.kind == "cuda" else None
    if gpu is None and config.device is None:
        print("Found no CUDA GPU: estimating from tensor shapes, as with --device cpu.", file=sys.stderr)
    report = _report(config, gpu, per_layer=per_layer)
    show(footprint_view(report), report, json=json)


_ARGUMENTS = "With --trace: arguments of the script, after --."
_TRACE = "Instead run this script and show the memory of each line."
MEMORY = Parser(
    memory,
    *(of_row(replace(row, panel="What to train")) for row in _STEP),
    option("--per-layer", help="Also list each layer's parameters and saved activations."),
    option("--trace", help=_TRACE, value="SCRIPT"),
    option("arguments", help=_ARGUMENTS, value="ARGUMENTS", nargs="*"),
    *(JSON, VERBOSE),
    takes="[ARGUMENTS]...",
)


def _trace(script: Path, arguments: list[str], *, json: bool) -> None:
    """Show the memory of each line of the script, however it ends; its exception or exit code is the command's."""
    from loadtune.footprint.trace import run_traced, trace_memory

    trace = trace_memory()
    try:
        with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():  # stdout is the JSON's
            run_traced(script, arguments, trace)
    finally:
        if trace.lines:
            print(trace.json().decode() if json else trace.text(), end="")


def _report(config: TuneConfig, gpu: Device | None, *, per_layer: bool) -> FootprintReport:
    """Measured on the GPU, with the estimate beside it; None: the estimate alone. This process has no CUDA context."""
    from loadtune.footprint.estimate import estimate_step, largest_batch, plan_of_spec

    spec, memory_bytes = config.workload, config.max_gpu_memory_bytes
    batch_size, precision = config.yours.batch_size or _BATCH_SIZE, config.yours.precision or "fp32"
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
    from loadtune.training.client import TrainingClient

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
