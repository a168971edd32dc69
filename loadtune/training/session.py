"""The training's request loop, and its state between requests: the workload, the model on the device, what is warm."""

import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from loadtune.changes.trial import Ways, examine
from loadtune.changes.way import Way
from loadtune.errors import DeviceError, LoadtuneError, ScriptEndedError
from loadtune.footprint.account import AllocatorLog
from loadtune.host.gpu import read_gpus
from loadtune.host.usable import read_ram, read_shm
from loadtune.model.workers import RAM_SHARE, SHM_SHARE
from loadtune.records.config import Precision, Recipe, TrialConfig
from loadtune.records.facts import WorkloadFacts
from loadtune.records.loading import Examined
from loadtune.records.measurement import ComputePoint, TrainingRun, TrialFailure, non_finite_loss
from loadtune.records.memory import BatchTry, FitReport, StepAccount
from loadtune.stream.looks import Looks
from loadtune.stream.sample_table import SampleTable
from loadtune.training.describe import Samples, describe, match_random_targets, train_small
from loadtune.training.failures import Circumstances, failure_from, leaves_context_intact, watched
from loadtune.training.loop import EndlessLoader, time_training
from loadtune.training.memory import CpuMemory, CudaMemory, DeviceMemory
from loadtune.training.process import EXIT, STOP, Answer, Begin, Line
from loadtune.training.steps import ResidentModel, Trainer, measure_step, time_windows, try_steps, warm_up
from loadtune.workload.build import Workload, build_workload


class Session:
    """Builds everything when made; raises WorkloadError or DeviceError. Its public methods are what a `Request` may
    name. What one raises is a failure of that request."""

    _trains_by: Callable[..., Trainer] = Trainer

    def __init__(self, begin: Begin, line: Line) -> None:
        line.enter("build")
        self._line = line
        self._chosen = begin.device
        self._device = torch.device("cpu")
        self.memory: DeviceMemory = CpuMemory(begin.place.num if begin.place else 1)
        if begin.device.kind == "cuda":
            number = self._gpu()
            # Asked of the driver before this process takes any.
            free_before = next((gpu.free_bytes for gpu in read_gpus()[number:]), None)
            if not torch.cuda.is_available():
                raise DeviceError(
                    f"CUDA does not see {begin.device.name} ({begin.device.uuid}). `nvidia-smi -L` lists what is "
                    f"there; this torch {torch.__version__} was built for CUDA {torch.version.cuda}. Choose another, "
                    "or --device cpu."
                )
            self._device = torch.device("cuda", number)
            self.memory = CudaMemory(self._device, free_before, begin.max_memory_bytes)
        self._workload = self._built(begin)
        self._model = ResidentModel(self._workload, self._device)
        match_random_targets(self._workload, self._model)
        self._samples = Samples(self._workload, line)
        free_bytes = int(min(RAM_SHARE * read_ram().available_bytes, SHM_SHARE * read_shm()[1]))
        self._ways = Ways(
            Way(
                loader=self._workload.loader,
                indices=self._workload.epoch.indices,
                on_gpu=begin.device.kind == "cuda",
                memory_bytes=free_bytes,
                has_loader="loader" in self._workload.own,
            )
        )
        # By loader and remedies: one run is too short to tell steps, and what was seen is kept for the next.
        self._looks_at = lru_cache(maxsize=16)(lambda *_: Looks())
        self.memory.remember_idle()

    def _gpu(self) -> int:
        """Number among those that CUDA sees: one, as the process was started with its UUID."""
        return 0

    def _built(self, begin: Begin) -> Workload:
        return build_workload(begin.spec, begin.objects, self._device)

    def recovers(self) -> bool:
        """Drop what a run left; False: memory stays taken, and a fresh process has to go on."""
        self._model.drop()
        return self.memory.recovers()

    def describe(self) -> WorkloadFacts:
        trainer = self._trainer(Recipe(), self._samples.num)
        trained = train_small(trainer, self._samples, self._line)
        self.recovers()
        self.memory.remember_idle()
        return describe(self._workload, self._samples, trained, self._chosen, self.memory)

    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        trainer = self._trainer(recipe, batch_size, sums_losses=True)
        batch = self._samples.resident(batch_size, trainer)
        warm_up(trainer, batch, self._line)
        windows = time_windows(trainer, batch, seconds, self._line)
        if windows[-1].loss_is_finite is False:
            return non_finite_loss(recipe.precision, windows, phase="compute")
        return ComputePoint(recipe=recipe, batch_size=batch_size, windows=windows)

    def try_batch(self, asked: BatchTry) -> FitReport:
        begun = time.monotonic()
        trainer = self._trainer(asked.recipe, asked.batch_size)
        make_batch = partial(self._samples.resident, trainer=trainer, largest=True)
        report = try_steps(trainer, make_batch, asked, self.memory, self._line)
        return replace(report, seconds=time.monotonic() - begun)

    def account(self, precision: Precision, batch_size: int) -> StepAccount | TrialFailure:
        if self._device.type == "cuda" and torch.cuda.get_allocator_backend() == "native":
            return self._measure(precision, batch_size, AllocatorLog(self._device))
        message = "It can be measured on CUDA with PyTorch's native allocator only. --device cpu needs neither."
        return TrialFailure(kind="unsupported", phase="prepare", message=message)

    def _measure(self, precision: Precision, batch_size: int, log: AllocatorLog) -> StepAccount:
        trainer = self._trainer(Recipe(precision=precision), batch_size)
        batch = self._samples.resident(batch_size, trainer, largest=True)
        with self.memory.capped():
            return measure_step(trainer, batch, self.memory, log, self._line)

    def time_training(self, config: TrialConfig, window_s: float, number: int) -> TrainingRun | TrialFailure:
        """``number``: of the order in which samples are read, with the seed."""
        self.memory.free_pinned()
        trainer = self._trainer(config.recipe, config.batch_size, sums_losses=True, remedies=config.remedies)
        warm_up(trainer, self._samples.resident(config.batch_size, trainer), self._line)
        job = self._job(config.remedies)
        looks = self._looks_at(config.loader, config.remedies)
        loader = EndlessLoader(job, config.loader, number=number, table=self._line.samples, looks=looks)
        with closing(loader) as batches:
            return time_training(trainer, batches, window_s, self._line, self.memory)

    def examine(self, config: TrialConfig, names: tuple[str, ...]) -> tuple[Examined, ...]:
        """Each of these remedies on top of those that the configuration has."""
        self._line.enter("remedies")
        given: dict[str, Any] = {"batch_size": config.batch_size, "device": self._device, "pulse": self._line.pulse}
        return tuple(examine(self._ways, config.remedies, name, **given) for name in names)

    def _job(self, remedies: tuple[str, ...]) -> Workload:
        """Raises NotApplicableError."""
        way = self._ways.way(remedies)
        return replace(self._workload, loader=way.loader, on_device=way.on_device)

    def _trainer(
        self, recipe: Recipe, batch_size: int, *, sums_losses: bool = False, remedies: tuple[str, ...] = ()
    ) -> Trainer:
        self._line.enter("prepare")
        job, places = self._job(remedies), self._samples.places
        return self._trains_by(self._model, recipe, job, sums_losses=sums_losses, places=places, batch_size=batch_size)


def serve(
    connection: Connection, samples: SampleTable | None = None, make: Callable[[Begin, Line], Session] = Session
) -> None:
    """Answer until told to exit; where the workload cannot be built, with that error. ``samples``: where the controller
    reads which samples are being loaded."""
    begin, line = connection.recv(), Line(connection, samples)
    not_built = Circumstances(on_cuda=begin.device.kind == "cuda")
    built = _attempt(lambda: make(begin, line), line, lambda: not_built)
    with suppress(EOFError):  # the controller is gone
        while (request := connection.recv()) != EXIT:
            if request == STOP:  # one that crossed an answer on its way is late
                continue
            answer, healthy = built, False
            if isinstance(built.value, Session):
                method, circumstances = getattr(built.value, request.name), watched(built.value.memory)
                answer = _attempt(partial(method, *request.given), line, circumstances)
                # Here, not in an except block: while that runs, the traceback keeps every tensor of the failed step.
                healthy = built.value.recovers()
            connection.send(replace(answer, healthy=answer.healthy and healthy))


def _attempt(work: Callable[[], Any], line: Line, circumstances: Callable[[], Circumstances]) -> Answer:
    """An exception becomes data: holding on to it would hold on to the tensors of its frames."""
    try:
        return Answer(work())
    except Exception as error:
        if isinstance(error, ScriptEndedError):
            return Answer(None, healthy=False)
        traceback.print_exc()  # into the log
        if isinstance(error, LoadtuneError):
            return Answer(copy(error))  # the copy has no traceback
        failure = failure_from(error, line.phase, circumstances(), line.samples.read())
        return Answer(failure, leaves_context_intact(error))
