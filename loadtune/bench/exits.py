"""What the bench's exit status means for a trial. The controller's side, so it needs no torch."""

import signal

from loadtune.records import FailureKind

_CAUSES = {
    signal.SIGKILL: ": killed, most likely for lack of host memory",
    signal.SIGBUS: ": /dev/shm is full",
}


def classify_exit(returncode: int) -> FailureKind:
    """The kind of failure a process that ended by itself died of. The kernel kills for memory with SIGKILL."""
    if returncode == -signal.SIGKILL:
        return "host_oom"
    return "shm" if returncode == -signal.SIGBUS else "crash"


def exit_text(returncode: int) -> str:
    """How the process ended, for people: ``was ended by SIGABRT``."""
    if returncode >= 0:
        return f"exited with code {returncode}"
    number = -returncode
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"was ended by {name}{_CAUSES.get(number, '')}"  # type: ignore[call-overload]  # Signals are ints
