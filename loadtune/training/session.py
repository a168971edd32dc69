"""The training's request loop, and its state between requests: the workload, the model on the device, what is warm.

A request comes in, an answer, failed or not, goes out; memory is cleaned up between.
"""

import secrets
import time
import traceback
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import TypeVar

import torch
from torch import nn

from loadtune.errors import DeviceError, LoadtuneError
from loadtune.footprint.plan import checkpointed
from loadtune.host import read_gpus
from loadtune.records.config import LoaderConfig, OptimizerName, Recipe
from loadtune.records.facts import WorkloadFacts
from loadtune.records.footprint import StepAccount, StepVariant
from loadtune.records.measurement import ComputePoint, TrainingRun, TrialFailure, non_finite_loss
from loadtune.records.memory import BatchTry, FitReport
from loadtune.stream.sample_table import SampleTable
from loadtune.training.account import AllocatorLog, StepMeter
from loadtune.training.describe import describe, match_random_targets, train_small
from loadtune.training.endless_loader import EndlessLoader
from loadtune.training.failures import Circumstances, failure_from, leaves_context_intact, watched
from loadtune.training.loop import time_training
from loadtune.training.memory import memory_of
from loadtune.training.protocol import (
    Answer,
    Begin,
    Describe,
    Examine,
    Exit,
    Line,
    Refused,
    Request,
    Stop,
    TimeCompute,
    TimeTraining,
    Value,
)
from loadtune.training.remedied import RemediedJobs
from loadtune.training.samples import Samples
from loadtune.training.steps import time_windows, try_steps, warm_up
from loadtune.training.trainer import NO_MODEL, LossWatch, OwnStep, ResidentModel, Trainer, compiled, num_graphs
from loadtune.units import counted
from loadtune.workload import Batch, build_workload, sample_shape


class Session:
    """Builds everything when made; raises WorkloadError or DeviceError where that cannot be."""

    def __init__(self, begin: Begin, line: Line) -> None:
        line.enter("build")
        self._line = line
        self._chosen = begin.device
        free_before = None
        if begin.device.kind == "cuda":  # asked of the driver before this process takes any
            free_before = next((gpu.free_bytes for gpu in read_gpus()), None)  # the only one visible
        self._device = _device(begin)
        self.memory = memory_of(self._device, free_before, begin.max_memory_bytes)
        self._workload = build_workload(begin.spec, begin.objects, self._device)
        self._with_own_step = self._workload.make_step is not None
        self._model = ResidentModel(self._workload, self._device)
        match_random_targets(self._workload, self._model)
        self._samples = Samples(self._workload, line)
        self._jobs = RemediedJobs(self._workload, line)
        self._warm: set[tuple[Recipe, int]] = set()
        self._compiled: nn.Module | None = None
        self._number = secrets.randbelow(1 << 31)  # of the last loader; a training that was replaced begins elsewhere
        self.memory.remember_idle()

    def run(self, request: Request) -> Value:
        """Do what is asked. What it raises is a failure of this request, not of the session."""
        if isinstance(request, Describe):
            return self._describe()
        if isinstance(request, TimeCompute):
            return self._time_compute(request)
        if isinstance(request, BatchTry):
            return self._try_batch(request)
        if isinstance(request, StepVariant):
            return self._account(request)
        if isinstance(request, Examine):
            return self._jobs.examine(request.config, request.names, self._device)
        return self._time_training(request)

    def recovers(self) -> bool:
        """Drop what a run left; False: memory stays taken, and a fresh process has to go on."""
        self._model.drop_gradients()
        return self.memory.recovers()

    def _describe(self) -> WorkloadFacts:
        recipe = Recipe(precision="own" if self._with_own_step else "fp32")
        trainer = self._trainer(recipe, self._samples.num)
        trained = train_small(self._workload, trainer, self._model, self._samples, self._line)
        self.recovers()
        self.memory.remember_idle()
        return describe(self._workload, self._samples, trained, self._chosen, self.memory, self._line)

    def _time_compute(self, request: TimeCompute) -> ComputePoint | TrialFailure:
        trainer = self._trainer(request.recipe, request.batch_size, losses=LossWatch())
        batch = self._samples.resident(request.batch_size, trainer)
        compile_s = self._warm_up(trainer, request.recipe, batch)
        if request.recipe.compile and not num_graphs():
            message = "torch.compile found nothing in the model to compile (is TORCH_COMPILE_DISABLE set?)"
            return TrialFailure(kind="unsupported", phase="warm-up", message=message)
        windows = time_windows(trainer, batch, request.seconds, self._line)
        trainer.close()
        if windows[-1].loss_is_finite is False:
            return non_finite_loss(request.recipe.precision, windows, phase="compute")
        return ComputePoint(
            recipe=request.recipe,
            batch_size=request.batch_size,
            windows=windows,
            compile_s=compile_s if request.recipe.compile else None,
        )

    def _try_batch(self, request: BatchTry) -> FitReport:
        begun = time.monotonic()
        trainer = self._trainer(request.recipe, request.batch_size)
        report = try_steps(
            trainer, lambda size: self._samples.resident(size, trainer, largest=True), request, self.memory, self._line
        )
        trainer.close()
        return replace(report, seconds=time.monotonic() - begun)

    def _account(self, asked: StepVariant) -> StepAccount | TrialFailure:
        if self._with_own_step:
            message = f"{NO_MODEL} Use --model and --loss."
            return TrialFailure(kind="unsupported", phase="prepare", message=message)
        if self._device.type != "cuda" or torch.cuda.get_allocator_backend() != "native":
            message = "It can be measured on CUDA with PyTorch's native allocator only. --device cpu needs neither."
            return TrialFailure(kind="unsupported", phase="prepare", message=message)
        return self._measure(asked, AllocatorLog(self._device))

    def _measure(self, asked: StepVariant, log: AllocatorLog) -> StepAccount:
        trainer = self._trainer(asked.recipe, asked.batch_size, asked.optimizer)
        batch = self._samples.resident(asked.batch_size, trainer, largest=True)
        meter = StepMeter(trainer, batch, self.memory, log, self._line)
        checkpoints = checkpointed(self._model.module, meter.keep) if asked.checkpoint else nullcontext(0)
        with checkpoints as num_blocks, self.memory.capped():
            return meter.measure(
                model=self._workload.spec.model,
                precision=asked.recipe.precision,
                optimizer=asked.optimizer or self._workload.spec.optimizer,
                batch_size=asked.batch_size,
                input_shape=sample_shape(batch, trainer.places),
                num_checkpointed_blocks=num_blocks,
                num_parameters=sum(parameter.numel() for parameter in self._model.module.parameters()),
            )

    def _time_training(self, request: TimeTraining) -> TrainingRun | TrialFailure:
        loader, recipe = request.config.loader, request.config.recipe
        refused = self._no_full_batch(loader)
        if refused is not None:
            return refused
        self.memory.free_pinned()
        trainer = self._trainer(recipe, loader.batch_size, losses=LossWatch(), remedies=request.config.remedies)
        batch = self._samples.resident(loader.batch_size, trainer)
        self._warm_up(trainer, recipe, batch)
        del batch
        self._number += 1  # each in an order of its own
        job = self._jobs.job(request.config.remedies)
        with closing(EndlessLoader(job, loader, number=self._number, table=self._line.samples)) as batches:
            run = time_training(trainer, batches, request.window_s, self._line, begins=self.memory.reset_peaks)
        trainer.close()
        if isinstance(run, TrialFailure):
            return run
        return replace(run, peak_allocated_bytes=self.memory.peak_bytes() if self._device.type == "cuda" else None)

    def _warm_up(self, trainer: Trainer, recipe: Recipe, batch: Batch) -> float:
        """Seconds that compiling took. On a CPU, where a step may take seconds, a recipe is warmed once for a size."""
        self._line.enter("warm-up")
        key = (recipe, trainer.num_samples(batch))
        if self._device.type != "cuda" and key in self._warm:
            return 0.0
        compile_s = warm_up(trainer, batch, self._line)
        self._warm.add(key)
        return compile_s

    def _no_full_batch(self, loader: LoaderConfig) -> TrialFailure | None:
        length = self._samples.num_per_epoch
        if length is None or loader.batch_size <= length:
            return None
        message = (
            f"A batch of {loader.batch_size} is larger than an epoch, which has "
            f"{counted(length, 'sample')}: no full batch can be made."
        )
        return TrialFailure(kind="unsupported", phase="first batch", message=message)

    def _trainer(
        self,
        recipe: Recipe,
        batch_size: int,
        optimizer: OptimizerName | None = None,
        *,
        losses: LossWatch | None = None,
        remedies: tuple[str, ...] = (),
    ) -> Trainer:
        self._line.enter("prepare")
        job = self._jobs.job(remedies)
        kind = OwnStep if self._with_own_step else Trainer
        return kind(
            self._model, recipe, job, optimizer, self._compiled_for(recipe), losses, self._samples.places, batch_size
        )

    def _compiled_for(self, recipe: Recipe) -> nn.Module | None:
        """One for all requests, so that what was compiled stays. None: the recipe is not compiled."""
        if recipe.compile and self._compiled is None:
            self._compiled = compiled(self._model.module)
        return self._compiled if recipe.compile else None


def _device(begin: Begin) -> torch.device:
    if begin.device.kind != "cuda":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError(
            f"CUDA does not see {begin.device.name} ({begin.device.uuid}). `nvidia-smi -L` lists what is there; this "
            f"torch {torch.__version__} was built for CUDA {torch.version.cuda}. Choose another, or --device cpu."
        )
    return torch.device("cuda", 0)  # the only one visible: the process was started with its UUID


_Result = TypeVar("_Result")


def serve(connection: Connection, samples: SampleTable | None = None) -> None:
    """Answer until told to exit. ``samples``: where the controller reads which samples are being loaded.

    The workload is built at once; if that fails, every request is answered with the error.
    """
    server = Server(connection.recv(), Line(connection, samples))
    with suppress(EOFError):  # the controller is gone
        while not isinstance(request := connection.recv(), Exit):
            if not isinstance(request, Stop):  # one that crossed an answer on its way is late
                connection.send(server.answer(request))


@dataclass(frozen=True, slots=True)
class _Failed:
    """An exception as data: holding on to the exception would hold on to the tensors of its frames."""

    reply: Refused | TrialFailure
    context_intact: bool


class Server:
    """Answers requests."""

    def __init__(self, begin: Begin, line: Line) -> None:
        self._line, self._on_cuda = line, begin.device.kind == "cuda"
        self._circumstances: Callable[[], Circumstances] = lambda: Circumstances(on_cuda=self._on_cuda)
        self._session = self._attempt(lambda: Session(begin, line))

    def answer(self, request: Request) -> Answer | Refused:
        """The one reply to this request."""
        session, healthy = self._session, False
        outcome: Value | _Failed
        if isinstance(session, _Failed):
            outcome = session
        else:
            self._circumstances = watched(session.memory, on_cuda=self._on_cuda)
            outcome = self._attempt(lambda: session.run(request))
            # Here, not in the except block: while that runs, the traceback keeps every tensor of the failed step alive.
            healthy = session.recovers()
        if not isinstance(outcome, _Failed):
            return Answer(value=outcome, healthy=healthy)
        if isinstance(outcome.reply, Refused):
            return outcome.reply
        return Answer(value=outcome.reply, healthy=healthy and outcome.context_intact)

    def _attempt(self, work: Callable[[], _Result]) -> _Result | _Failed:
        try:
            return work()
        except LoadtuneError as error:
            traceback.print_exc()  # into the log
            return _Failed(Refused(copy(error)), context_intact=True)  # the copy has no traceback
        except Exception as error:
            traceback.print_exc()
            failure = failure_from(error, self._line.phase, self._circumstances(), self._line.samples.read())
            return _Failed(failure, leaves_context_intact(error))
