"""Failures are told apart by literal messages, as PyTorch 2.11 to 2.15 write them."""

import errno

import pytest
import torch

from loadtune.bench.exits import classify_exit, exit_text
from loadtune.bench.failures import classify_error, failure_from, leaves_context_intact

WORKER = "Caught {name} in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n{body}"


def raised(error, cause=None):
    """The error as it arrives: with a traceback of code that is not ours."""
    try:
        raise error from cause
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), "oom"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a"), "oom"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "oom"),
        (RuntimeError("GET was unable to find an engine to execute this computation"), "oom"),
        (RuntimeError("Unable to find an engine to execute this computation"), "oom"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
                      "you tried to allocate 4 bytes. Error code 12 (Cannot allocate memory)"), "host_oom"),
        (MemoryError(), "host_oom"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "host_oom"),
        (RuntimeError("DataLoader worker (pid 31) is killed by signal: Killed. "), "host_oom"),
        (RuntimeError("DataLoader worker (pid 31) is killed by signal: Bus error. It is possible that dataloader's "
                      "workers are out of shared memory. Please try to raise your shared memory limit."), "shm"),
        (RuntimeError("unable to mmap 1204 bytes from file </torch_31_7>: Cannot allocate memory (12)"), "shm"),
        (RuntimeError("unable to allocate shared memory(shm) for file </torch_31_7>: No space left on device (28)"),
         "shm"),
        (RuntimeError("unable to write to file </torch_31_7>: No space left on device (28)"), "shm"),
        (RuntimeError("DataLoader worker (pid 31) is killed by signal: Segmentation fault. "), "crash"),
        (RuntimeError("DataLoader worker (pid(s) 31, 32) exited unexpectedly"), "crash"),
        (RuntimeError("DataLoader worker (pid 31) exited unexpectedly with exit code 3. Details are lost"), "crash"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "crash"),
        (RuntimeError("CUDA error: device-side assert triggered"), "user_error"),
        (RuntimeError('"slow_conv2d_cpu" not implemented for \'Half\''), "unsupported"),
        (RuntimeError("view size is not compatible with input tensor's size and stride (at least one"), "unsupported"),
        (RuntimeError("Expected canUse32BitIndexMath(input) to be true: input must fit into 32-bit index math"),
         "unsupported"),
    ],
)  # fmt: skip
def test_known_messages(error, kind):
    assert classify_error(raised(error)) == kind


def test_a_lost_worker_is_judged_by_the_signal_it_was_lost_to():
    signalled = RuntimeError("DataLoader worker (pid 31) is killed by signal: Killed. ")
    assert classify_error(raised(RuntimeError("DataLoader worker (pid(s) 31) exited unexpectedly"), signalled)) == (
        "host_oom"
    )


@pytest.mark.parametrize(
    "error",
    [
        ValueError("CUDA out of memory of this label"),
        KeyError("out of memory"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x192 and 100x3)"),
        RuntimeError("stack expects each tensor to be equal size"),
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("shared memory of the museum: No space left on device"),
    ],
)
def test_a_users_bug_is_never_an_oom(error):
    assert classify_error(raised(error)) == "user_error"


def test_of_a_workers_error_only_the_line_that_was_raised_counts():
    body = '  File "train.py", line 3, in load\n    retry("CUDA out of memory")\nRuntimeError: no such file'
    assert classify_error(raised(RuntimeError(WORKER.format(name="RuntimeError", body=body)))) == "user_error"


def test_memory_running_out_in_a_worker_is_the_hosts():
    body = (
        '  File "train.py", line 3, in load\n    torch.empty(n)\n'
        "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"
    )
    assert classify_error(raised(RuntimeError(WORKER.format(name="RuntimeError", body=body)))) == "host_oom"


def test_a_failure_names_the_sample_and_the_users_line():
    body = (
        '  File "/site-packages/torch/utils/data/_utils/worker.py", line 1, in _worker_loop\n    data = fetch()\n'
        '  File "/home/me/data.py", line 3, in __getitem__\n    raise ValueError(index)\n'
        "ValueError: 17 is bad\nwhile reading sample index 17\n"
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


@pytest.mark.parametrize(
    ("returncode", "kind", "words"),
    [(-9, "host_oom", "SIGKILL"), (-7, "shm", "/dev/shm"), (-6, "crash", "SIGABRT"), (3, "crash", "code 3")],
)
def test_exit_statuses(returncode, kind, words):
    assert classify_exit(returncode) == kind
    assert words in exit_text(returncode)


def test_a_device_side_assert_is_explained():
    message = failure_from(RuntimeError("CUDA error: device-side assert triggered"), "training").message
    assert "label" in message
