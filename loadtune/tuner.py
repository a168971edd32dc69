"""The story of a run, one line a stage: from a `TuneConfig` to a `TuningResult`, also in the run's folder. And
`find_batch_size`, the largest batch alone, without a loader and a study.
"""

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
from loadtune.calibration import calibrate, restore, search_space, start, verify_memory
from loadtune.changes.stack import Stack
from loadtune.errors import OutOfTimeError, ResultError, UsageError
from loadtune.final.confirmation import confirmation
from loadtune.final.doubts import cached_text, growth_text
from loadtune.host.machine import Sampler, choose_device, machine_probes, read_host
from loadtune.limits.memory import MemoryProbe, caps_of, verifying_seconds
from loadtune.model.answers import bottleneck
from loadtune.objects import Job, asked, asked_command, is_loader, job_of, pack_job, refuse_recursion
from loadtune.options import check, checked, in_python, one_of, python_names, whole
from loadtune.records.answer import finalist_of
from loadtune.records.config import PRECISIONS, LiveObjects, Precision, Recipe, TuneConfig, WorkloadSpec, YourSettings
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import ComputePoint
from loadtune.records.memory import MemoryCeiling
from loadtune.records.result import Finalist, TuningResult
from loadtune.report.live import LiveDisplay
from loadtune.report.page.write import PAGE_FILE, write_page
from loadtune.report.store import LOG_FILE, RESULT_FILE, RUN_FILE, owned, run_folder, write_result
from loadtune.report.wording import warning
from loadtune.run.measure import Run
from loadtune.run.state import Journal, State
from loadtune.script.process import ScriptProcess
from loadtune.script.protect import protection_here
from loadtune.seams import Listener
from loadtune.search.baseline import problems
from loadtune.search.search import Search, changes, hung, model_job, study
from loadtune.training.client import TrainingClient
from loadtune.units import plain, seconds_text

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
    parts: dict[str, Any] = {"loader": loader, "dataset": dataset, "collate": collate, "model": model}
    parts |= {"loss": loss, "optimizer": optimizer}
    with python_names():
        found, objects = asked(parts, settings)
        return tune_config(found, _given_folder(folder, resume), listener, objects=objects, resume=resume)


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
        config = asked_command(command, settings)
        return tune_config(config, _given_folder(folder, resume), listener, resume=resume)


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
) -> TuningResult:
    """`tune` of a config that was checked."""
    host = read_host()
    device = choose_device(host, config.device)
    shown: AbstractContextManager[Listener] = LiveDisplay(sys.stderr, name="loadtune: ", words=in_python)
    if listener is not None:
        shown = nullcontext(listener)
    command = config.workload.command
    protection = protection_here(unprotected=config.unprotected) if command else None
    others = [gpu.uuid for gpu in host.gpus if config.device is None and gpu.uuid != device.uuid]
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


def tune_on(run: Run, *, resume: bool = False) -> TuningResult:
    """`tune` over any training, sensor and clock: with the fakes of the tests it runs in a second."""
    state, journal, folder = run.state, run.journal, run.journal.folder
    with owned(folder):
        run.training.until_s = run.budget.clock() + run.budget.left_s
        if resume:
            restore(run)
        journal.aside(f"{LOG_FILE} is not written", lambda: (folder / LOG_FILE).open("ab").close())
        try:
            _tell(run)
        except Exception as error:
            state.cut_short = str(error)
            if (state.trials or state.confirmed) and journal.stage_name != "start":
                with suppress(ResultError):  # the error that came first says what to mend
                    _keep(state, journal)
            raise
        return _keep(state, journal)


def _tell(run: Run) -> None:
    """The story, to its end or as far as it came. Raises LoadtuneError."""
    try:
        story(run)
    except KeyboardInterrupt as interruption:  # names its signal where it was not Ctrl-C
        run.state.cut_short = f"interrupted by {str(interruption) or 'Ctrl-C'}"
        run.state.interrupted_by = str(interruption) or "SIGINT"
    except OutOfTimeError as end:
        run.state.cut_short = why = ended_text(run.state, run.journal, end)
        if not run.state.timed:
            message = f"{why[0].upper()}{why[1:]}."
            raise OutOfTimeError(message, phase=end.phase, stuck=end.stuck) from None


def ended_text(state: State, journal: Journal, end: OutOfTimeError) -> str:
    """Why the run was cut short. A larger budget is advised only where nothing hung."""
    ended = f"the time budget of {seconds_text(state.config.time_budget_s)} ended"
    if end.stuck is not None:
        return (
            f"{ended}: {end.stuck}. Every sample has to return or raise: look for a lock, a download or a read without"
            f" a timeout. The stacks are at the end of {journal.folder / LOG_FILE}"
        )
    if why := hung(state.failed):
        return f"{ended} after {why}"
    if not state.timed:
        start, timing = (seconds_text(journal.stage_seconds.get(name, 0.0)) for name in ("start", "calibrate"))
        return (
            f"{ended} before anything was measured. Importing torch and building the workload took {start}, timing"
            f" precisions and batch sizes {timing}. Give a larger --time-budget, or run again on a quieter machine"
        )
    stage = "confirmation" if journal.stage_name == "confirm" else f"{journal.stage_name} stage"
    return f"{ended} in the {stage}. A larger --time-budget lets the run finish"


def _keep(state: State, journal: Journal) -> TuningResult:
    """Write the page, then the result, with what there is to say of the page. An answer is on the disk before both; one
    of before the run was resumed stands where there is no other."""
    measured, sample_bytes = [each for _, each in state.timed], state.facts.sample_bytes if state.facts else 0
    differing = next((run.differing for run in reversed(measured) if run.differing), ())
    ended = next((failure.message for _, failure in state.failed if failure.grown_bytes), None)  # a trial
    journal.aside(
        "Whether samples came from the page cache was not found out",
        lambda: journal.note(
            ended or growth_text(measured, state.host.ram_limit_bytes),
            cached_text(measured, sample_bytes),
            *(f"{each[0].upper()}{each[1:]}." for each in differing),
        ),
    )
    if state.best is None and state.earlier is not None and state.earlier.best is not None:
        journal.note(
            f"The answer of {state.earlier.created} is kept: {RESULT_FILE} and {PAGE_FILE} are unchanged. {RUN_FILE} "
            "has what was measured since, for the next --resume."
        )
        return journal.result()
    no_page = "The report page was not written"
    try:
        journal.aside(no_page, lambda: write_page(journal.result(), journal.folder / PAGE_FILE))
    except KeyboardInterrupt as interruption:
        journal.note(f"{no_page}: interrupted by {str(interruption) or 'Ctrl-C'}.")
    result = journal.result()
    if state.best is None:
        write_result(result, journal.folder)
    else:
        journal.aside(f"{RESULT_FILE} has the answer alone", lambda: write_result(result, journal.folder))
    if state.cut_short is None:
        state.ended = True
        with suppress(ResultError):  # the result is there; a later --resume writes it again
            journal.save()
    return result


def story(run: Run) -> None:
    """The stages, in the order in which each needs what the one before found.

    The answer is on the disk before it is explained. What fails then is a note.
    """
    facts, state, journal = start(run), run.state, run.journal
    probes = calibrate(run, facts)
    search = study(run, facts, search_space(run, facts))
    stack = changes(run, facts, search)
    if stack is not None and stack.steps:
        search = study(run, facts, replace(search.space, codes=stack.codes), stack)
    verify_memory(run, facts, search, probes)
    try:
        confirmation(run, search, stack)
    finally:  # also of an answer that was there when the time budget ended
        if state.best is not None:
            write_result(journal.result(), journal.folder)
        if (winner := finalist_of(state.finalists, state.best)) is not None:
            journal.aside("The bottleneck is not named", lambda: name_bottleneck(state, facts, search, stack, winner))


def name_bottleneck(state: State, facts: WorkloadFacts, search: Search, stack: Stack | None, winner: Finalist) -> None:
    """By what was timed of the space, and the winner; not where its precision was not searched. Nothing is run."""
    space = search.space
    if winner.config.precision in space.recipes:
        measured = [(config, each) for config, each in state.timed if space.has(config) or config == winner.config]
        job = model_job(facts, state.host, state.device, space.recipes, state.compute_points, stack)
        state.bottleneck = bottleneck(job, measured, winner, space.num_workers, state.trials)


# The largest batch alone

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
            probe = MemoryProbe(training, recipe, caps, smallest=facts.smallest_batch, step_s=step_s)
            found = probe.bound()
            if chosen.kind != "cpu" or verifying_seconds(found) <= VERIFY_S:
                found = probe.verify()
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
