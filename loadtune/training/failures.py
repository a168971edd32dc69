"""What an exception in the training means: by its type's name, its text, and how full memory was."""

import errno
import re
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import synchronize
from typing import NamedTuple, TypeVar

from loadtune.host.usable import SHM_ADVICE, read_oom_kills
from loadtune.records.measurement import FailureKind, TrialFailure
from loadtune.stream.sample_table import Loading, samples_text
from loadtune.training.memory import CudaMemory, DeviceMemory
from loadtune.workload.user_code import cause, last_line, user_traceback

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """How things stood at a failure. None: not known. By default an ambiguous error counts as memory: a smaller size is
    the remedy that can be tried."""

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
    def memory_was_enough(self) -> bool:
        """Whether running out of memory is no likely cause.

        A library's workspace is about the size of what it works on, which the step holds at once. So where less than
        half of the budget was held, it was not refused for its size. The allocator's retries say so at any level.
        """
        if self.num_retries or self.budget_bytes is None or self.peak_bytes is None:
            return False
        return 2 * self.peak_bytes <= self.budget_bytes


def watched(memory: DeviceMemory) -> Callable[[], Circumstances]:
    """Looks at memory as a request begins. To be called after a failure: how things stood then.

    It asks the allocator's own books alone: the device's context may be lost.
    """
    budget_bytes = memory.budget_bytes()
    memory.reset_peaks()
    retries, kills = memory.num_retries(), read_oom_kills()
    return lambda: Circumstances(
        on_cuda=isinstance(memory, CudaMemory),
        budget_bytes=budget_bytes,
        peak_bytes=max(memory.peak_bytes(), memory.peak_reserved_bytes() or 0),
        num_retries=increase(retries, memory.num_retries()),
        oom_kills=increase(kills, read_oom_kills()),
    )


def increase(before: N | None, now: N | None) -> N | None:
    """How much a counter rose. None: it could not be read both times."""
    return None if before is None or now is None else now - before


class _Rule(NamedTuple):
    """What words mean that PyTorch raises. Rules are tried in their order."""

    words: str
    """A regular expression, whatever its case."""
    kind: FailureKind
    on_cuda: bool | None = None
    """Where they mean it: on CUDA alone, on a CPU alone, or, None, on both."""
    otherwise: FailureKind | None = None
    """What they mean where memory was not short: they are said for several reasons. None: they mean what they say."""


_WORKER_KILLED = "killed by signal: Killed"
_DEVICE_ASSERT = "device-side assert triggered"  # every CUDA error says how to enable "device-side assertions"
_RULES = (
    _Rule(r"killed by signal: (Bus error|Unknown signal: 7)|insufficient shared memory|out of shared memory", "shm"),
    _Rule(_WORKER_KILLED, "host_oom"),
    _Rule(r"DataLoader worker \(pid.*(killed by signal|exited unexpectedly)", "crash"),
    _Rule(r"pin memory thread exited unexpectedly", "crash"),
    _Rule(r"unable to (mmap|allocate|write|open|resize).*(/torch_|shared memory)", "shm"),
    _Rule(r"shared memory.*No space left on device", "shm"),
    _Rule(r"DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc", "host_oom"),
    _Rule(r"CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", "host_oom"),
    # Page-locked memory is the host's, but it is CUDA that is asked for it.
    _Rule(r"in pin memory thread.*CUDA (driver )?(error: )?out of memory", "host_oom", on_cuda=True),
    _Rule(r"OutOfMemoryError|CUDA (driver )?(error: )?out of memory|cudaErrorMemoryAllocation", "oom", on_cuda=True),
    # Kernels that do not exist for a type or a shape, and libraries that do not match the driver, say these as well.
    _Rule(
        r"CUDNN_STATUS_NOT_SUPPORTED|unable to find an engine|no (valid )?(execution plans|engine configs)"
        r"|(CUDNN|CUBLAS)_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|CUFFT_ALLOC_FAILED",
        "oom",
        on_cuda=True,
        otherwise="unsupported",
    ),
    _Rule(r"CUBLAS_STATUS_NOT_INITIALIZED.*cublas(Lt)?Create", "oom", on_cuda=True, otherwise="crash"),
    # oneDNN's scratchpad could not be had, or the operation does not exist for these types.
    _Rule(r"could not (create|execute) a (primitive|memory object)(?! descriptor)", "oom", False, "unsupported"),
    _Rule(r"32-?bit index|INT_MAX elements|integer out of range", "unsupported"),
    _Rule(r"not implemented for '(Half|BFloat16)'|could not create a primitive descriptor", "unsupported"),
    _Rule(r"view size is not compatible with input tensor's size and stride", "unsupported"),  # under channels_last
    _Rule(_DEVICE_ASSERT, "user_error"),
    _Rule(r"CUDA error", "crash"),
    _Rule(r"\bNCCL\b|\bgloo/", "crash"),  # another rank ended
)
# Only the text of errors that PyTorch raises is looked at: a user's ValueError may say anything.
_TORCH_ERRORS = (
    *("RuntimeError", "OutOfMemoryError", "AcceleratorError", "NotImplementedError"),
    *("DistBackendError", "DistNetworkError"),
)
_COMPILERS = ("torch._dynamo.", "torch._inductor.")
_MEMORY_ERRORS = ("MemoryError", "_ArrayMemoryError")  # the second is NumPy's
_CAUGHT = "Caught "  # PyTorch's word for an error that it brings from a worker
_WORKER_END = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) "
    r"(?:is killed by signal: (?P<signal>.*)|exited unexpectedly(?: with exit code (?P<code>\d+))?)"
)
# The allocator's own OOM leaves the context as it was; after a library's or a kernel's failure only a new process is
# a sure thing.
_CONTEXT_LOST = ("CUDNN_STATUS", "CUBLAS_STATUS", "CUFFT_", "find an engine", "CUDA error", "CUDA driver error")


_UNKNOWN = Circumstances()


def classify_error(error: BaseException, circumstances: Circumstances = _UNKNOWN) -> FailureKind:
    """The kind of failure this exception is. On a CPU the device's memory is the host's, so running out is ``oom``."""
    links = _with_causes(error)
    if any(_is_of_a_semaphore(link) for link in links):
        return "shm"
    kind = _kind_of_words(links, circumstances)
    if kind is None and any(_is_memory_error(link) for link in links):
        kind = "host_oom"
    is_workers = any(str(link).startswith(_CAUGHT) or "DataLoader worker" in str(link) for link in links)
    if kind == "host_oom" and not circumstances.on_cuda and not is_workers:
        return "oom"
    if kind is None and _is_compilers(error):
        return "unsupported"
    return kind or ("user_error" if cause(error) or user_traceback(error) is not None else "crash")


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
    why = f" ({SHM_ADVICE})" if kind == "shm" else ""
    if _DEVICE_ASSERT in str(error):
        why = " (nearly always a label that is not below the number of classes)"
    return TrialFailure(kind=kind, phase=phase, message=f"{said}{why}", log_tail=user_traceback(error) or "")


def leaves_context_intact(error: BaseException) -> bool:
    """Whether the device can still be trusted, provided that its memory comes back."""
    return not any(word in str(error) for word in _CONTEXT_LOST)


def _kind_of_words(links: Sequence[BaseException], circumstances: Circumstances) -> FailureKind | None:
    """What PyTorch's words mean. None: nothing that is known."""
    told = ((link, *_told(link)) for link in links)
    text = "\n".join(f"{name}: {said}" for link, name, said in told if name in _TORCH_ERRORS or _is_compilers(link))
    for rule in _RULES:
        if rule.on_cuda in (None, circumstances.on_cuda) and re.search(rule.words, text, re.IGNORECASE | re.DOTALL):
            if rule.words == _WORKER_KILLED and circumstances.oom_kills == 0:
                return "crash"
            return rule.otherwise if rule.otherwise and circumstances.memory_was_enough else rule.kind
    return None


def _worker_end(error: BaseException, loading: Sequence[Loading]) -> str | None:
    """That a worker's process ended, how, and what it was loading. None: the error says nothing of the kind.

    Of several ends that PyTorch tells the last is what the others come from.
    """
    ends = [end for link in _with_causes(error) if (end := _WORKER_END.search(_told(link)[1]))]
    if not ends:
        return None
    pids = {int(pid) for end in ends for pid in end["pids"].split(",")}
    lost = next((f" while it loaded {samples_text(each)}" for each in loading if each.pid in pids), "")
    how = next((f"exited with code {end['code']}" for end in ends if end["code"]), "ended unexpectedly")
    if signalled := next((end["signal"] for end in reversed(ends) if end["signal"]), None):
        # As the C library describes it: ``Segmentation fault``.
        names = {text: number.name for number in signal.Signals if (text := signal.strsignal(number))}
        name = next((names[text] for text in names if signalled.startswith(text)), signalled.rstrip(". "))
        how = f"was ended by {name}"
    return f"A worker {how}{lost}"


def _with_causes(error: BaseException) -> list[BaseException]:
    """It and what it was raised from: the loader raises "exited unexpectedly" from "killed by signal"."""
    links = [error]
    while (link := links[-1].__cause__) is not None and link not in links:
        links.append(link)
    return links


def _told(error: BaseException) -> tuple[str, str]:
    """(Name of its class, what it says). Of a worker's error the class that it had there, and only the line that was
    raised: the traceback around it quotes anybody's source."""
    text, line = str(error), last_line(error)
    said = f"{text.partition('.')[0]}: {line}" if text.startswith(_CAUGHT) else text
    return line.partition(":")[0].rpartition(".")[2], said


def _is_compilers(error: BaseException) -> bool:
    """Whether torch.compile raised it; what it could not compile, or the lack of a compiler, is inside."""
    return any(f"{kind.__module__}.".startswith(_COMPILERS) for kind in type(error).__mro__)


def _is_memory_error(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return _told(error)[0] in _MEMORY_ERRORS or last_line(error).startswith(f"OSError: [Errno {errno.ENOMEM}]")


def _is_of_a_semaphore(error: BaseException) -> bool:
    """Whether Python could not make one, which a worker's queue needs, in a /dev/shm that is full or no use at all."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    raised_there = any(frame.filename == synchronize.__file__ for frame in frames)
    return raised_there and isinstance(error, OSError) and error.errno not in (errno.EMFILE, errno.ENFILE)
