"""Failures are told apart by literal messages, as PyTorch 2.11 to 2.15 write them."""

import asyncio
import dataclasses
import errno
import sys

import numpy as np
import pytest
import torch

from loadtune.training.failures import Circumstances, classify_error, failure_from, leaves_context_intact
from loadtune.training.process import cause_of_exit

WORKER = "Caught {name} in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n{body}"
QUOTED = '  File "train.py", line 3, in load\n    retry("CUDA out of memory")\nRuntimeError: no such file'


GIB = 1 << 30
FULL = Circumstances(budget_bytes=16 * GIB, peak_bytes=14 * GIB, num_retries=0)
ROOMY = Circumstances(budget_bytes=16 * GIB, peak_bytes=2 * GIB, num_retries=0)
ON_CPU = Circumstances(on_cuda=False, budget_bytes=16 * GIB, peak_bytes=2 * GIB)


def raised(error, cause=None):
    """The error as PyTorch raises it: by compiled code, which a future's result() is, called from a user's file."""
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    future.set_exception(error)
    error.__cause__ = cause
    try:
        future.result()
    except BaseException as caught:
        return caught
    finally:
        loop.close()


def raised_by_a_user(error, cause=None):
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def provoked(call):
    """What really comes out of PyTorch."""
    with pytest.raises(BaseException) as info:  # noqa: PT011
        call()
    return info.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), "oom"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
                      "you tried to allocate 4 bytes. Error code 12 (Cannot allocate memory)"), "host_oom"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"), "host_oom"),
        (RuntimeError("Caught RuntimeError in pin memory thread for device 0.\nOriginal Traceback (most recent call "
                      "last):\n  File \"x.py\", line 1, in pin\nRuntimeError: CUDA error: out of memory"), "host_oom"),
        (MemoryError(), "host_oom"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "host_oom"),
        (RuntimeError("DataLoader worker (pid 31) is killed by signal: Bus error. It is possible that dataloader's "
                      "workers are out of shared memory. Please try to raise your shared memory limit."), "shm"),
        (RuntimeError("unable to mmap 1204 bytes from file </torch_31_7>: Cannot allocate memory (12)"), "shm"),
        (RuntimeError("unable to write to file </torch_31_7>: No space left on device (28)"), "shm"),
        (RuntimeError("DataLoader worker (pid 31) is killed by signal: Segmentation fault. "), "crash"),
        (RuntimeError("DataLoader worker (pid 31) exited unexpectedly with exit code 3. Details are lost"), "crash"),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA` to "
                      "enable device-side assertions.\n"), "crash"),
        (RuntimeError("CUDA error: device-side assert triggered"), "user_error"),
        (RuntimeError('"slow_conv2d_cpu" not implemented for \'Half\''), "unsupported"),
        (RuntimeError("view size is not compatible with input tensor's size and stride (at least one"), "unsupported"),
        (RuntimeError("Expected canUse32BitIndexMath(input) to be true: input must fit into 32-bit index math"),
         "unsupported"),
    ],
)  # fmt: skip
def test_known_messages(error, kind):
    assert classify_error(raised(error)) == kind


AMBIGUOUS = [
    ("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
     "unsupported"),
    ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "unsupported"),
    ("GET was unable to find an engine to execute this computation", "unsupported"),
    ("cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.", "unsupported"),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "unsupported"),
    ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "crash"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "otherwise"), AMBIGUOUS)
def test_what_libraries_say_for_many_reasons_is_memory_only_where_it_was_short(text, otherwise):
    error = raised(RuntimeError(text))
    assert classify_error(error) == classify_error(error, FULL) == "oom"
    assert classify_error(error, ROOMY) == otherwise
    assert classify_error(error, dataclasses.replace(ROOMY, num_retries=1)) == "oom"


@pytest.mark.skipif(sys.platform != "linux", reason="the text is the platform's")
def test_on_a_cpu_the_real_allocators_refusal_is_the_devices_memory():
    error = provoked(lambda: torch.empty(1 << 60, dtype=torch.uint8))
    assert classify_error(error, ON_CPU) == "oom"
    assert classify_error(error, ROOMY) == "host_oom", "beside a GPU it is the host's"
    assert classify_error(provoked(lambda: np.ones(1 << 58)), ON_CPU) == "oom"
    assert classify_error(provoked(lambda: bytearray(1 << 62)), ON_CPU) == "oom"


@pytest.mark.parametrize(("kills", "kind"), [(0, "crash"), (1, "host_oom"), (None, "host_oom")])
def test_a_killed_worker_is_memory_unless_the_kernel_is_known_to_have_killed_nobody(kills, kind):
    error = raised(RuntimeError("DataLoader worker (pid 31) is killed by signal: Killed. "))
    failure = failure_from(error, "training", Circumstances(oom_kills=kills))
    assert failure.kind == kind


def test_a_lost_worker_is_judged_by_the_signal_it_was_lost_to():
    signalled = RuntimeError("DataLoader worker (pid 31) is killed by signal: Killed. ")
    lost = RuntimeError("DataLoader worker (pid(s) 31) exited unexpectedly")
    assert classify_error(raised(lost, signalled)) == "host_oom"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("CUDA out of memory of this label"),
        KeyError("out of memory"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x192 and 100x3)"),
        RuntimeError("stack expects each tensor to be equal size"),
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("shared memory of the museum: No space left on device"),
        RuntimeError(WORKER.format(name="RuntimeError", body=QUOTED)),
    ],
)
def test_a_users_bug_is_never_an_oom(error):
    assert classify_error(raised(error)) == "user_error"


def test_a_users_error_raised_from_a_real_oom_is_one():
    real = raised(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."))
    assert classify_error(raised_by_a_user(RuntimeError("forward failed"), real)) == "oom"
    assert classify_error(raised_by_a_user(ValueError(f"quoted: {real}"))) == "user_error"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("OSError", "OSError: [Errno 12] Cannot allocate memory"),
        ("MemoryError", "MemoryError"),
        ("_ArrayMemoryError", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 2.00 GiB for an array"),
    ],
)
@pytest.mark.parametrize("circumstances", [FULL, ON_CPU])
def test_memory_running_out_in_a_worker_in_other_words(name, line, circumstances):
    body = f'  File "data.py", line 3, in load\n    read(path)\n{line}'
    assert classify_error(raised(RuntimeError(WORKER.format(name=name, body=body))), circumstances) == "host_oom"


def test_a_failure_names_the_sample_and_the_users_line():
    body = (
        '  File "/site-packages/torch/utils/data/_utils/worker.py", line 1, in _worker_loop\n    data = fetch()\n'
        '  File "/home/me/data.py", line 3, in __getitem__\n    raise ValueError(index)\n'
        "ValueError: 17 is bad\nloadtune: dataset[17] raised {}\n"
    )
    failure = failure_from(raised(ValueError(WORKER.format(name="ValueError", body=body))), "training")
    assert failure.kind == "user_error"
    assert failure.message == "dataset[17] raised ValueError: 17 is bad"
    assert "/home/me/data.py" in failure.log_tail
    assert "_worker_loop" not in failure.log_tail


def test_only_the_allocators_own_oom_leaves_the_context_intact():
    assert leaves_context_intact(raised(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB")))
    assert leaves_context_intact(raised(ValueError("a bug")))
    assert not leaves_context_intact(raised(RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")))
    assert not leaves_context_intact(raised(RuntimeError("CUDA error: an illegal memory access was encountered")))


ABORTED = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
REFUSED = (
    "terminate called after throwing an instance of 'c10::Error'\n  what():  [enforce fail at alloc_cpu.cpp:127] err"
    " == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 80 bytes.\nFatal Python error: Aborted\n"
)
THREADS = "\nlibgomp: Thread creation failed: Resource temporarily unavailable\n"
SURVIVED = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory\n"
    "terminate called after throwing an instance of 'std::logic_error'\n  what():  a bug\n"
)


@pytest.mark.parametrize(
    ("returncode", "oom_kills", "log", "kind", "words"),
    [
        (-9, None, "", "host_oom", "SIGKILL: killed, most likely for lack of host memory"),
        (-9, 1, "", "host_oom", "SIGKILL: killed by the kernel for lack of host memory"),
        (-9, 0, "", "crash", "was killed by SIGKILL, not by the kernel for lack of memory"),
        (-9, 0, ABORTED, "crash", "not by the kernel"),
        (-7, 0, "", "shm", "/dev/shm"),
        (-6, 0, "", "crash", "SIGABRT"),
        (-6, 0, ABORTED, "host_oom", "SIGABRT: an allocation of host memory was refused"),
        (-6, None, REFUSED, "host_oom", "refused"),
        (-6, 0, SURVIVED, "crash", "SIGABRT"),
        (1, 0, THREADS, "host_oom", "code 1: an allocation of host memory was refused"),
        (3, 0, "", "crash", "code 3"),
        (-11, 0, ABORTED, "crash", "SIGSEGV"),
    ],
)
def test_exit_statuses(returncode, oom_kills, log, kind, words):
    found, ended = cause_of_exit(returncode, oom_kills=oom_kills, log=log)
    assert found == kind
    assert words in ended
