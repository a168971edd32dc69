"""Time the way from host to device: one batch, copied again and again, from pinned or from pageable memory."""

import time
from collections.abc import Callable

import torch

from loadtune.bench.line import Line
from loadtune.records import TransferPoint
from loadtune.workload import Batch

# Copies between two synchronisations take at least this share of the time: a synchronisation costs 10 µs or so, and a
# batch of small samples is copied in as much.
_ROUND_SHARE = 0.05


def time_transfer(
    samples: Batch, batch_size: int, device: torch.device, seconds: float, pin: bool, line: Line
) -> TransferPoint:
    """Copy for about ``seconds`` in all, the first copy uncounted. On a CPU nothing is copied and nothing timed."""
    line.enter("transfer")
    on_cuda = device.type == "cuda"
    batch = _host_batch(samples, batch_size, pin and on_cuda)
    num_copies, took = 0, None
    if on_cuda:
        num_copies, took = _copies(
            lambda: [part.to(device, non_blocking=True) for part in batch],
            lambda: torch.cuda.synchronize(device),
            seconds,
            line,
        )
    return TransferPoint(
        batch_size=batch_size,
        batch_bytes=sum(part.nbytes for part in batch),
        pinned=pin,
        num_copies=num_copies,
        seconds=took,
    )


def _host_batch(samples: Batch, batch_size: int, pin: bool) -> Batch:
    at = torch.arange(batch_size) % len(samples[0])
    inputs, targets = (part.index_select(0, at) for part in samples)
    return (inputs.pin_memory(), targets.pin_memory()) if pin else (inputs, targets)


def _copies(
    copy: Callable[[], object], synchronize: Callable[[], None], seconds: float, line: Line
) -> tuple[int, float]:
    """(copies, their seconds): rounds that grow until a synchronisation at their ends no longer counts."""
    copy()  # its memory on the device is taken now, and page tables are made
    synchronize()
    begun, count, a_round = time.monotonic(), 0, 1
    while True:
        started = time.monotonic()
        for _ in range(a_round):
            copy()
        synchronize()
        line.pulse()
        count, now = count + a_round, time.monotonic()
        if now - begun >= seconds:
            return count, now - begun
        if now - started < _ROUND_SHARE * seconds:
            a_round *= 2
