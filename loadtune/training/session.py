"""The training's request loop, and its state between requests: the workload, the model on the device, what is warm.

A request comes in, an answer, failed or not, goes out; memory is cleaned up between.
"""

import dataclasses
import secrets
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

import torch

from loadtune.errors import DeviceError, LoadtuneError
from loadtune.host import read_gpus
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.facts import WorkloadFacts
from loadtune.records.footprint import StepAccount, StepOptimizer, StepVariant
from loadtune.records.measurement import ComputePoint, TrainingRun, TrialFailure, non_finite_loss
from loadtune.records.memory import BatchTry, FitReport
from loadtune.stream.sample_table import SampleTable
from loadtune.training import describe
from loadtune.training.account import StepMeter
from loadtune.training.allocator_log import AllocatorLog
from loadtune.training.compiling import Compiler
from loadtune.training.describe import match_random_targets
from loadtune.training.endless_loader import EndlessLoader
from loadtune.training.failures import Circumstances, Witness, failure_from, leaves_context_intact
from loadtune.training.loop import TrainingLoop
from loadtune.training.memory import PinnedBlocks, memory_of
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
from loadtune.training.steps import WarmUp, time_windows, try_steps
from loadtune.training.trainer import NO_MODEL, LossWatch, OwnStep, ResidentModel, Trainer, resident_batch, resized
from loadtune.units import counted
from loadtune.workload import build_workload, checkpointed, sample_shape


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
        self._warm_up = WarmUp()
        self._compiler: Compiler | None = None
        self._pinned = PinnedBlocks(self.memory)
        self._loop = TrainingLoop(self._loader)
        self._number = secrets.randbelow(1 << 31)  # of the last loader; a training that was replaced begins elsewhere
        self.memory.remember_idle()

    def run(self, request: Request) -> Value:
        """Do what is asked. What it raises is a failure of this request, not of the session."""
        self._loop.end()  # first: page-locked blocks of its batches can be given back only once they are free
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
        trained = describe.train_small(self._workload, trainer, self._model, self._samples, self._line)
        self.recovers()
        self.memory.remember_idle()
        return describe.describe(self._workload, self._samples, trained, self._chosen, self.memory, self._line)

    def _time_compute(self, request: TimeCompute) -> ComputePoint | TrialFailure:
        trainer = self._trainer(request.recipe, request.batch_size, losses=LossWatch())
        compiler = self._compiler_for(request.recipe)
        batch = self._samples.resident(request.batch_size, trainer)
        compiled_s = compiler.seconds if compiler else 0.0
        self._warm_up.run(trainer, request.recipe, batch, self._line)
        if compiler and not compiler.num_graphs:
            message = "torch.compile found nothing in the model to compile (is TORCH_COMPILE_DISABLE set?)"
            return TrialFailure(kind="unsupported", phase="warm-up", message=message)
        compile_s = compiler.seconds - compiled_s if compiler else None
        windows = time_windows(trainer, batch, request.seconds, self._line)
        trainer.close()
        if windows[-1].loss_is_finite is False:
            return non_finite_loss(request.recipe.precision, windows, phase="compute")
        return ComputePoint(recipe=request.recipe, batch_size=request.batch_size, windows=windows, compile_s=compile_s)

    def _try_batch(self, request: BatchTry) -> FitReport:
        begun = time.monotonic()
        trainer = self._trainer(request.recipe, request.batch_size)
        report = try_steps(
            trainer, lambda size: self._samples.resident(size, trainer, largest=True), request, self.memory, self._line
        )
        trainer.close()
        return dataclasses.replace(report, seconds=time.monotonic() - begun)

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
        if asked.image_size is None:
            batch = self._samples.resident(asked.batch_size, trainer, largest=True)
        else:
            batch = resident_batch(resized(self._samples.batch, asked.image_size), asked.batch_size, trainer)
        meter = StepMeter(trainer, batch, self.memory, log, self._line)
        wanted = asked.checkpoint
        checkpoints = nullcontext() if wanted is None else checkpointed(self._model.module, meter.keep, wanted)
        with checkpoints as found, self.memory.capped():
            return meter.measure(
                model=self._workload.spec.model,
                precision=asked.recipe.precision,
                optimizer=asked.optimizer or self._workload.spec.optimizer,
                batch_size=asked.batch_size,
                input_shape=sample_shape(batch, trainer.places),
                checkpointed=found,
                num_parameters=sum(parameter.numel() for parameter in self._model.module.parameters()),
            )

    def _time_training(self, request: TimeTraining) -> TrainingRun | TrialFailure:
        loader, recipe = request.config.loader, request.config.recipe
        refused = self._no_full_batch(loader)
        if refused is not None:
            return refused
        self._pinned.keep_for(loader, self._samples.pinned_bytes)
        trainer = self._trainer(recipe, loader.batch_size, losses=LossWatch(), remedies=request.config.remedies)
        batch = self._samples.resident(loader.batch_size, trainer)
        self._warm_up.run(trainer, recipe, batch, self._line)
        del batch
        run = self._loop.time_training(
            trainer, request.config, request.window_s, self._line, begins=self.memory.reset_peaks
        )
        trainer.close()
        if isinstance(run, TrialFailure):
            return run
        return dataclasses.replace(
            run,
            peak_allocated_bytes=self.memory.peak_bytes() if self._device.type == "cuda" else None,
        )

    def _loader(self, config: TrialConfig) -> EndlessLoader:
        """A fresh one, in an order of its own."""
        self._number += 1
        job = self._jobs.job(config.remedies)
        return EndlessLoader(job, config.loader, number=self._number, table=self._line.samples)

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
        optimizer: StepOptimizer | None = None,
        *,
        losses: LossWatch | None = None,
        remedies: tuple[str, ...] = (),
    ) -> Trainer:
        self._line.enter("prepare")
        job = self._jobs.job(remedies)
        kind = OwnStep if self._with_own_step else Trainer
        return kind(
            self._model, recipe, job, optimizer, self._compiler_for(recipe), losses, self._samples.places, batch_size
        )

    def _compiler_for(self, recipe: Recipe) -> Compiler | None:
        """One for all requests, so that what was compiled stays. None: the recipe is not compiled."""
        if recipe.compile and self._compiler is None:
            self._compiler = Compiler(self._model.module, self._line)
        return self._compiler if recipe.compile else None


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
    """Answer until told to exit. ``samples``: where the controller reads which samples are being loaded."""
    server = Server(connection.recv(), Line(connection, samples))
    while True:
        try:
            request = connection.recv()
        except EOFError:  # the controller is gone
            return
        if isinstance(request, Exit):
            return
        if not isinstance(request, Stop):  # one that crossed an answer on its way is late
            connection.send(server.answer(request))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """An exception as data: holding on to the exception would hold on to the tensors of its frames."""

    failure: Refused | TrialFailure
    context_intact: bool


class Server:
    """Answers requests. It builds the workload at once; if that fails, every request is answered with the error."""

    def __init__(self, begin: Begin, line: Line) -> None:
        self._line = line
        self._on_cuda = begin.device.kind == "cuda"
        self._witness: Witness | None = None
        self._session = self._attempt(lambda: Session(begin, line))

    def answer(self, request: Request) -> Answer | Refused:
        """The one reply to this request."""
        session, healthy = self._session, False
        outcome: Value | _Failed
        if isinstance(session, _Failed):
            outcome = session
        else:
            self._witness = Witness(session.memory, on_cuda=self._on_cuda)
            outcome = self._attempt(lambda: session.run(request))
            # Here, not in the except block: while that runs, the traceback keeps every tensor of the failed step alive.
            healthy = session.recovers()
        if not isinstance(outcome, _Failed):
            return Answer(value=outcome, healthy=healthy)
        if isinstance(outcome.failure, Refused):
            return outcome.failure
        return Answer(value=outcome.failure, healthy=healthy and outcome.context_intact)

    def _attempt(self, work: Callable[[], _Result]) -> _Result | _Failed:
        try:
            return work()
        except LoadtuneError as error:
            traceback.print_exc()  # into the log
            return _Failed(failure=Refused(copy(error)), context_intact=True)  # the copy has no traceback
        except Exception as error:
            traceback.print_exc()
            found = Circumstances(on_cuda=self._on_cuda) if self._witness is None else self._witness.testify()
            failure = failure_from(error, self._line.phase, found, self._line.samples.read())
            return _Failed(failure=failure, context_intact=leaves_context_intact(error))
