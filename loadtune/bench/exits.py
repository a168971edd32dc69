"""What the bench's exit status means for a trial. The controller's side, so it needs no torch."""

import re
import signal

from loadtune.host.memory import SHM_ADVICE
from loadtune.records import FailureKind

# What C++ and OpenMP write with their last breath when memory is refused outside of any `try`. Only words that nobody
# survives: the log may also hold the traceback of an allocation that failed and was answered.
_DYING_OF_MEMORY = re.compile(
    r"terminate called after throwing an instance of '(std::bad_alloc|std::bad_array_new_length)'"
    r"|terminate called .*\n\s*what\(\):.*(DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc)"
    r"|libgomp: (Thread creation failed|Out of memory)"
    r"|OMP: Error #34\b"
    r"|Fatal Python error: .*(MemoryError|out of memory)",
    re.IGNORECASE,
)
_LIKELY = ": killed, most likely for lack of host memory"


def classify_exit(returncode: int, *, oom_kills: int | None = None, log: str = "") -> FailureKind:
    """The kind of failure a process that ended by itself died of.

    `oom_kills` is how many processes the kernel killed for memory meanwhile; None: nothing counts them, and then a
    SIGKILL is most likely its own. `log` is what the process wrote last, with the stacks that Python's fault handler
    adds.
    """
    if returncode == -signal.SIGKILL:
        return "crash" if oom_kills == 0 else "host_oom"
    if returncode == -signal.SIGBUS:
        return "shm"
    return "host_oom" if _died_of_memory(returncode, log) else "crash"


def exit_text(returncode: int, *, oom_kills: int | None = None, log: str = "") -> str:
    """How the process ended, for people: ``was ended by SIGABRT``."""
    if returncode == -signal.SIGKILL and oom_kills == 0:
        return "was killed by SIGKILL, not by the kernel for lack of memory"
    cause = _cause(returncode, oom_kills, log)
    if returncode >= 0:
        return f"exited with code {returncode}{cause}"
    number = -returncode
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"was ended by {name}{cause}"


def hang_text(log: str) -> str:
    """Why nothing came any more, where the log tells; empty where it does not."""
    if "AF_UNIX path too long" in log:  # a worker that cannot hand over its batch says so, and waits for ever
        return " Its workers can open no socket: the temporary folder has too long a path. Set TMPDIR to a short one."
    return ""


def _cause(returncode: int, oom_kills: int | None, log: str) -> str:
    if returncode == -signal.SIGKILL:
        return ": killed by the kernel for lack of host memory" if oom_kills else _LIKELY
    if returncode == -signal.SIGBUS:
        return f" ({SHM_ADVICE})"
    return ": an allocation of host memory was refused" if _died_of_memory(returncode, log) else ""


def _died_of_memory(returncode: int, log: str) -> bool:
    """By an abort or an exit: C++ ends with the one, OpenMP with the other."""
    return (returncode == -signal.SIGABRT or returncode > 0) and bool(_DYING_OF_MEMORY.search(log))
