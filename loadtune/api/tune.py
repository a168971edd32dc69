"""A run, from what a user gives to its result."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtune import __version__
from loadtune.api.adopt import TuningResult
from loadtune.api.objects import Job, config_of, job_of, pack_job, refuse_recursion
from loadtune.api.options import FLAGS, TABLE, check, in_python, python_names, with_command
from loadtune.errors import UsageError
from loadtune.host.machine import choose_device, machine_probes, read_host
from loadtune.host.telemetry import Sampler
from loadtune.records.config import LiveObjects, TuneConfig, WorkloadSpec
from loadtune.records.result import Result
from loadtune.report.live import LiveDisplay
from loadtune.report.sentences import warning
from loadtune.run.measure import Run
from loadtune.run.state import State
from loadtune.script.process import ScriptProcess
from loadtune.script.protect import protection_here
from loadtune.seams import Listener
from loadtune.store import LOG_FILE, RUN_FILE, run_folder
from loadtune.story import tune_on
from loadtune.training.client import TrainingClient
from loadtune.units import plain

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset


def tune(
    loader: "DataLoader[Any] | Callable[[], DataLoader[Any]] | Job | str | None" = None,
    *,
    dataset: "Dataset[Any] | Callable[[], Dataset[Any]] | str | None" = None,
    collate: Callable[[list[Any]], Any] | str | None = None,
    model: "nn.Module | Callable[[], nn.Module] | str | None" = None,
    loss: "Callable[[Any, Any], torch.Tensor] | str | None" = None,
    optimizer: "str | Callable[[Any], torch.optim.Optimizer] | None" = None,
    folder: str | os.PathLike[str] | None = None,
    listener: Listener | None = None,
    resume: bool = False,
    **settings: Any,
) -> TuningResult:
    """Find the fastest configuration for this machine; write ``result.json``, ``report.html`` and more to `folder`.

    loader: a DataLoader, a function without arguments that returns one, or a `Job` that holds all parts. The loader's
        settings are the baseline.
    dataset, collate: instead of a loader a dataset, or a function without arguments that returns one, and its collate
        function.
    model: a ``torch.nn.Module``, or a function without arguments that returns one.
    loss: (outputs, targets) → scalar tensor, or (model, batch) → scalar tensor: a function whose first argument is
        called ``model``, or the second ``batch``. None: cross entropy, or ``model(**batch).loss`` for mappings.
    optimizer: ``sgd`` (momentum 0.9), ``adamw``, or a function (parameters) → torch.optim.Optimizer. None: ``sgd``.
    settings: every option of ``loadtune run`` that has a name in Python: ``batch_size=64, precision="bf16",
        time_budget_s=120``. docs/options.md lists them.
    listener: called with the progress of the run. None: the progress is shown on stderr, in a notebook as a bar.

    Parts can be names, too: ``model="resnet50"``, ``dataset="train.py:make_dataset"``. The training process works on
    copies of the objects, made by pickling. `folder` defaults to a new one below ``out``. With `resume` the run
    in `folder`, which was cut short, continues; a run of objects needs the same objects again. A run that ended, or
    cannot be resumed, is left unchanged. Ctrl-C ends the run early, and so does the end of ``time_budget_s``, counted
    from this call: the result says so and contains only what was confirmed. Raises LoadtuneError for an error that the
    user can correct, OutOfTimeError where time ended before anything was measured.
    """
    refuse_recursion("loadtune.tune")
    others = {"dataset": dataset, "collate": collate, "model": model, "loss": loss, "optimizer": optimizer}
    with python_names():
        config = config_of("tune", settings, FLAGS)
        job = job_of("tune", loader, others, {"loader": loader, **others})
        spec, objects = pack_job(config.workload, job)
        yours = config.yours if job.precision is None else replace(config.yours, precision=job.precision)
        config = check(replace(config, workload=spec, yours=yours), {*settings, *job.parts})
        where = _given_folder(folder, resume)
        return TuningResult.of(tune_config(config, where, listener, objects=objects, resume=resume))


def tune_command(
    command: Sequence[str | os.PathLike[str]],
    *,
    folder: str | os.PathLike[str] | None = None,
    listener: Listener | None = None,
    resume: bool = False,
    **settings: Any,
) -> TuningResult:
    """Find the fastest configuration for a training script, as ``loadtune run -- COMMAND`` does.

    command: starts the script, as a list of words: ``["python", "train.py", "--epochs", "90"]``, or
        ``["torchrun", "--nproc-per-node", "8", "train.py"]``, whose ranks train in step.
    settings: those of `tune` that do not describe the job: ``time_budget_s=120, max_batch_size=512``.

    The script's own loader settings and precision are the baseline; ``batch_size``, ``num_workers`` and others of
    `tune` go before them. `folder`, `listener`, `resume`, errors and the result are those of `tune`.
    """
    with python_names():
        if isinstance(command, str | os.PathLike) or not all(isinstance(each, str | os.PathLike) for each in command):
            raise UsageError(f"the command is {command!r}; it must be a list of words, such as ['python', 'train.py'].")
        names = [row.name for row in TABLE if row.owner is not WorkloadSpec]
        config = with_command(config_of("tune_command", settings, names), [os.fspath(word) for word in command])
        where = _given_folder(folder, resume)
        return TuningResult.of(tune_config(check(config, settings), where, listener, resume=resume))


def _given_folder(folder: str | os.PathLike[str] | None, resume: bool) -> Path | None:
    if resume and not folder:
        raise UsageError("resume is True without a folder. Give folder, that of the run to continue.")
    return Path(folder) if folder else None


def tune_config(
    config: TuneConfig,
    folder: Path | None,
    listener: Listener | None,
    *,
    objects: LiveObjects | None = None,
    resume: bool = False,
) -> Result:
    """`tune` of a config that was checked."""
    host = read_host()
    device = choose_device(host, config.device)
    shown: AbstractContextManager[Listener] = LiveDisplay(sys.stderr, name="loadtune: ", words=in_python)
    if listener is not None:
        shown = nullcontext(listener)
    command = config.workload.command
    protection = protection_here(unprotected=config.unprotected) if command else None
    freest = sorted(host.gpus, key=lambda gpu: -gpu.free_bytes) if config.device is None else ()
    others = [gpu.uuid for gpu in freest if gpu.uuid != device.uuid]
    with run_folder(folder, Path(config.out), config.workload.label) as folder, shown as told:
        training = TrainingClient(
            config.workload,
            device,
            log_path=folder / LOG_FILE,
            hang_s=min(120.0, max(30.0, 0.2 * config.time_budget_s)),  # the time budget ends each request, too
            objects=objects,
            max_memory_bytes=config.max_gpu_memory_bytes,
            launch=None if protection is None else partial(ScriptProcess, command, protection, others=others),
        )
        with training, Sampler(machine_probes(device, lambda: training.pid)) as sensor:
            state = State(config, host, device, __version__)
            run = Run(state, time.monotonic, training, sensor, folder, read_host, told)
            if protection is not None:
                run.journal.tell(protection.text)
            result = tune_on(run, resume=resume)
    if listener is None:
        lines = [*filter(None, [warning(result)]), f"the result and its report are in {folder}"]
        if result.cut_short is not None and (folder / RUN_FILE).exists():
            lines.append(f"to continue, add to the same call: folder={str(folder)!r}, resume=True")
        with suppress(OSError):  # a full disk, or nobody reads it
            sys.stderr.write("".join(f"loadtune: {plain(in_python(line))}\n" for line in lines))
    return result
