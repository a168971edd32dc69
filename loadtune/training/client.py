"""The controller's handle on the training: `seams.Training` over a child process that is replaced when it fails.

Comes in: requests. Goes out: the training's answers, and a `TrialFailure` where it died or went silent instead.
Imports no torch: the controller never needs it.
"""

import dataclasses
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from loadtune.errors import NothingFitsError, OutOfTimeError, TrainingError, WorkloadError
from loadtune.host.memory import read_oom_kills
from loadtune.host.processes import RamGuard, RamShort
from loadtune.records.config import LiveObjects, Recipe, TrialConfig, WorkloadSpec
from loadtune.records.facts import Device, WorkloadFacts
from loadtune.records.footprint import StepAccount, StepVariant
from loadtune.records.measurement import ComputePoint, TrainingRun, TrialFailure, Window, raise_for_the_user
from loadtune.records.memory import BatchTry, FitReport
from loadtune.records.result import Examined
from loadtune.seams import Watch
from loadtune.stream.sample_table import Loading, Stillness, did_not_return_text, samples_text
from loadtune.training.process import LAST_WORDS_LINES, TrainingProcess, cause_of_exit, make_scratch, ram_failure
from loadtune.training.protocol import (
    Answer,
    Begin,
    Describe,
    Examine,
    Exit,
    Phase,
    Refused,
    Request,
    Stop,
    TimeCompute,
    TimeTraining,
)

_Value = TypeVar("_Value")

# Importing torch, opening a CUDA context and reading a large dataset's index were seen to take up to a minute.
_BUILD_HANG_S = 180.0
_BUILDING = ("start", "build")
_BEFORE_REQUESTS = (*_BUILDING, "samples")
# A ResNet-50 took 30 to 50 s on 16 cores; few cores and larger models take many times that, and the compiler gives no
# sign of life: not only in the warm-up, for a batch of the loader may have another shape.
_COMPILING_HANG_S = 600.0
# Between two looks for silence and death; an answer ends the wait at once.
_POLL_S = 0.1
# A training that dies this often in a row before it has built the workload will not do better the next time.
_MAX_FAILED_STARTS = 2
# Of what the fault handler writes of one worker and of the training process.
_STACKS_LINES = 100
# A sample is named as what a request waited for where it took so much of the silence. It took so many seconds at the
# least, and so many times what samples took when the workload was described.
_STUCK_OF_SILENCE, _STUCK_S, _STUCK_SAMPLES = 0.5, 1.0, 10


class TrainingClient:
    """Runs requests in a training process; starts it when first needed and anew after it failed."""

    def __init__(
        self,
        spec: WorkloadSpec,
        device: Device,
        *,
        log_path: Path | None = None,
        hang_s: float = 60.0,
        objects: LiveObjects | None = None,
        max_memory_bytes: int | None = None,
        cores: tuple[int, ...] | None = None,
    ) -> None:
        """``log_path`` None: the log goes with the temporary folder. ``cores`` None: the training runs on any."""
        self._begin = Begin(spec=spec, device=device, objects=objects, max_memory_bytes=max_memory_bytes)
        self._cores = cores or ()
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._log_path = log_path
        self._hang_s = hang_s
        self._process: TrainingProcess | None = None
        self._phase = "start"
        self._failed_starts = 0
        self._oom_kills: int | None = None
        self._facts: WorkloadFacts | None = None
        self._until_s = math.inf

    def finish_by(self, until_s: float) -> None:
        """Set the moment of the monotonic clock at which requests end, done or not; what is under way is given up."""
        self._until_s = until_s

    def start(self) -> None:
        """Launch the process and return at once; it builds the workload while the caller does other things."""
        if self._process is None:
            self._scratch = self._scratch or make_scratch()
            scratch = Path(self._scratch.name)
            self._phase = "start"
            self._oom_kills = read_oom_kills()
            log_path = self._log_path or scratch / "training.log"
            self._process = TrainingProcess(self._begin.device, log_path, scratch, self._cores)
            self._process.send(self._begin)

    @property
    def pid(self) -> int | None:
        """Of the training, leader of its process group. None: none is running."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the training and its workers, and remove their temporary folder. May be called at any time, also
        twice."""
        try:
            self._end(goodbye=Exit())
        finally:
            if self._scratch is not None:
                self._scratch.cleanup()
                self._scratch = None

    def __enter__(self) -> "TrainingClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def describe(self) -> WorkloadFacts:
        """Build the workload and train one small batch of it; asked once, then remembered."""
        if self._facts is None:
            value = self._ask(Describe(), WorkloadFacts)
            if isinstance(value, TrialFailure) and value.kind == "crash":
                value = self._ask(Describe(), WorkloadFacts)  # a start can fail for reasons that pass
            raise_for_the_user(value)
            if isinstance(value, TrialFailure):
                raise _not_described(value)
            self._facts = value
        return self._facts

    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        """Time steps on one resident batch."""
        return self._ask(TimeCompute(recipe=recipe, batch_size=batch_size, seconds=seconds), ComputePoint)

    def try_batch(self, asked: BatchTry) -> FitReport:
        """Train a few steps from a fresh state; whatever goes wrong is in the report."""
        started = time.monotonic()
        value = self._ask(asked, FitReport)
        if isinstance(value, FitReport):
            return value
        seconds = time.monotonic() - started
        return FitReport(precision=asked.recipe.precision, batch_size=asked.batch_size, failure=value, seconds=seconds)

    def account(self, asked: StepVariant) -> StepAccount | TrialFailure:
        """Where the memory of one training step goes, measured; a CPU keeps no books of it: unsupported."""
        return self._ask(asked, StepAccount)

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        """Train on real batches until ``watch`` says enough; what it raises ends the training and is raised again."""
        watched = _Watched(watch)
        value = self._ask(TimeTraining(config=config, window_s=window_s), TrainingRun, watched)
        if isinstance(value, TrainingRun):  # windows that ended while the stop was on its way do not count
            return dataclasses.replace(value, windows=value.windows[: watched.num_windows])
        return value

    def examine(self, config: TrialConfig, names: tuple[str, ...]) -> tuple[Examined, ...] | TrialFailure:
        """Apply these remedies, compare samples, and time loading with and without each."""
        return self._ask(Examine(config=config, names=names), tuple)

    def _ask(self, request: Request, kind: type[_Value], watch: "_Watched | None" = None) -> _Value | TrialFailure:
        if time.monotonic() >= self._until_s:
            raise OutOfTimeError("The time budget is spent.")
        self.start()
        assert self._process is not None
        try:
            self._process.send(request)
            reply = self._await(self._process, request, watch)
        except BaseException:  # Ctrl-C, or the watch raised: a half-answered training is of no more use
            self._end()
            raise
        if isinstance(reply, RamShort):
            self._end()
            assert isinstance(request, TimeTraining), "no other request is guarded"
            reply = ram_failure(reply, request.config.loader, self._phase, watch.num_samples if watch else 0)
        if isinstance(reply, TrialFailure):
            self._count_failed_start(reply)
            return reply
        self._failed_starts, self._oom_kills = 0, read_oom_kills()
        if isinstance(reply, Refused):
            raise reply.error
        if not reply.healthy:
            self._end()
        assert isinstance(reply.value, (kind, TrialFailure))
        return reply.value

    def _await(
        self, process: TrainingProcess, request: Request, watch: "_Watched | None"
    ) -> Answer | Refused | TrialFailure | RamShort:
        """The request's one reply. Everything that arrives on the way is a sign of life."""
        silent_since, log_size, still = time.monotonic(), process.log.size(), Stillness()
        guard: RamGuard | None = None
        while True:
            exited = process.has_exited()  # asked before receiving: what it still said is read first
            message = process.receive(_POLL_S)
            now = time.monotonic()
            if isinstance(message, (Answer, Refused)):
                return message
            process.log.cut()
            if message is None and exited:
                return self._died(process)
            if watch is not None and guard is None and self._phase not in _BEFORE_REQUESTS:
                guard = RamGuard(process.pid)
            if guard is not None and (short := guard.look()) is not None:
                return short
            if message is None:
                still.look(process.loading(), now)
                if self._phase in _BUILDING and process.log.size() != log_size:
                    silent_since, log_size = now, process.log.size()
            else:
                if isinstance(message, Phase):
                    self._phase = message.name
                elif watch is not None and watch.is_last(message.window):
                    process.send(Stop())
                still = Stillness()  # whatever it was loading when it was last looked at has returned since, or is new
            sample_s = 0.0 if self._facts is None else self._facts.sample_s
            stuck_s = max(_STUCK_S, _STUCK_SAMPLES * sample_s, _STUCK_OF_SILENCE * (now - silent_since))
            stuck = still.longest(now, stuck_s)
            if time.monotonic() >= self._until_s:  # the watch may have taken its time, and have set this moment
                raise self._out_of_time(process, *stuck)
            if message is not None:
                silent_since = now
            elif now - silent_since > self._patience_s(request):
                return self._hung(process, now - silent_since, *stuck)

    def _patience_s(self, request: Request) -> float:
        """Silence that is no hang yet."""
        if self._phase in _BUILDING:
            return max(self._hang_s, _BUILD_HANG_S)
        recipe = request.config.recipe if isinstance(request, TimeTraining) else getattr(request, "recipe", None)
        compiles = recipe is not None and recipe.compile and self._phase != "first batch"
        return max(self._hang_s, _COMPILING_HANG_S) if compiles else self._hang_s

    def _died(self, process: TrainingProcess) -> TrialFailure:
        returncode = self._end()
        assert returncode is not None
        now, words = read_oom_kills(), process.log.tail(LAST_WORDS_LINES)
        kills = None if now is None or self._oom_kills is None else now - self._oom_kills
        own = next((f" while it loaded {samples_text(each)}" for each in process.loading() if each.worker is None), "")
        kind, ended = cause_of_exit(returncode, oom_kills=kills, log=words)
        message = f"The training process {ended}{own}."
        return TrialFailure(kind=kind, phase=self._phase, message=message, log_tail=process.log.tail())

    def _hung(
        self, process: TrainingProcess, silence_s: float, stuck: Sequence[Loading], stuck_s: float
    ) -> TrialFailure:
        self._end_with_stacks(process, stuck)
        message = f"The training process gave no sign of life for {silence_s:.0f} s, and was ended."
        if stuck:
            ended = "; the training process was ended." if stuck[0].worker is not None else ", which was ended."
            message = did_not_return_text(stuck, stuck_s) + ended
        return TrialFailure(kind="hang", phase=self._phase, message=message, log_tail=process.log.tail(_STACKS_LINES))

    def _out_of_time(self, process: TrainingProcess, stuck: Sequence[Loading], stuck_s: float) -> OutOfTimeError:
        if stuck:
            self._end_with_stacks(process, stuck)
        self._end()
        named = did_not_return_text(stuck, stuck_s) if stuck else None
        return OutOfTimeError(f"The time budget ended ({self._phase}).", phase=self._phase, stuck=named)

    def _end_with_stacks(self, process: TrainingProcess, stuck: Sequence[Loading]) -> None:
        """The stack of one worker that loads is enough: it is the user's code that is looked for."""
        process.dump_stacks([each.pid for each in stuck if each.worker is not None][:1])
        self._end()

    def _end(self, goodbye: object = None) -> int | None:
        process, self._process = self._process, None
        return None if process is None else process.close(goodbye)

    def _count_failed_start(self, failure: TrialFailure) -> None:
        if failure.phase not in _BUILDING:
            self._failed_starts = 0
            return
        self._failed_starts += 1
        if self._failed_starts >= _MAX_FAILED_STARTS:
            raise TrainingError(
                f"The training process failed {self._failed_starts} times in a row before it had built the workload. "
                f"{failure.message} Its log{f', {self._log_path},' if self._log_path else ''} ends:\n{failure.log_tail}"
            )


class _Watched:
    """The caller's watch, told nothing more once it has said enough."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._enough = False
        self.num_windows = 0
        self.num_samples = 0

    def is_last(self, window: Window) -> bool:
        """Whether this is the window after which the watch has enough; true once."""
        if self._enough:
            return False
        self.num_windows += 1
        self.num_samples += window.num_samples
        self._enough = not self._watch(window)
        return self._enough


def _not_described(failure: TrialFailure) -> Exception:
    if failure.kind == "unsupported":
        return WorkloadError(f"{failure.message} (while: {failure.phase})", failure.log_tail or None)
    if failure.kind == "oom":
        return NothingFitsError(f"Not even a batch of 2 samples trains in the device's free memory: {failure.message}")
    tail = f" Its log ends:\n{failure.log_tail}" if failure.log_tail else ""
    advice = "Run the loader and one training step by themselves to find what ends the process."
    return TrainingError(f"{failure.message} That was in the phase '{failure.phase}'. {advice}{tail}")
