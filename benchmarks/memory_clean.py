"""What a probe leaves of the device's memory and of processes, after it has ended or was killed in the middle."""

import contextlib
import os
import signal
import threading
import time
from typing import Any

import psutil
from memory_grid import Cell
from memory_parts import Limits, order_probe
from memory_pool import PROBING, SETTLE_S, Child, Slot
from memory_records import GIB, Clean

VICTIMS = ("nobody", "bench", "controller")

_POLL_S = 0.05
# Used memory that stays the same for this long is at rest.
_REST_S = 0.5
# More than any context or small batch takes: the bench is then in a probe's large batch.
_MIDDLE_BYTES = 20 * GIB


def measure_clean(slot: Slot, cell: Cell, victim: str, limits: Limits) -> Clean:
    """Probe, and kill nobody, the bench or the controller in the middle; then look at what is left."""
    before = _at_rest(slot)
    pids: list[int] = []
    begun = threading.Event()

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "bench":
            pids.append(event["pid"])
        elif event["event"] == "probing":
            begun.set()

    child = slot.start(PROBING, on_event=on_event)
    pids.append(child.process.pid)
    child.give(order_probe(slot, cell, limits))
    at_kill = None
    if victim != "nobody":
        begun.wait(limits.process_s)
        at_kill = _kill_in_the_middle(slot, child, pids, victim, before)
    outcome = child.outcome(limits.process_s)
    settling = time.monotonic()
    while _alive(pids) or slot.used_bytes() != before:
        if time.monotonic() - settling > SETTLE_S:
            break
        time.sleep(_POLL_S)
    settle_s = time.monotonic() - settling
    return Clean(
        ended="finished" if victim == "nobody" else f"{victim} killed",
        used_before_bytes=before,
        used_at_kill_bytes=at_kill,
        used_after_bytes=slot.used_bytes(),
        settle_s=settle_s,
        num_processes=len(pids),
        num_left=len(_alive(pids)),
        error=None if victim == "controller" else outcome.error,
    )


def _kill_in_the_middle(slot: Slot, child: Child, pids: list[int], victim: str, before: int | None) -> int | None:
    """Once the bench tries a large batch, or without a GPU a moment later; returns what was in use then."""
    used = None
    deadline = time.monotonic() + _REST_S
    while child.process.poll() is None:
        used = slot.used_bytes()
        if time.monotonic() > deadline if used is None or before is None else used > before + _MIDDLE_BYTES:
            break
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids[-1] if victim == "bench" else child.process.pid, signal.SIGKILL)
    return used


def _at_rest(slot: Slot) -> int | None:
    """What is used once it has stopped changing."""
    slot.settle()
    used = slot.used_bytes()
    deadline = time.monotonic() + SETTLE_S
    while used is not None and time.monotonic() < deadline:
        time.sleep(_REST_S)
        used, last = slot.used_bytes(), used
        if used == last:
            break
    return used


def _alive(leaders: list[int]) -> list[int]:
    """Processes in the groups that these led; one that is only waiting to be reaped is gone."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) in leaders and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process.pid)
    return left
