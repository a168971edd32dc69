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
    NOT_SUPPORTED: "not supported by this GPU",
    NO_PERMISSION: "no permission",
    FUNCTION_NOT_FOUND: "the driver is too old to tell",
}

_MIG_ENABLED = 1


class Answer(NamedTuple):
    """What NVML answered, or why it did not."""

    value: Any = None
    reason: str | None = None
    """In words. None: it answered."""
    code: int | None = None
    """NVML's number of the error. None: it answered, or failed otherwise."""


class Nvml:
    """An open NVML, with the devices asked for by name. Use `NVML`; tests open one of their own.

    One question at a time: where two threads sampled performance counters the process died in ``nvmlGpmSampleGet``
    (driver 580.159, two of three long runs).
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._lock = threading.Lock()
        self._patience_s = patience_s
        self._hangs = False
        """Some question did, and nobody waits for it a second time."""
        self._library: Any = None
        self._handles: dict[str, Any] = {}

    def attempt(self, function: str, *args: Any) -> Answer:
        """What NVML's ``function`` answers, or the reason why it does not."""
        if not self._lock.acquire(timeout=0.0 if self._hangs else self._patience_s):
            self._hangs = True
            return Answer(reason="the NVIDIA driver hangs")
        try:
            self._hangs = False
            return self._answer(function, *args)
        finally:
            self._lock.release()

    def _answer(self, function: str, *args: Any) -> Answer:
        if self._library is None:
            self._library = _open_library()
        if self._library is None:
            return Answer(reason="no NVIDIA driver answers")
        try:
            return Answer(value=getattr(self._library, function)(*args))
        except Exception as error:  # NVMLError for most; ctypes and decoding errors from a library of another driver
            code = getattr(error, "value", None)
            return Answer(reason=_WORDS.get(code or 0) or str(error) or type(error).__name__, code=code)

    def ask(self, function: str, *args: Any) -> Any:
        """What NVML's ``function`` answers; None: no driver, no such function in it, or it refused."""
        return self.attempt(function, *args).value

    def device(self, uuid: str) -> Any:
        """The handle of a GPU or MIG instance, kept once found; None: there is none of that name."""
        handle = self._handles.get(uuid) or self.ask("nvmlDeviceGetHandleByUUID", uuid)
        if handle is not None:
            self._handles[uuid] = handle
        return handle


def _open_library() -> Any:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, no permission, or a driver that does not match its kernel module
        return None
    return pynvml


NVML = Nvml()


class NvmlDevice:
    """One GPU or MIG instance by UUID, asked again and again."""

    def __init__(self, uuid: str, nvml: Nvml = NVML) -> None:
        self.nvml = nvml
        self._uuid = uuid

    def handle(self) -> Answer:
        """What NVML knows it by."""
        handle = self.nvml.device(self._uuid)
        if handle is not None:
            return Answer(value=handle)
        driver = self.nvml.attempt("nvmlSystemGetDriverVersion")
        return Answer(reason=driver.reason or "the GPU does not answer")

    def ask(self, function: str, *args: Any) -> Answer:
        """NVML's ``function`` of this device."""
        handle = self.handle()
        if handle.reason is not None:
            return handle
        answer = self.nvml.attempt(function, handle.value, *args)
        if answer.code in (NOT_SUPPORTED, INVALID_ARGUMENT) and self._is_shared(handle.value):
            return answer._replace(reason="not supported under MIG")
        return answer

    def _is_shared(self, handle: Any) -> bool:
        """An instance, or a GPU that is cut into some: neither has figures of the whole chip."""
        if self._uuid.startswith("MIG-"):
            return True
        mode = self.nvml.ask("nvmlDeviceGetMigMode", handle)
        return mode is not None and mode[0] == _MIG_ENABLED
