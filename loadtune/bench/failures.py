"""What an exception in the bench means for a trial, recognised by its type's name and its text.

The order of the tests is the rule: a loader worker's death first (its message quotes other words), then memory, then
what the device cannot do, and only what is left is the user's own error.
"""

import errno
import re

from loadtune.records import FailureKind, TrialFailure
from loadtune.workload.user_code import last_line, sample_index, user_traceback

_WORKER_SIGNALS: tuple[tuple[str, FailureKind], ...] = (
    (r"killed by signal: (Bus error|Unknown signal: 7)|insufficient shared memory|out of shared memory", "shm"),
    (r"killed by signal: Killed", "host_oom"),
    (r"DataLoader worker \(pid\(?s?\)?.*(killed by signal|exited unexpectedly)", "crash"),
    (r"[Pp]in memory thread exited unexpectedly", "crash"),
)
# Only in the text of the error itself, and only of errors that PyTorch raises: a user's ValueError may say anything.
_DEVICE_OOM = (
    r"CUDA out of memory",
    r"CUDA (driver )?error: out of memory",
    r"cudaErrorMemoryAllocation",
    r"CUDNN_STATUS_NOT_SUPPORTED",
    r"CUDNN_STATUS_ALLOC_FAILED",
    r"unable to find an engine",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"CUFFT_ALLOC_FAILED",
)
_HOST_OOM = (r"DefaultCPUAllocator: can't allocate memory", r"DefaultCPUAllocator: not enough memory")
_SHM = (
    r"unable to (mmap|allocate|write|open|resize).*(/torch_|shared memory)",
    r"shared memory.*No space left on device",
)
_UNSUPPORTED = (
    r"32-?bit index",
    r"INT_MAX elements",
    r"not implemented for '(Half|BFloat16)'",
    r"integer out of range",
    r"view size is not compatible with input tensor's size and stride",  # .view() under channels_last
)
_DEVICE_ASSERT = "device-side assert"
_ASSERT_GUESS = " (nearly always a label that is not below the number of classes)"
_TORCH_ERRORS = ("RuntimeError", "OutOfMemoryError", "AcceleratorError", "NotImplementedError")
_ALLOCATOR_OOM = "OutOfMemoryError"
# The allocator's own OOM leaves the context as it was; after a library's or a kernel's failure only a new process is
# a sure thing.
_CONTEXT_LOST = ("CUDNN_STATUS", "CUBLAS_STATUS", "CUFFT_", "find an engine", "CUDA error", "CUDA driver error")


def classify_error(error: BaseException) -> FailureKind:
    """The kind of failure this exception is."""
    line = last_line(error)
    name = line.partition(":")[0].rpartition(".")[2]
    if name in _TORCH_ERRORS:
        # Of a worker's error only the line that was raised: the traceback around it quotes anybody's source.
        said = line if str(error).startswith("Caught ") else _with_causes(error)
        kind = _classify_text(said, name)
        if kind is not None:
            return kind
    if name == "MemoryError" or getattr(error, "errno", None) == errno.ENOMEM:
        return "host_oom"
    return "user_error" if user_traceback(error) is not None else "crash"


def failure_from(error: BaseException, phase: str) -> TrialFailure:
    """The exception as data; keeps text only, so that nothing of the failed step stays alive."""
    index = sample_index(error)
    where = "" if index is None else f"dataset[{index}] raised "
    guess = _ASSERT_GUESS if _DEVICE_ASSERT in str(error) else ""
    return TrialFailure(
        kind=classify_error(error),
        phase=phase,
        message=f"{where}{last_line(error)}{guess}",
        log_tail=user_traceback(error) or "",
    )


def leaves_context_intact(error: BaseException) -> bool:
    """Whether the device can still be trusted, provided that its memory comes back."""
    return not any(word in str(error) for word in _CONTEXT_LOST)


def _classify_text(text: str, name: str) -> FailureKind | None:
    for pattern, kind in _WORKER_SIGNALS:
        if re.search(pattern, text):
            return kind
    if _any(_SHM, text):
        return "shm"
    if _any(_HOST_OOM, text):
        return "host_oom"
    if name == _ALLOCATOR_OOM or _any(_DEVICE_OOM, text):
        return "oom"
    if _any(_UNSUPPORTED, text):
        return "unsupported"
    if _DEVICE_ASSERT in text:
        return "user_error"
    return "crash" if "CUDA error" in text else None


def _with_causes(error: BaseException) -> str:
    """What it says and what it was raised from: the loader raises "exited unexpectedly" from "killed by signal"."""
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__
    return "\n".join(texts)


def _any(patterns: tuple[str, ...], text: str) -> bool:
    return any(re.search(pattern, text, re.IGNORECASE | re.DOTALL) for pattern in patterns)
