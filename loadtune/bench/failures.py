"""What an exception in the bench means: by its type's name, its text, and how full memory was.

The order of the tests is the rule: a loader worker's death first (its message quotes other words), then memory, then
what the device or torch.compile cannot do, and only what is left is the user's own error.
"""

import errno
import re
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import synchronize

from loadtune.bench.endless_loader import is_of_a_start
from loadtune.bench.memory import DeviceMemory
from loadtune.host.memory import SHM_ADVICE, read_oom_kills
from loadtune.records.measurement import FailureKind, TrialFailure
from loadtune.stream.sample_table import Loading, samples_text
from loadtune.units import bytes_text
from loadtune.workload.user_code import cause, last_line, user_traceback


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """How things stood at a failure. None: not known."""

    on_cuda: bool = True
    budget_bytes: int | None = None
    """What this process could have had of the device's memory."""
    peak_bytes: int | None = None
    """The most it held of it since the request began, the allocator's cache included."""
    num_retries: int | None = None
    """Times the allocator gave its cache back since the request began: it does that when the device is full."""
    oom_kills: int | None = None
    """Processes the kernel killed for lack of memory since the request began."""

    @property
    def memory_was_short(self) -> bool | None:
        """Whether running out of memory is a likely cause. None: nothing is known.

        A library asks for a workspace of about the size of what it works on, and a step holds all that at once, so a
        request that fails while more is free than the step ever held was not refused for its size: memory was short
        only where more than half of the budget was held. The allocator's retries say so at any level.
        """
        if self.num_retries:
            return True
        if self.budget_bytes is None or self.peak_bytes is None:
            return None
        return 2 * self.peak_bytes > self.budget_bytes


class Witness:
    """Looks at memory when a request begins, to tell afterwards how things stood when it failed."""

    def __init__(self, memory: DeviceMemory, *, on_cuda: bool) -> None:
        self._memory, self._on_cuda = memory, on_cuda
        self.budget_bytes = memory.budget_bytes()
        memory.reset_peaks()
        self._retries, self._kills = memory.num_retries(), read_oom_kills()

    def testify(self) -> Circumstances:
        """Asked after the failure, of the allocator's own books alone: the device's context may be lost."""
        memory = self._memory
        return Circumstances(
            on_cuda=self._on_cuda,
            budget_bytes=self.budget_bytes,
            peak_bytes=max(memory.peak_bytes(), memory.peak_reserved_bytes() or 0),
            num_retries=increase(self._retries, memory.num_retries()),
            oom_kills=increase(self._kills, read_oom_kills()),
        )


def increase(before: int | None, now: int | None) -> int | None:
    """How much a counter rose. None: it could not be read both times."""
    return None if before is None or now is None else now - before


_WORKER_SIGNALS: tuple[tuple[str, FailureKind], ...] = (
    (r"killed by signal: (Bus error|Unknown signal: 7)|insufficient shared memory|out of shared memory", "shm"),
    (r"killed by signal: Killed", "host_oom"),
    (r"DataLoader worker \(pid\(?s?\)?.*(killed by signal|exited unexpectedly)", "crash"),
    (r"[Pp]in memory thread exited unexpectedly", "crash"),
)
_WORKER_END = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) "
    r"(?:is killed by signal: (?P<signal>.*)|exited unexpectedly(?: with exit code (?P<code>\d+))?)"
)
# Only in the text of the error itself, and only of errors that PyTorch raises: a user's ValueError may say anything.
_DEVICE_OOM = (r"CUDA out of memory", r"CUDA (driver )?error: out of memory", r"cudaErrorMemoryAllocation")
# Said for lack of memory, and for other reasons as well: kernels that do not exist for a type or a shape, libraries
# that do not match the driver. With each, what it means where there was memory enough.
_AMBIGUOUS_ON_CUDA: tuple[tuple[str, FailureKind], ...] = (
    (r"CUDNN_STATUS_NOT_SUPPORTED", "unsupported"),
    (r"unable to find an engine", "unsupported"),
    (r"no (valid )?(execution plans|engine configs)", "unsupported"),
    (r"(CUDNN|CUBLAS)_STATUS_ALLOC_FAILED", "unsupported"),
    (r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "unsupported"),
    (r"CUFFT_ALLOC_FAILED", "unsupported"),
    (r"CUBLAS_STATUS_NOT_INITIALIZED.*cublas(Lt)?Create", "crash"),
)
# oneDNN's counterpart: its scratchpad could not be had, or the operation does not exist for these types.
_AMBIGUOUS_ON_CPU: tuple[tuple[str, FailureKind], ...] = (
    (r"could not (create|execute) a (primitive|memory object)(?! descriptor)", "unsupported"),
)
_HOST_OOM = (
    r"DefaultCPUAllocator: can't allocate memory",
    r"DefaultCPUAllocator: not enough memory",
    r"std::bad_alloc",
    r"CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
)
# Page-locked memory is the host's, but it is CUDA that is asked for it.
_PIN_THREAD = "in pin memory thread"
# As they arrive from a worker, whose errors are text; NumPy has a MemoryError of its own.
_MEMORY_ERRORS = ("MemoryError", "_ArrayMemoryError")
_HOST_OOM_LINES = (rf"^OSError: \[Errno {errno.ENOMEM}\]", r"^cv2\.error: .*\(-4:Insufficient memory\)")
_SHM = (
    r"unable to (mmap|allocate|write|open|resize).*(/torch_|shared memory)",
    r"shared memory.*No space left on device",
)
_SHM_ERRNOS = (errno.ENOENT, errno.EROFS, errno.EACCES, errno.ENOSPC)
_UNSUPPORTED = (
    r"32-?bit index",
    r"INT_MAX elements",
    r"not implemented for '(Half|BFloat16)'",
    r"integer out of range",
    r"could not create a primitive descriptor",  # oneDNN has no such operation for these types on this CPU
    r"view size is not compatible with input tensor's size and stride",  # .view() under channels_last
)
_DEVICE_ASSERT = "device-side assert"
_ASSERT_GUESS = " (nearly always a label that is not below the number of classes)"
_NOT_BY_NAME = (
    " (workers that are started with spawn or forkserver import what the loader uses by its name: define dataset and"
    " functions in a module of their own, not in the script that runs or within a function)"
)
_COMPILERS = ("torch._dynamo.", "torch._inductor.")
_TORCH_ERRORS = ("RuntimeError", "OutOfMemoryError", "AcceleratorError", "NotImplementedError")
_ALLOCATOR_OOM = "OutOfMemoryError"
# The allocator's own OOM leaves the context as it was; after a library's or a kernel's failure only a new process is
# a sure thing.
_CONTEXT_LOST = ("CUDNN_STATUS", "CUBLAS_STATUS", "CUFFT_", "find an engine", "CUDA error", "CUDA driver error")


# Without evidence an ambiguous error counts as memory: a smaller size is the remedy that can be tried.
_UNKNOWN = Circumstances()


def classify_error(error: BaseException, circumstances: Circumstances = _UNKNOWN) -> FailureKind:
    """The kind of failure this exception is. On a CPU the device's memory is the host's, so running out is ``oom``."""
    links = _with_causes(error)
    if any(_is_of_a_semaphore(link) for link in links):
        return "shm"
    kind = _classify_text("\n".join(_said(link) for link in links if _is_torchs(link)), links, circumstances)
    if kind is None and any(_is_memory_error(link) for link in links):
        kind = "host_oom"
    is_workers = any(_is_caught(link) or "DataLoader worker" in str(link) for link in links)
    if kind == "host_oom" and not circumstances.on_cuda and not is_workers:
        return "oom"
    if kind is not None:
        return kind
    if _is_compilers(error):
        return "unsupported"
    return "user_error" if cause(error) or user_traceback(error) is not None else "crash"


def failure_from(
    error: BaseException, phase: str, circumstances: Circumstances = _UNKNOWN, loading: Sequence[Loading] = ()
) -> TrialFailure:
    """The exception as data; keeps text only, so that nothing of the failed step stays alive.

    ``loading``: which samples each process was loading when it was raised.
    """
    kind = classify_error(error, circumstances)
    named = cause(error) if kind == "user_error" else None
    compiling = "torch.compile failed: " if _is_compilers(error) else ""
    said = _worker_end(error, loading) or named or f"{compiling}{last_line(error)}"
    why = f" ({SHM_ADVICE})" if kind == "shm" else _why(error, circumstances)
    return TrialFailure(kind=kind, phase=phase, message=f"{said}{why}", log_tail=user_traceback(error) or "")


def _worker_end(error: BaseException, loading: Sequence[Loading]) -> str | None:
    """That a worker's process ended, how, and what it was loading. None: the error says nothing of the kind.

    Of several ends that PyTorch tells the last is what the others come from.
    """
    ends = [end for link in _with_causes(error) if (end := _WORKER_END.search(_said(link)))]
    if not ends:
        return None
    pids = {int(pid) for end in ends for pid in end["pids"].split(",")}
    lost = next((samples_text(each) for each in loading if each.pid in pids), None)
    signalled = next((end["signal"] for end in reversed(ends) if end["signal"]), None)
    code = next((end["code"] for end in ends if end["code"]), None)
    how = "ended unexpectedly" if code is None else f"exited with code {code}"
    if signalled is not None:
        how = f"was ended by {_signal_name(signalled)}"
    return f"A worker {how}{f' while it loaded {lost}' if lost else ''}"


def _signal_name(description: str) -> str:
    """``SIGSEGV`` for ``Segmentation fault``, as the C library describes it; the description where none fits."""
    names = {signal.strsignal(number): number.name for number in signal.Signals}
    return next((names[text] for text in names if text and description.startswith(text)), description.rstrip(". "))


def leaves_context_intact(error: BaseException) -> bool:
    """Whether the device can still be trusted, provided that its memory comes back."""
    return not any(word in str(error) for word in _CONTEXT_LOST)


def _classify_text(text: str, links: list[BaseException], circumstances: Circumstances) -> FailureKind | None:
    """What PyTorch's words mean; the tests in their order."""
    for pattern, kind in _WORKER_SIGNALS:
        if re.search(pattern, text):
            return "crash" if kind == "host_oom" and circumstances.oom_kills == 0 else kind
    if _any(_SHM, text):
        return "shm"
    if _any(_HOST_OOM, text):
        return "host_oom"
    if circumstances.on_cuda and (_any(_DEVICE_OOM, text) or _ALLOCATOR_OOM in map(_name, filter(_is_torchs, links))):
        return "host_oom" if _PIN_THREAD in str(links[0]) else "oom"
    otherwise = _ambiguous(text, circumstances)
    if otherwise is not None:
        return otherwise if circumstances.memory_was_short is False else "oom"
    if _any(_UNSUPPORTED, text):
        return "unsupported"
    if _DEVICE_ASSERT in text:
        return "user_error"
    return "crash" if "CUDA error" in text else None


def _ambiguous(text: str, circumstances: Circumstances) -> FailureKind | None:
    """What the text means if memory was not short. None: it is not of the ambiguous ones."""
    patterns = _AMBIGUOUS_ON_CUDA if circumstances.on_cuda else _AMBIGUOUS_ON_CPU
    return next((kind for pattern, kind in patterns if re.search(pattern, text, re.IGNORECASE | re.DOTALL)), None)


def _why(error: BaseException, circumstances: Circumstances) -> str:
    """What the error's own words leave open, in brackets."""
    if is_of_a_start(error):
        return "" if cause(error) else _NOT_BY_NAME
    said = _said(error)
    if _DEVICE_ASSERT in said:
        return _ASSERT_GUESS
    if "killed by signal: Killed" in said and circumstances.oom_kills == 0:
        return " (not by the kernel for lack of memory)"
    if _ambiguous(said, circumstances) is not None and circumstances.memory_was_short is False:
        held, budget = bytes_text(circumstances.peak_bytes), bytes_text(circumstances.budget_bytes)
        return f" (not for lack of memory: at most {held} of {budget} were held)"
    return ""


def _is_compilers(error: BaseException) -> bool:
    """Whether torch.compile raised it; what it could not compile, or the lack of a compiler, is inside."""
    return any(f"{kind.__module__}.".startswith(_COMPILERS) for kind in type(error).__mro__)


def _with_causes(error: BaseException) -> list[BaseException]:
    """It and what it was raised from: the loader raises "exited unexpectedly" from "killed by signal"."""
    links: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in links:
        links.append(cause)
        cause = cause.__cause__
    return links


def _said(error: BaseException) -> str:
    """Of a worker's error only the line that was raised: the traceback around it quotes anybody's source."""
    return last_line(error) if _is_caught(error) else str(error)


def _name(error: BaseException) -> str:
    return last_line(error).partition(":")[0].rpartition(".")[2]


def _is_torchs(error: BaseException) -> bool:
    return _name(error) in _TORCH_ERRORS or _is_compilers(error)


def _is_memory_error(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    line = last_line(error) if _is_caught(error) else f"{type(error).__module__}.{last_line(error)}"
    return _name(error) in _MEMORY_ERRORS or _any(_HOST_OOM_LINES, line)


def _is_of_a_semaphore(error: BaseException) -> bool:
    """Whether Python could not make one, which a worker's queue needs, in a /dev/shm that is full or no use at all."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    raised_there = any(frame.filename == synchronize.__file__ for frame in frames)
    return raised_there and isinstance(error, OSError) and error.errno in _SHM_ERRNOS


def _is_caught(error: BaseException) -> bool:
    return str(error).startswith("Caught ")


def _any(patterns: tuple[str, ...], text: str) -> bool:
    return any(re.search(pattern, text, re.IGNORECASE | re.DOTALL) for pattern in patterns)
