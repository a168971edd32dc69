"""The parts of the memory benchmark, each on one device of the pool: in a cell, out a record."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_bracket import Verdict, find_bracket, vote
from memory_grid import Cell
from memory_pool import PROBING, Outcome, Slot
from memory_records import Ceiling, Check, Claim, Peer, Soak, Truth, record


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long things may take."""

    process_s: float
    """One process: a truth check, a probe, a peer."""
    soak_s: float
    logs: Path


def order_probe(slot: Slot, cell: Cell, limits: Limits) -> dict[str, object]:
    device = slot.device
    return {"cell": cell.name, "kind": device.kind, "uuid": device.uuid, "name": device.name, "log": str(limits.logs)}


def measure_ceiling(slot: Slot, cell: Cell, limits: Limits, known: Truth | None = None) -> Ceiling:
    """Ask for the claim, then look for the truth from there; not where it is known already."""
    started = time.monotonic()
    slot.settle()
    child = slot.start(PROBING)
    child.give(order_probe(slot, cell, limits))
    outcome = child.outcome(limits.process_s)
    claim = None if outcome.answer is None else record(Claim, **outcome.answer)
    truth = known
    if truth is None and claim is not None:
        truth = find_truth(slot, cell, claim.hard, limits)
    return Ceiling(claim=claim, truth=truth, error=outcome.error, seconds=time.monotonic() - started)


def find_truth(slot: Slot, cell: Cell, start: int, limits: Limits) -> Truth:
    """The bracket around the largest batch that plain PyTorch trains here and now."""
    checks: list[Check] = []

    def run_once(batch_size: int) -> Verdict:
        order = {"work": "truth", "cell": cell.name, "batch_size": batch_size}
        checks.append(_check(batch_size, slot.run_plain(order, limits.process_s)))
        return checks[-1].verdict  # type: ignore[return-value]

    fits, fails = find_bracket(lambda size: vote(lambda: run_once(size)), start)
    return Truth(fits=fits, fails=fails, checks=checks)


def _check(batch_size: int, outcome: Outcome) -> Check:
    figures = {"batch_size": batch_size, "verdict": outcome.verdict, "seconds": outcome.seconds}
    return record(Check, **figures, message=outcome.error, **(outcome.answer or {}))


def measure_peer(slot: Slot, cell: Cell, tool: str, order: dict[str, object], limits: Limits) -> Peer:
    outcome = slot.run_plain(order | {"cell": cell.name}, limits.process_s)
    error = outcome.error
    if error is not None and error.startswith("ModuleNotFoundError"):
        error = "not installed"
    return record(Peer, tool=tool, wall_s=outcome.seconds, error=error, **(outcome.answer or {}))


def measure_soak(slot: Slot, cell: Cell, batch_size: int, limits: Limits) -> Soak:
    order = {"work": "soak", "cell": cell.name, "batch_size": batch_size, "seconds": limits.soak_s}
    outcome = slot.run_plain(order, limits.soak_s + limits.process_s)
    oom = outcome.error if outcome.verdict == "oom" else None  # before its first step
    figures: dict[str, Any] = {"oom": oom, "error": None if oom else outcome.error} | (outcome.answer or {})
    return record(Soak, batch_size=batch_size, **figures)


def measure_held(slot: Slot, cell: Cell, fraction: float, limits: Limits) -> Ceiling:
    """The same claim and truth while another process holds a share of the device."""
    with _held(slot, cell, fraction, limits) as held_bytes:
        found = measure_ceiling(slot, cell, limits)
    return Ceiling(
        claim=found.claim,
        truth=found.truth,
        error=found.error,
        seconds=found.seconds,
        held_fraction=fraction,
        held_bytes=held_bytes,
    )


@contextmanager
def _held(slot: Slot, cell: Cell, fraction: float, limits: Limits) -> Iterator[int]:
    slot.settle()
    holding: list[int] = []
    ready = threading.Event()

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "holding":
            holding.append(event["bytes"])
            ready.set()

    child = slot.take_plain(cell.name, on_event)
    alone = slot.base_bytes
    try:
        child.give({"work": "hold", "fraction": fraction, "device": slot.device.kind})
        if not ready.wait(limits.process_s):
            raise RuntimeError(f"no process could hold {fraction:.0%} of the device: {child.outcome(1.0).error}")
        slot.base_bytes = slot.used_bytes()
        yield holding[0]
    finally:
        child.end()
        slot.base_bytes = alone
        slot.settle()
