"""Which jobs a call consists of, and how they are spread over the devices: the longest first, each on one device.

A job that fails is noted and stops nothing else. What is known is saved after each.
"""

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
from memory_clean import VICTIMS, measure_clean
from memory_grid import CELLS, CLEAN, HELD, SMOKE_CELLS, SMOKE_CLEAN, SMOKE_HELD, Cell, cell_named
from memory_orders import Order, first_line
from memory_parts import Limits, measure_ceiling, measure_held, measure_peer, measure_soak
from memory_pool import Slot
from memory_records import Results, Truth

PARTS = ("ceiling", "peers", "soak", "held", "clean")

# Seconds on an H200, for the order of jobs and for what still fits into a call: 4 to 6 processes to a truth, 8 s each.
CEILING_S, HELD_S, CLEAN_S, SOAK_MORE_S = 75.0, 90.0, 30.0, 20.0

TOOLS: dict[str, tuple[Order, float]] = {
    "Lightning, binsearch": ({"work": "lightning"}, 150.0),
    "Accelerate, from 8192": ({"work": "accelerate"}, 25.0),
    "line through 1 to 16, × 0.8 (YOLOv5)": ({"work": "line", "fraction": 0.8}, 12.0),
    "the same line, all free memory": ({"work": "line", "fraction": 1.0}, 12.0),
    "doubling": ({"work": "doubling"}, 20.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for."""

    parts: tuple[str, ...]
    cells: tuple[str, ...] | None
    smoke: bool
    known_truth: bool
    limits: Limits
    until: float | None
    """On the monotonic clock: begin nothing that would end later."""

    def wants(self, name: str) -> bool:
        return self.cells is None or name in self.cells

    @property
    def selected(self) -> list[Cell]:
        if self.cells is not None:
            return [cell_named(name) for name in self.cells]
        return list(SMOKE_CELLS if self.smoke else CELLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str
    estimate_s: float
    run: Callable[[Slot], None]


def list_jobs(plan: Plan, results: Results, phase: int) -> list[Job]:
    """Phase 1: ceilings. Phase 2: what may need them."""
    if phase == 1:
        return [*_ceilings(plan, results)] if "ceiling" in plan.parts else []
    makers = {"peers": _peers, "soak": _soaks, "held": _held, "clean": _cleans}
    return [job for part, make in makers.items() if part in plan.parts for job in make(plan, results)]


def _ceilings(plan: Plan, results: Results) -> Iterator[Job]:
    for cell in plan.selected:
        earlier = results.ceilings.get(cell.name)
        known = earlier.truth if plan.known_truth and earlier is not None else None

        def run(slot: Slot, cell: Cell = cell, known: Truth | None = known) -> None:
            marked = None if known is None else msgspec.structs.replace(known, from_earlier=True)
            results.ceilings[cell.name] = measure_ceiling(slot, cell, plan.limits, marked)

        yield Job(name=f"ceiling {cell.name}", estimate_s=20.0 if known else CEILING_S, run=run)


def _peers(plan: Plan, results: Results) -> Iterator[Job]:
    for cell in plan.selected:
        for tool, (order, estimate_s) in TOOLS.items() if cell.peers else ():

            def run(slot: Slot, cell: Cell = cell, tool: str = tool, order: Order = order) -> None:
                found = measure_peer(slot, cell, tool, order, plan.limits)
                results.peers[cell.name] = results.peers.get(cell.name, {}) | {tool: found}

            yield Job(name=f"peer {cell.name}: {tool}", estimate_s=estimate_s, run=run)


def _soaks(plan: Plan, results: Results) -> Iterator[Job]:
    for cell in plan.selected:
        ceiling = results.ceilings.get(cell.name)
        if ceiling is None or ceiling.claim is None:
            results.failed[f"soak {cell.name}"] = "no safe ceiling is known: run the part `ceiling`, or give --from"
            continue

        def run(slot: Slot, cell: Cell = cell, size: int = ceiling.claim.safe) -> None:
            results.soaks[cell.name] = measure_soak(slot, cell, size, plan.limits)

        yield Job(name=f"soak {cell.name}", estimate_s=plan.limits.soak_s + SOAK_MORE_S, run=run)


def _held(plan: Plan, results: Results) -> Iterator[Job]:
    for name, fraction in SMOKE_HELD if plan.smoke else HELD:
        cell = cell_named(name)
        if plan.wants(name):

            def run(slot: Slot, cell: Cell = cell, fraction: float = fraction) -> None:
                key = f"{cell.name}, {fraction:.0%} held"
                results.held[key] = measure_held(slot, cell, fraction, plan.limits)

            yield Job(name=f"held {name}", estimate_s=HELD_S, run=run)


def _cleans(plan: Plan, results: Results) -> Iterator[Job]:
    for name in SMOKE_CLEAN if plan.smoke else CLEAN:
        cell = cell_named(name)
        for victim in VICTIMS if plan.wants(name) else ():

            def run(slot: Slot, cell: Cell = cell, victim: str = victim) -> None:
                found = measure_clean(slot, cell, victim, plan.limits)
                results.clean[f"{cell.name}, {found.ended}"] = found

            yield Job(name=f"clean {name}, {victim} killed", estimate_s=CLEAN_S, run=run)


def run_jobs(
    jobs: list[Job], slots: list[Slot], results: Results, until: float | None, save: Callable[[], None]
) -> None:
    """Each device takes the longest job that is left, as long as one is."""
    waiting = sorted(jobs, key=lambda job: job.estimate_s, reverse=True)
    lock = threading.Lock()
    started = time.monotonic()

    def work(slot: Slot) -> None:
        while True:
            with lock:
                if not waiting:
                    return
                job = waiting.pop(0)
            if until is not None and time.monotonic() + job.estimate_s > until:
                results.failed[job.name] = "not begun for lack of time"
                continue
            begun = time.monotonic()
            try:
                job.run(slot)
            except Exception as error:
                traceback.print_exc()
                results.failed[job.name] = first_line(error)
            with lock:
                now = time.monotonic()
                print(f"{now - started:6.0f} s  {job.name} on {slot.number}: {now - begun:.1f} s", flush=True)
                save()

    threads = [threading.Thread(target=work, args=(slot,), daemon=True) for slot in slots]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # joined in pieces, so that a signal is heard
            thread.join(0.5)
