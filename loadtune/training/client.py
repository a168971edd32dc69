"""The controller's handle on the training: `seams.Training` over a child process that is replaced when it fails.

Imports no torch: the controller never needs it.
"""

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from loadtune.errors import LoadtuneError, OutOfTimeError, TrainingError, WorkloadError
from loadtune.host.processes import RamGuard
from loadtune.host.usable import read_oom_kills
from loadtune.records.config import LiveObjects, LoaderConfig, Precision, Recipe, TrialConfig, WorkloadSpec
from loadtune.records.facts import Device, WorkloadFacts
from loadtune.records.loading import Examined
from loadtune.records.measurement import (
    ComputePoint,
    TrainingRun,
    TrialFailure,
    Window,
    nothing_fits,
    raise_for_the_user,
)
from loadtune.records.memory import BatchTry, FitReport, StepAccount
from loadtune.seams import Watch
from loadtune.stream.sample_table import Loading, Stillness, did_not_return_text, samples_text
from loadtune.training.process import (
    EXIT,
    LAST_WORDS_LINES,
    STOP,
    TRY,
    Answer,
    Begin,
    Request,
    TrainingProcess,
    cause_of_exit,
    make_scratch,
)
from loadtune.units import bytes_text

_Value = TypeVar("_Value")

_BUILD_HANG_S = 180.0  # importing torch, a CUDA context and a large dataset's index took up to a minute
_BUILDING = ("start", "build")
_BEFORE_REQUESTS = (*_BUILDING, "samples")
_POLL_S = 0.1  # between two looks for silence and death; an answer ends the wait at once
# A training that dies this often in a row before it has built the workload will not do better the next time.
_MAX_FAILED_STARTS = 2
_MAX_ENDED = 3
"""Times in a row that a script may come to its end by itself, and is started again."""
_STACKS_LINES = 100  # of what the fault handler writes of one worker and of the training process
# A request waited for a sample that took this share of the silence, so many seconds, and times the usual.
_STUCK_OF_SILENCE, _STUCK_S, _STUCK_SAMPLES = 0.5, 1.0, 10


class TrainingClient(AbstractContextManager["TrainingClient"]):
    """`seams.Training`, whose requests run in a process; it starts when first needed, and anew after it failed."""

    def __init__(
        self,
        spec: WorkloadSpec,
        device: Device,
        *,
        log_path: Path | None = None,
        hang_s: float = 60.0,
        objects: LiveObjects | None = None,
        max_memory_bytes: int | None = None,
        launch: Callable[[Device, Path, Path], TrainingProcess] | None = None,
    ) -> None:
        """``log_path`` None: the log goes with the temporary folder. ``launch``: starts the process; what it is given
        are the device, the log and the temporary folder. None: `TrainingProcess`."""
        self._launch = launch or TrainingProcess
        self._begin = Begin(spec=spec, device=device, objects=objects, max_memory_bytes=max_memory_bytes)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._log_path = log_path
        self._hang_s = hang_s
        self._process: TrainingProcess | None = None
        self._phase = "start"
        self._failed_starts = self._num_ended = 0
        self._oom_kills: int | None = None
        self._facts: WorkloadFacts | None = None
        self.until_s = math.inf
        self.num_trainings = 0

    def _running(self) -> TrainingProcess:
        """Launched where there is none: it builds the workload at once."""
        if self._process is None:
            self._scratch = self._scratch or make_scratch()
            scratch = Path(self._scratch.name)
            self._phase, self._oom_kills = "start", read_oom_kills()
            given = self._begin.device, self._log_path or scratch / "training.log", scratch
            self._process = self._launch(*given)
            self._process.send(self._begin)
        return self._process

    @property
    def pid(self) -> int | None:
        """Of the training, leader of its process group. None: none is running."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the training and its workers, and remove their temporary folder. May be called at any time, twice too."""
        try:
            self._end(goodbye=EXIT)
        finally:
            if self._scratch is not None:
                self._scratch.cleanup()
                self._scratch = None

    def __exit__(self, *raised: object) -> None:
        self.close()

    def describe(self) -> WorkloadFacts:
        """Asked once, then remembered."""
        if self._facts is None:
            value = self._ask(WorkloadFacts, "describe")
            may_crash = True  # once: a start can fail for reasons that pass
            while isinstance(value, TrialFailure):
                if value.phase.startswith(TRY) and value.phase not in self._begin.failed:
                    self._begin = replace(self._begin, failed={**self._begin.failed, value.phase: value.kind})
                elif value.kind == "crash" and may_crash:
                    may_crash = False
                else:
                    break
                value = self._ask(WorkloadFacts, "describe")
            raise_for_the_user(value)
            if isinstance(value, TrialFailure):
                found, tail = value.message, value.log_tail
                if value.kind == "unsupported":
                    raise WorkloadError(f"{found} (while: {value.phase})", tail or None)
                if value.kind == "oom":
                    raise nothing_fits("does not train in the device's free memory", value)
                advice = "Run the script, or the loader and one training step, without loadtune to find what ends it."
                ending = f" Its log ends:\n{tail}" if tail else ""
                raise TrainingError(f"{found} That was in the phase '{value.phase}'. {advice}{ending}")
            self._facts = value
            self._begin = replace(self._begin, autocast_places=value.autocast_places)
        return self._facts

    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        return self._ask(ComputePoint, "time_compute", recipe, batch_size, seconds)

    def try_batch(self, asked: BatchTry) -> FitReport:
        started = time.monotonic()
        value = self._ask(FitReport, "try_batch", asked)
        if isinstance(value, FitReport):
            return value
        seconds = time.monotonic() - started
        return FitReport(precision=asked.recipe.precision, batch_size=asked.batch_size, failure=value, seconds=seconds)

    def account(self, precision: Precision, batch_size: int) -> StepAccount | TrialFailure:
        """Where the memory of one training step goes, measured; a CPU keeps no books of it: unsupported."""
        return self._ask(StepAccount, "account", precision, batch_size)

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        """What ``watch`` raises ends the training and is raised again."""
        watched = _Watched(watch, config.loader)
        self.num_trainings += 1
        given = (config, window_s, self.num_trainings)
        return self._ask(TrainingRun, "time_training", *given, watched=watched)

    def examine(self, config: TrialConfig, names: tuple[str, ...]) -> tuple[Examined, ...] | TrialFailure:
        return self._ask(tuple, "examine", config, names)

    def _ask(
        self, kind: type[_Value], name: str, *given: object, watched: "_Watched | None" = None
    ) -> _Value | TrialFailure:
        """What `Session`'s method of this name answers."""
        if time.monotonic() >= self.until_s:
            raise OutOfTimeError("The time budget is spent.")
        process = self._running()
        try:
            process.send(Request(name, given))
            reply = self._await(process, watched)
        except BaseException:  # Ctrl-C, or the watch raised: a half-answered training is of no more use
            self._end()
            raise
        if isinstance(reply, TrialFailure):
            self._failed_starts = self._failed_starts + 1 if reply.phase in _BUILDING else 0
            if self._failed_starts and self._begin.spec.command:
                raise TrainingError(
                    f"The script did not come to train. {reply.message} No optimizer had stepped twice yet in a loop "
                    f"over a torch DataLoader. Its output ends:\n{reply.log_tail}"
                )
            if self._failed_starts >= _MAX_FAILED_STARTS:
                log = f"log, {self._log_path}," if self._log_path else "log"
                raise TrainingError(
                    f"The training process failed {self._failed_starts} times in a row before it had built the "
                    f"workload. {reply.message} Its {log} ends:\n{reply.log_tail}"
                )
            return reply
        self._failed_starts, self._oom_kills = 0, read_oom_kills()
        if not reply.healthy:
            self._end()
        if reply.value is None:
            self._num_ended += 1
            if self._phase.startswith(TRY) and self._num_ended > 1:  # it ends so where it cannot go on
                return TrialFailure(kind="crash", phase=self._phase, message="The script ended by itself.")
            if self._num_ended > _MAX_ENDED:
                raise TrainingError(
                    f"The script ended by itself {self._num_ended} times before a trial was over. Let it train "
                    "for more steps."
                )
            return self._ask(kind, name, *given, watched=watched)
        self._num_ended = 0
        if isinstance(reply.value, LoadtuneError):
            raise reply.value
        assert isinstance(reply.value, (kind, TrialFailure))
        return reply.value

    def _await(self, process: TrainingProcess, watched: "_Watched | None") -> Answer | TrialFailure:
        """The one reply. Everything that arrives on the way is a sign of life. A failure: the process was ended."""
        silent_since, log_size, still = time.monotonic(), process.log.size(), Stillness()
        while True:
            exited = process.has_exited()  # asked before receiving: what it still said is read first
            message = process.receive(_POLL_S)
            now = time.monotonic()
            process.log.cut()
            if isinstance(message, Answer):
                return message
            if message is None and exited:
                return self._died(process)
            if watched is not None and self._phase not in _BEFORE_REQUESTS:
                failure = watched.ram_failure(process.pid, self._phase)
                if failure is not None:
                    self._end()
                    return failure
            if isinstance(message, str):
                self._phase = message
            elif message is not None and watched is not None and watched.is_last(message):
                process.send(STOP)
            if message is not None:
                silent_since, still = now, Stillness()  # what was being loaded has returned since, or is new
            elif self._phase in _BUILDING and process.log.size() != log_size:
                silent_since, log_size = now, process.log.size()
            still.look(process.loading() if message is None else (), now)
            sample_s = 0.0 if self._facts is None else self._facts.sample_s
            stuck_s = max(_STUCK_S, _STUCK_SAMPLES * sample_s, _STUCK_OF_SILENCE * (now - silent_since))
            stuck = still.longest(now, stuck_s)
            is_over = time.monotonic() >= self.until_s  # the watch may have taken its time, and have set this moment
            patience_s = max(self._hang_s, _BUILD_HANG_S if self._phase in _BUILDING else 0.0)
            if is_over or now - silent_since > patience_s:
                return self._ended(process, None if is_over else now - silent_since, *stuck)

    def _died(self, process: TrainingProcess) -> TrialFailure:
        returncode = self._end()
        assert returncode is not None
        now, words = read_oom_kills(), process.log.tail(LAST_WORDS_LINES)
        kills = None if now is None or self._oom_kills is None else now - self._oom_kills
        of_ranks = self._facts is not None and self._facts.num_ranks > 1
        own = next((f" while it loaded {samples_text(each)}" for each in process.loading() if each.worker is None), "")
        kind, ended = cause_of_exit(returncode, oom_kills=kills, log=words, of_ranks=of_ranks)
        message = f"The training process {ended}{own}."
        return TrialFailure(kind=kind, phase=self._phase, message=message, log_tail=process.log.tail())

    def _ended(
        self, process: TrainingProcess, silence_s: float | None, stuck: Sequence[Loading], stuck_s: float
    ) -> TrialFailure:
        """Of a process that was silent for too long. ``silence_s`` None: time is over, and OutOfTimeError is raised."""
        if stuck or silence_s is not None:
            process.dump_stacks(stuck)
        self._end()
        named = did_not_return_text(stuck, stuck_s) if stuck else None
        if silence_s is None:
            raise OutOfTimeError(f"The time budget ended ({self._phase}).", phase=self._phase, stuck=named)
        message = f"The training process gave no sign of life for {silence_s:.0f} s, and was ended."
        if named is not None:
            message = f"{named}; the training process was ended."
        return TrialFailure(kind="hang", phase=self._phase, message=message, log_tail=process.log.tail(_STACKS_LINES))

    def _end(self, goodbye: object = None) -> int | None:
        process, self._process = self._process, None
        return None if process is None else process.close(goodbye)


class _Watched:
    """The caller's watch, told nothing more once it has said enough; and the RAM that the trial takes."""

    def __init__(self, watch: Watch, loader: LoaderConfig) -> None:
        self._watch, self._loader = watch, loader
        self._guard: RamGuard | None = None
        self._enough = False
        self._num_samples = 0

    def is_last(self, window: Window) -> bool:
        """Whether this is the window after which the watch has enough; true once. What ends later does not count."""
        if self._enough:
            return False
        self._num_samples += window.num_samples
        self._enough = not self._watch(window)
        return self._enough

    def ram_failure(self, pid: int, phase: str) -> TrialFailure | None:
        """None: there is RAM left. What was taken before the first call is not the trial's."""
        self._guard = self._guard or RamGuard(pid)
        short = self._guard.look()
        if short is None:
            return None
        grown_bytes, ram = short
        num_loaded = self._num_samples + (self._loader.num_prefetched + 1) * self._loader.batch_size
        who = "The training process and its workers" if self._loader.num_workers else "The training process"
        message = (
            f"{who} took {bytes_text(grown_bytes)} more RAM in this trial, about "
            f"{bytes_text(grown_bytes / num_loaded)} for each sample loaded. Only "
            f"{bytes_text(ram.available_bytes)} of {bytes_text(ram.limit_bytes)} RAM were left, so the trial was "
            "ended before the kernel would kill a process. The usual cause is a dataset that keeps Python objects on "
            "itself, such as a list that __getitem__ appends to, or a cache without a limit. Keep nothing of a sample "
            "once it is returned."
        )
        return TrialFailure(kind="host_oom", phase=phase, message=message, grown_bytes=grown_bytes)
