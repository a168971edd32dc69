"""What an end of the bench means for a trial: its exit status, or that it took the RAM. Needs no torch."""

import re
import signal

from loadtune.host.memory import SHM_ADVICE
from loadtune.host.processes import RamShort
from loadtune.records import FailureKind, LoaderConfig, TrialFailure
from loadtune.units import bytes_text

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


def classify_exit(returncode: int, *, oom_kills: int | None = None, log: str = "") -> FailureKind:
    """The kind of failure a process that ended by itself died of.

    `oom_kills` is how many processes the kernel killed for memory meanwhile; None: nothing counts them, and then a
    SIGKILL is most likely its own. `log` is what the process wrote last, with the stacks that Python's fault handler
    adds.
    """
    return _cause(returncode, oom_kills, log)[0]


def exit_text(returncode: int, *, oom_kills: int | None = None, log: str = "") -> str:
    """How the process ended, for people: ``was ended by SIGABRT``."""
    if returncode == -signal.SIGKILL and oom_kills == 0:
        return "was killed by SIGKILL, not by the kernel for lack of memory"
    why = _cause(returncode, oom_kills, log)[1]
    if returncode >= 0:
        return f"exited with code {returncode}{why}"
    number = -returncode
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"was ended by {name}{why}"


def _cause(returncode: int, oom_kills: int | None, log: str) -> tuple[FailureKind, str]:
    if returncode == -signal.SIGKILL:
        if oom_kills is None:
            return "host_oom", ": killed, most likely for lack of host memory"
        return ("host_oom", ": killed by the kernel for lack of host memory") if oom_kills else ("crash", "")
    if returncode == -signal.SIGBUS:
        return "shm", f" ({SHM_ADVICE})"
    # C++ ends by an abort, OpenMP by an exit
    if (returncode == -signal.SIGABRT or returncode > 0) and _DYING_OF_MEMORY.search(log):
        return "host_oom", ": an allocation of host memory was refused"
    return "crash", ""


def hang_text(log: str) -> str:
    """Why nothing came any more, where the log tells; empty where it does not."""
    if "AF_UNIX path too long" in log:  # a worker that cannot hand over its batch says so, and waits for ever
        return " Its workers can open no socket: the temporary folder has too long a path. Set TMPDIR to a short one."
    return ""


GROWTH_ADVICE = (
    "The usual cause is a dataset that keeps Python objects on itself, such as a list that __getitem__ appends to, or "
    "a cache without a limit. Keep nothing of a sample once it is returned."
)
COPY_ADVICE = (
    "Another cause are large Python lists or dicts in the dataset: workers started by fork copy them as they read "
    "them. Keep such data in a NumPy array or a tensor."
)


def ram_failure(
    short: RamShort, loader: LoaderConfig, phase: str, num_trained: int, sample_bytes: int | None
) -> TrialFailure:
    """`num_trained`: samples that were trained on by the end of the last window."""
    num_loaded = num_trained + (loader.num_prefetched + 1) * loader.batch_size
    sample = "" if sample_bytes is None else f", where one sample has {bytes_text(sample_bytes)}"
    who = "The training process and its workers" if loader.num_workers else "The training process"
    return TrialFailure(
        kind="host_oom",
        phase=phase,
        message=(
            f"{who} took {bytes_text(short.grown_bytes)} more RAM in this trial, about "
            f"{bytes_text(short.grown_bytes / num_loaded)} for each sample loaded{sample}. Only "
            f"{bytes_text(short.available_bytes)} of {bytes_text(short.limit_bytes)} RAM were left, so the trial was "
            f"ended before the kernel would kill a process. {GROWTH_ADVICE}"
            f"{f' {COPY_ADVICE}' if loader.num_workers else ''}"
        ),
        grown_bytes=short.grown_bytes,
    )
