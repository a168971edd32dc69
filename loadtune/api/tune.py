"""A run, or the largest batch alone: from what a user gives to its result."""

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
from loadtune.api.given import (
    FLAGS,
    TABLE,
    Job,
    check,
    checked,
    config_of,
    in_python,
    is_loader,
    job_of,
    pack_job,
    python_names,
    refuse_recursion,
    whole,
    with_command,
)
from loadtune.decide.ceiling import MemoryProbe, verifying_seconds
from loadtune.decide.space import problems
from loadtune.errors import UsageError, one_of
from loadtune.host.machine import choose_device, machine_probes, read_host
from loadtune.host.telemetry import Sampler
from loadtune.model.workers import caps_of
from loadtune.records.config import PRECISIONS, LiveObjects, Precision, Recipe, TuneConfig, WorkloadSpec, YourSettings
from loadtune.records.measurement import ComputePoint
from loadtune.records.memory import MemoryCeiling
from loadtune.records.result import Result
from loadtune.report.sentences import warning
from loadtune.report.terminal import LiveDisplay
from loadtune.run.state import Run, State
from loadtune.script.process import ScriptProcess
from loadtune.script.protect import protection_here
from loadtune.seams import Listener, drive
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


VERIFY_S = 60.0
"""Longest verification on a CPU. Its RAM would hold batches whose steps take minutes: these are predicted."""


def find_batch_size(
    model_or_factory: "torch.nn.Module | Callable[[], torch.nn.Module] | Job | str",
    input_shape_or_dataset: Any = None,
    *,
    loss: "Callable[[Any, Any], torch.Tensor] | str | None" = None,
    collate: Callable[[list[Any]], Any] | None = None,
    optimizer: "str | Callable[[Any], torch.optim.Optimizer] | None" = None,
    precision: Precision | None = None,
    max_batch_size: int | None = None,
    device: "str | torch.device | None" = None,
) -> MemoryCeiling:
    """Find the largest batch size that trains on this machine.

    Use ``.safe_batch_size`` of the returned `MemoryCeiling` for training; ``print`` the ceiling for a table of every
    size that was tried. Sizes are tried by real training steps in a separate process. Afterwards nothing is left on the
    GPU, the model is unchanged, and the script needs no ``if __name__ == "__main__"``. Call it before anything of this
    process is on the GPU: memory that this process holds is not free.

    model_or_factory: a module; a function or class without arguments that returns one; the name of a torchvision model
        or ``timm:NAME``; an import path ``pkg.mod:factory``; or a `Job`, which holds all that is trained.
    input_shape_or_dataset: the shape of one sample, for random float32 inputs and classes; or a dataset, a function or
        class without arguments that returns one, an import path, or ``FakeData``; or a ``DataLoader``. Left out for a
        `Job`.
    loss: (outputs, targets) → scalar tensor; or (model, batch) → scalar tensor, with arguments of these names, for
        samples that are no (input, target). None: cross entropy. It takes outputs of shape (batch, classes),
        (batch, classes, …) or (batch, …, classes).
    collate: the collate function for a dataset. None: PyTorch's.
    optimizer: ``sgd`` (momentum 0.9), ``adamw``, or a function (parameters) → torch.optim.Optimizer. None: ``sgd``.
    precision: ``fp32`` (no AMP), ``fp16`` or ``bf16`` (mixed precision). None: that of the `Job`, else ``fp32``.
    max_batch_size: largest size to try. None: no limit but memory and the dataset's length.
    device: ``cpu``, ``cuda``, ``cuda:1`` or a GPU's UUID. None: the GPU with the most free memory, else the CPU.

    On a CPU, a ceiling that would take more than a minute to verify is predicted: ``verified`` of the result is False.

    Raises UsageError or WorkloadError for arguments that cannot be used, DeviceError where the device is missing, and
    NothingFitsError where not even the smallest batch trains.
    """
    refuse_recursion("find_batch_size")
    largest = None if max_batch_size is None else checked("max_batch_size", int, max_batch_size, 1)
    names, shape = WorkloadSpec(), _shape(input_shape_or_dataset)
    others: dict[str, Any] = {"loss": loss, "collate": collate, "optimizer": optimizer}
    data = input_shape_or_dataset if shape is None else f"random {'×'.join(map(str, shape))}"
    if data is None and not isinstance(model_or_factory, Job):
        raise UsageError("find_batch_size was given no data. Pass the shape of a sample, a dataset or a DataLoader.")
    parts = others | {"model": model_or_factory, "loader" if is_loader(data) else "dataset": data}
    beside = {"input_shape_or_dataset": input_shape_or_dataset, **others}
    job = job_of("find_batch_size", model_or_factory, beside, parts)
    if shape is not None and len(shape) > 1 and shape[-1] == shape[-2]:
        names = replace(names, image_size=shape[-1])
    with python_names():
        asked_for = precision or job.precision or "fp32"
        recipe = Recipe(precision=one_of("precision", asked_for, PRECISIONS))
        spec, objects = pack_job(names, job, input_shape=shape)
        check(TuneConfig(workload=spec))
        host = read_host()
        chosen = choose_device(host, None if device is None else str(device))
        with TrainingClient(spec, chosen, objects=objects) as training:
            facts = training.describe()
            if shape is not None:
                facts = replace(facts, dataset_length=None)  # the number of random samples is no limit
            given = TuneConfig(yours=YourSettings(precision=recipe.precision), max_batch_size=largest)
            for problem in problems(given, facts, chosen.kind):
                raise UsageError(problem)
            caps = caps_of(facts, largest, read_host())
            step_s: dict[int, float] | None = None
            if chosen.kind == "cpu":  # even the first size may take long, so the smallest batch is timed before
                smallest = min(max(2, facts.smallest_batch), facts.largest_batch or 2)
                scout = training.time_compute(recipe, smallest, 0.0)  # where it fails, the probe says why
                step_s = {smallest: scout.quickest_step_s} if isinstance(scout, ComputePoint) else {}
            probe = MemoryProbe(recipe, caps, smallest=facts.smallest_batch, step_s=step_s)
            found = drive(probe.bound(), training.try_batch)
            if chosen.kind != "cpu" or verifying_seconds(found) <= VERIFY_S:
                found = drive(probe.verify(), training.try_batch)
            return replace(found, capacity_bytes=facts.memory_capacity_bytes)


def _shape(data: object) -> tuple[int, ...] | None:
    """The shape of one sample. None: `data` is a dataset, or makes or names one. Raises UsageError."""
    if not isinstance(data, tuple | list):
        return None
    sizes = [whole(size) for size in data]
    if isinstance(data, list) and (not data or None in sizes):
        return None
    known = tuple(size for size in sizes if size is not None and size > 0)
    if len(known) < max(1, len(sizes)):
        raise UsageError(
            f"the input shape is {data!r}; it must be a tuple of whole numbers of at least 1, without the batch, such"
            " as (3, 224, 224)."
        )
    return known
