"""The one door to NVML, which is opened by the first question, and makes no CUDA context. Whatever goes wrong, for a
driver that is missing, old or broken, is a `NoAnswerError`.
"""

import threading
from typing import Any

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


class NoAnswerError(Exception):
    """Why NVML does not answer. `code` is its number of the error; None: it failed otherwise."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


class _Asked:
    """What answers questions by the names of NVML's functions."""

    def ask(self, function: str, *args: Any) -> Any:
        """What NVML's ``function`` answers. Raises NoAnswerError."""
        raise NotImplementedError

    def value(self, function: str, *args: Any) -> Any:
        """The same. None: it does not answer."""
        try:
            return self.ask(function, *args)
        except NoAnswerError:
            return None


class Nvml(_Asked):
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

    def ask(self, function: str, *args: Any) -> Any:
        if not self._lock.acquire(timeout=0.0 if self._hangs else self._patience_s):
            self._hangs = True
            raise NoAnswerError("the NVIDIA driver hangs")
        try:
            self._hangs = False
            if self._library is None:
                self._library = _open_library()
            return getattr(self._library, function)(*args)
        except NoAnswerError:
            raise
        except Exception as error:  # NVMLError for most; ctypes and decoding errors from a library of another driver
            code = getattr(error, "value", None)
            raise NoAnswerError(_WORDS.get(code or 0) or str(error) or type(error).__name__, code) from error
        finally:
            self._lock.release()


def _open_library() -> Any:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # no driver, no permission, or a driver that does not match its kernel module
        raise NoAnswerError("no NVIDIA driver answers") from error
    return pynvml


NVML = Nvml()


class NvmlDevice(_Asked):
    """One GPU or MIG instance by UUID."""

    def __init__(self, uuid: str, nvml: Nvml = NVML) -> None:
        self.uuid, self.nvml = uuid, nvml
        self._handle: Any = None

    def ask(self, function: str, *args: Any) -> Any:
        if self._handle is None:
            self._handle = self.nvml.value("nvmlDeviceGetHandleByUUID", self.uuid)
        if self._handle is None:
            self.nvml.ask("nvmlSystemGetDriverVersion")  # without a driver that is the reason
            raise NoAnswerError("the GPU does not answer")
        return self.nvml.ask(function, self._handle, *args)
