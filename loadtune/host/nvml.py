"""The one door to NVML: the driver opened by the first question, under a lock, and what it answers or why it does not.

In: names of NVML's functions and their arguments. Out: `Answer`. Nothing here raises, for a driver that is missing, old
or broken. NVML makes no CUDA context, so the controller may ask without taking any of the GPU's memory.
"""

import threading
from typing import Any, NamedTuple

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND = 2, 3, 4, 6, 13
"""NVML's own numbers, part of its ABI."""

PATIENCE_S = 5.0
"""For another thread's question: an answer takes milliseconds, so by then that one hangs in the driver."""

_WORDS = {
    INVALID_ARGUMENT: "not supported under MIG",
    NOT_SUPPORTED: "not supported by this GPU, or not under MIG",
    NO_PERMISSION: "no permission",
    FUNCTION_NOT_FOUND: "the driver is too old to tell",
}


class Answer(NamedTuple):
    """What NVML answered, or why it did not."""

    value: Any = None
    reason: str | None = None
    """In words. None: it answered."""
    code: int | None = None
    """NVML's number of the error. None: it answered, or failed otherwise."""


class Nvml:
    """An open NVML. Use `NVML`; tests open one of their own.

    One question at a time: where two threads sampled performance counters the process died in ``nvmlGpmSampleGet``
    (driver 580.159, two of three long runs).
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._lock = threading.Lock()
        self._patience_s = patience_s
        self._hangs = False
        """Some question did, and nobody waits for it a second time."""
        self._library: Any = None

    def attempt(self, function: str, *args: Any) -> Answer:
        """What NVML's ``function`` answers, or the reason why it does not."""
        if not self._lock.acquire(timeout=0.0 if self._hangs else self._patience_s):
            self._hangs = True
            return Answer(reason="the NVIDIA driver hangs")
        try:
            self._hangs = False
            if self._library is None:
                self._library = _open_library()
            if self._library is None:
                return Answer(reason="no NVIDIA driver answers")
            return Answer(value=getattr(self._library, function)(*args))
        except Exception as error:  # NVMLError for most; ctypes and decoding errors from a library of another driver
            code = getattr(error, "value", None)
            return Answer(reason=_WORDS.get(code or 0) or str(error) or type(error).__name__, code=code)
        finally:
            self._lock.release()

    def ask(self, function: str, *args: Any) -> Any:
        """What NVML's ``function`` answers; None: no driver, no such function in it, or it refused."""
        return self.attempt(function, *args).value


def _open_library() -> Any:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, no permission, or a driver that does not match its kernel module
        return None
    return pynvml


NVML = Nvml()


class NvmlDevice:
    """One GPU or MIG instance by UUID."""

    def __init__(self, uuid: str, nvml: Nvml = NVML) -> None:
        self.uuid, self.nvml = uuid, nvml
        self._handle: Any = None

    def ask(self, function: str, *args: Any) -> Answer:
        """What NVML's ``function`` answers of this device."""
        if self._handle is None:
            self._handle = self.nvml.ask("nvmlDeviceGetHandleByUUID", self.uuid)
        if self._handle is None:
            driver = self.nvml.attempt("nvmlSystemGetDriverVersion")
            return Answer(reason=driver.reason or "the GPU does not answer")
        return self.nvml.attempt(function, self._handle, *args)

    def value(self, function: str, *args: Any) -> Any:
        """The same. None: it does not answer."""
        return self.ask(function, *args).value
