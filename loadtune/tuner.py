"""The story of a run, one line a stage: from the machine's facts to a confirmed answer.

In: a `TuneConfig`. Out: a `TuningResult`, also written into the run's folder. Each stage keeps what it found in `Run`.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtune import __version__
from loadtune.bottleneck import name_bottleneck
from loadtune.calibration import calibrate, start, verify_memory
from loadtune.errors import OutOfTimeError, ResultError, UsageError
from loadtune.final.confirmation import confirmation
from loadtune.final.doubts import note_loading
from loadtune.host import MonotonicClock, Sampler, choose_device, read_host
from loadtune.objects import Job, asked, refuse_recursion
from loadtune.options import in_python, python_names
from loadtune.records.config import LiveObjects, TuneConfig
from loadtune.records.facts import Device, HostFacts
from loadtune.records.result import TuningResult
from loadtune.report.live import LiveDisplay
from loadtune.report.notebook import NotebookDisplay
from loadtune.report.page.write import PAGE_FILE, write_page
from loadtune.report.sentences import warning
from loadtune.report.store import LOG_FILE, RESULT_FILE, owned, run_folder, write_result
from loadtune.resuming import restore
from loadtune.run import RUN_FILE, Run
from loadtune.seams import Clock, Listener, Sensor, Training
from loadtune.search.searching import changes, hung, study
from loadtune.search.space import search_space
from loadtune.training import TrainingClient
from loadtune.units import counted, plain, seconds_text

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
    step: Callable[[Any], Callable[[Any], Any]] | str | None = None,
    folder: Path | None = None,
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
    step: ``make_step(device)``, which returns ``step(batch)``: a whole training step, in place of model, loss and
        optimizer. It is not changed: only the loader is tuned.
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
    if resume and folder is None:
        raise UsageError("resume is True without a folder. Give folder, that of the run to continue.")
    parts: dict[str, Any] = {"loader": loader, "dataset": dataset, "collate": collate, "model": model}
    parts |= {"loss": loss, "optimizer": optimizer, "step": step}
    with python_names():
        found, objects = asked(parts, settings)
        return tune_config(found, folder, listener, objects=objects, resume=resume)


def tune_config(
    config: TuneConfig,
    folder: Path | None,
    listener: Listener | None,
    *,
    objects: LiveObjects | None = None,
    resume: bool = False,
) -> TuningResult:
    """`tune` of a config that was checked."""
    from rich.console import Console

    host = read_host()
    device = choose_device(host, config.device)
    shown: AbstractContextManager[Listener]
    if listener is not None:
        shown = nullcontext(listener)
    elif Console().is_jupyter:
        shown = NotebookDisplay()
    else:
        shown = LiveDisplay(sys.stderr, name="loadtune: ", words=in_python)
    with run_folder(folder, Path(config.out), config.workload.label) as folder, shown as told:
        training = TrainingClient(
            config.workload,
            device,
            log_path=folder / LOG_FILE,
            hang_s=min(120.0, max(30.0, 0.2 * config.time_budget_s)),  # the time budget ends each request, too
            objects=objects,
            max_memory_bytes=config.max_gpu_memory_bytes,
        )
        with training, Sampler(device, lambda: training.pid) as sensor:
            clock = MonotonicClock()
            result = tune_on(training, sensor, clock, config, host, device, folder, told, read_host, resume=resume)
    if listener is None:
        lines = [*filter(None, [warning(result)]), f"the result and its report are in {folder}"]
        if result.cut_short is not None and (folder / RUN_FILE).exists():
            lines.append(f"to continue, add to the same call: folder=Path({str(folder)!r}), resume=True")
        with suppress(OSError):  # a full disk, or nobody reads it
            sys.stderr.write("".join(f"loadtune: {plain(in_python(line))}\n" for line in lines))
    return result


def tune_on(
    training: Training,
    sensor: Sensor,
    clock: Clock,
    config: TuneConfig,
    host: HostFacts,
    device: Device,
    folder: Path,
    listener: Listener | None = None,
    host_now: Callable[[], HostFacts] | None = None,
    *,
    resume: bool = False,
) -> TuningResult:
    """`tune` over any training, sensor and clock: with the fakes of the tests it runs in a second."""
    host_now = host_now or (lambda: host)
    with owned(folder):
        run = Run(config, host, device, __version__, clock, training, sensor, folder, host_now, listener)
        training.finish_by(clock.now() + run.left_s)
        if resume:
            restore(run)
        run.aside(f"{LOG_FILE} is not written", lambda: (folder / LOG_FILE).open("ab").close())
        try:
            _tell(run)
        except Exception as error:
            run.cut_short = str(error)
            if (run.trials or run.confirmed) and run.stage_name != "start":
                with suppress(ResultError):  # the error that came first says what to mend
                    _keep(run)
            raise
        return _keep(run)


def _tell(run: Run) -> None:
    """The story, to its end or as far as it came. Raises LoadtuneError."""
    try:
        story(run)
    except KeyboardInterrupt as interruption:  # names its signal where it was not Ctrl-C
        run.cut_short = f"interrupted by {str(interruption) or 'Ctrl-C'}"
        run.interrupted_by = str(interruption) or "SIGINT"
    except OutOfTimeError as end:
        run.cut_short = ended_text(run, end)
        if not run.timed:
            message = f"{run.cut_short[0].upper()}{run.cut_short[1:]}."
            raise OutOfTimeError(message, phase=end.phase, stuck=end.stuck) from None


def ended_text(run: Run, end: OutOfTimeError) -> str:
    """Why the run was cut short. A larger budget is advised only where nothing hung."""
    ended, failed = f"the time budget of {seconds_text(run.config.time_budget_s)} ended", hung(run)
    if end.stuck is not None:
        return (
            f"{ended}: {end.stuck}. Every sample has to return or raise: look for a lock, a download or a read without"
            f" a timeout. The stacks are at the end of {run.folder / LOG_FILE}"
        )
    if failed:
        return f"{ended} after {counted(len(failed), 'trial')} hung: {failed[-1].message.rstrip('.')}"
    if not run.timed:
        start, timing = (seconds_text(run.stage_seconds.get(name, 0.0)) for name in ("start", "calibrate"))
        return (
            f"{ended} before anything was measured. Importing torch and building the workload took {start}, timing"
            f" precisions and batch sizes {timing}. Give a larger --time-budget, or run again on a quieter machine"
        )
    stage = "confirmation" if run.stage_name == "confirm" else f"{run.stage_name} stage"
    return f"{ended} in the {stage}. A larger --time-budget lets the run finish"


def _keep(run: Run) -> TuningResult:
    """Write the page, then the result, with what there is to say of the page. An answer is on the disk before both; one
    of before the run was resumed stands where there is no other."""
    run.aside("Whether samples came from the page cache was not found out", lambda: note_loading(run))
    if run.best is None and run.earlier is not None and run.earlier.best is not None:
        run.note(
            f"The answer of {run.earlier.created} is kept: {RESULT_FILE} and {PAGE_FILE} are unchanged. {RUN_FILE} has "
            "what was measured since, for the next --resume."
        )
        return run.result()
    no_page = "The report page was not written"
    try:
        run.aside(no_page, lambda: write_page(run.result(), run.folder / PAGE_FILE))
    except KeyboardInterrupt as interruption:
        run.note(f"{no_page}: interrupted by {str(interruption) or 'Ctrl-C'}.")
    result = run.result()
    if run.best is None:
        write_result(result, run.folder)
    else:
        run.aside(f"{RESULT_FILE} has the answer alone", lambda: write_result(result, run.folder))
    if run.cut_short is None:
        run.ended = True
        with suppress(ResultError):  # the result is there; a later --resume writes it again
            run.save()
    return result


def story(run: Run) -> None:
    """The stages, in the order in which each needs what the one before found.

    The answer is on the disk before it is explained. What fails then is a note.
    """
    facts = start(run)
    recipes = calibrate(run, facts)
    searched = search_space(run, facts, recipes)
    search = study(run, facts, searched)
    searched = changes(run, facts, search)
    if searched.codes:
        search = study(run, facts, searched)
    verify_memory(run, facts, search)
    try:
        confirmation(run, search)
    finally:  # also of an answer that was there when the time budget ended
        if run.best is not None:
            write_result(run.result(), run.folder)
        run.aside("The bottleneck is not named", lambda: name_bottleneck(run, facts, search))
