"""How near the memory probe comes to the largest batch that trains, and whether its answers hold.

    python benchmarks/memory.py [--parts ceiling,soak,held,clean] [--cells A,B] [--device cuda:0] [--soak-s 120]
                                [--keep FOLDER] [--from JSON] [--note FILE] [--smoke]

The truth of a cell is bisected to 1% with plain PyTorch, a fresh process for every try: a size is over the ceiling if
it fails in two of three. Goal: a hard ceiling of 0.97 to 1.00 of it in every cell, in 5 probes and 1 OOM at most,
ResNet-50 within 10 s; no OOM in two minutes of training at the safe one; the device's memory afterwards as before.
Parts may be run in several calls: --keep writes what is known, --from takes it up again (`soak` needs ceilings).
--smoke rehearses on a CPU.
"""

import argparse
import contextlib
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
from cells import CELLS, CLEAN, HELD, SMOKE_CELLS, SMOKE_CLEAN, SMOKE_HELD, Cell, cell_named
from memory_note import GIB, RESOLUTION, Ceiling, Claim, Clean, Results, Soak, Truth, goals, is_narrow, note, tables
from processes import (
    POLL_S,
    SETTLE_S,
    Child,
    Job,
    Slot,
    describe_host,
    end_all,
    names,
    run_jobs,
    without_paths,
)

from loadtune.errors import DeviceError
from loadtune.host import read_host

PARTS = ("ceiling", "soak", "held", "clean")
CHILD = "memory_child.py"
CEILING_S, KNOWN_S, HELD_S, CLEAN_S, SOAK_MORE_S = 90.0, 25.0, 90.0, 30.0, 25.0
"""Of a job on an H200, for what still fits into a call: 4 to 6 processes to a truth, 8 to 12 s each."""

VOTERS, MAX_SIZES = 3, 12
"""A bracket is found within 3 sizes where the first is within 1% of the truth, within 6 where it is within 10%."""

REST_S, MIDDLE_BYTES = 0.5, 20 * GIB
"""Used memory that stays the same for so long is at rest. More bytes than any context or small batch takes."""


def vote(run: Callable[[], str]) -> str:
    """Two of up to three runs decide; a third only where the first two differ. None of a kind: an error."""
    seen: list[str] = []
    for _ in range(VOTERS):
        seen.append(run())
        if seen.count(seen[-1]) * 2 > VOTERS:
            return seen[-1]
    return "error"


def find_bracket(judge: Callable[[int], str], start: int) -> tuple[int | None, int | None]:
    """(largest that fits, smallest that fails), from `start` outwards in growing steps, then halving.

    Ends where a size can be judged neither way, with what is known until then; None: that side was not found.
    """
    fits: int | None = None
    fails: int | None = None
    size, step = max(1, start), RESOLUTION
    for _ in range(MAX_SIZES):
        verdict = judge(size)
        if verdict == "fits":
            fits = size
        elif verdict == "oom":
            fails = size
        else:
            break
        if fits is not None and fails is not None:
            if is_narrow(fits, fails):
                break
            size = (fits + fails) // 2
        else:
            size = max(size + 1, int(size * (1 + step))) if fits else min(size - 1, int(size * (1 - step)) + 1)
            step *= 2
        if size < 1:
            break
    return fits, fails


class Training:
    """The parts, on one device: in a cell, out a record."""

    def __init__(self, slot: Slot, limit_s: float, soak_s: float) -> None:
        self.slot, self.limit_s, self.soak_s = slot, limit_s, soak_s

    def ceiling(self, cell: Cell, known: Truth | None = None) -> Ceiling:
        """Ask for the claim, then look for the truth from there; not where it is known already."""
        outcome = self.slot.run(CHILD, self._probe(cell), self.limit_s)
        claim = None if outcome.answer is None else msgspec.convert(outcome.answer, Claim)
        truth = known if known is not None or claim is None else self.truth(cell, claim.hard)
        return Ceiling(claim=claim, truth=truth, error=outcome.error)

    def _probe(self, cell: Cell) -> dict[str, object]:
        device = self.slot.device
        return {
            "work": "probe",
            "cell": cell.name,
            "uuid": device.uuid,
            "name": device.name,
            "log": str(self.slot.logs),
        }

    def truth(self, cell: Cell, start: int) -> Truth:
        """The bracket around the largest batch that plain PyTorch trains here and now."""
        outcomes = []

        def run_once(batch_size: int) -> str:
            order = {"work": "truth", "cell": cell.name, "batch_size": batch_size}
            outcomes.append(self.slot.run(CHILD, order, self.limit_s))
            return outcomes[-1].verdict

        fits, fails = find_bracket(lambda size: vote(lambda: run_once(size)), start)
        error = next((each.error for each in outcomes if each.verdict == "error"), None)
        return Truth(fits=fits, fails=fails, num_processes=len(outcomes), error=error)

    def soak(self, cell: Cell, batch_size: int) -> Soak:
        order = {"work": "soak", "cell": cell.name, "batch_size": batch_size, "seconds": self.soak_s}
        outcome = self.slot.run(CHILD, order, self.soak_s + self.limit_s)
        oom = outcome.error if outcome.verdict == "oom" else None  # before its first step
        figures = {"oom": oom, "error": None if oom else outcome.error} | (outcome.answer or {})
        return msgspec.convert({"batch_size": batch_size} | figures, Soak)

    def held(self, cell: Cell, fraction: float) -> Ceiling:
        """Claim and truth while another process holds a share of the device."""
        with self._holding(fraction):
            return self.ceiling(cell)

    @contextmanager
    def _holding(self, fraction: float) -> Iterator[None]:
        self.slot.settle()
        ready, alone = threading.Event(), self.slot.base_bytes
        child = self.slot.start(CHILD, lambda event: ready.set())
        try:
            child.give({"work": "hold", "fraction": fraction})
            if not ready.wait(self.limit_s):
                raise RuntimeError(f"no process could hold {fraction:.0%} of the device: {child.outcome(1.0).error}")
            self.slot.base_bytes = self.slot.used_bytes()
            yield
        finally:
            child.end()
            self.slot.base_bytes = alone
            self.slot.settle()

    def clean(self, cell: Cell, victim: str | None) -> Clean:
        """Probe, kill nobody, the training or the controller in the middle, and look at what is left."""
        before = self._at_rest()
        begun, pids = threading.Event(), list[int]()

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "training":
                pids.append(event["pid"])
            else:
                begun.set()

        child = self.slot.start(CHILD, on_event)
        pids.append(child.process.pid)
        child.give(self._probe(cell))
        at_kill = None
        if victim is not None:
            begun.wait(self.limit_s)
            at_kill = self._middle(child, before)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[-1] if victim == "training" else child.process.pid, signal.SIGKILL)
        outcome = child.outcome(self.limit_s)
        settling = time.monotonic()
        while (alive(pids) or self.slot.used_bytes() != before) and time.monotonic() - settling < SETTLE_S:
            time.sleep(POLL_S)
        return Clean(
            ended="finished" if victim is None else f"{victim} killed",
            used_before_bytes=before,
            used_at_kill_bytes=at_kill,
            used_after_bytes=self.slot.used_bytes(),
            settle_s=time.monotonic() - settling,
            num_processes=len(pids),
            num_left=len(alive(pids)),
            error=None if victim == "controller" else outcome.error,
        )

    def _middle(self, child: Child, before: int | None) -> int | None:
        """Waits until the training tries a large batch, or without a GPU for a moment; returns what was in use then."""
        used, until = None, time.monotonic() + REST_S
        while child.process.poll() is None:
            used = self.slot.used_bytes()
            if time.monotonic() > until if used is None or before is None else used > before + MIDDLE_BYTES:
                break
            time.sleep(0.01)
        return used

    def _at_rest(self) -> int | None:
        """What is used once it has stopped changing."""
        self.slot.settle()
        used, until = self.slot.used_bytes(), time.monotonic() + SETTLE_S
        while used is not None and time.monotonic() < until:
            time.sleep(REST_S)
            used, last = self.slot.used_bytes(), used
            if used == last:
                break
        return used


def alive(leaders: list[int]) -> list[int]:
    """Processes in the groups that these led; one that is only waiting to be reaped is gone."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) in leaders and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process.pid)
    return left


def jobs_of(given: argparse.Namespace, training: Training, results: Results) -> Iterator[Job]:
    """Ceilings first: soaks need them."""
    cells = [cell_named(name) for name in given.cells] if given.cells else SMOKE_CELLS if given.smoke else CELLS
    by_name = {cell.name: cell for cell in cells}

    def job(found: dict[str, Any], key: str, seconds: float, measure: Callable[[], object]) -> Job:
        return key, seconds, lambda: found.update({key: measure()})

    for name, cell in by_name.items() if "ceiling" in given.parts else ():
        earlier, known = results.ceilings.get(name), None
        if given.known_truth and earlier is not None and earlier.truth is not None:
            known = msgspec.structs.replace(earlier.truth, from_earlier=True)
        seconds = CEILING_S if known is None else KNOWN_S
        yield job(results.ceilings, name, seconds, partial(training.ceiling, cell, known))
    for name, cell in by_name.items() if "soak" in given.parts else ():
        found = results.ceilings.get(name)
        if found is None or found.claim is None:
            results.failed[f"soak {name}"] = "no safe ceiling is known: run the part `ceiling`, or give --from"
        else:
            yield job(results.soaks, name, given.soak_s + SOAK_MORE_S, partial(training.soak, cell, found.claim.safe))
    for name, share in (SMOKE_HELD if given.smoke else HELD) if "held" in given.parts else ():
        if name in by_name:
            yield job(results.held, f"{name}, {share:.0%} held", HELD_S, partial(training.held, by_name[name], share))
    for name in (SMOKE_CLEAN if given.smoke else CLEAN) if "clean" in given.parts else ():
        for victim in (None, "training", "controller") if name in by_name else ():
            key = f"{name}, {victim or 'nobody'} killed"
            yield job(results.clean, key, CLEAN_S, partial(training.clean, by_name[name], victim))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=names, default=PARTS, help=f"of {', '.join(PARTS)}")
    parser.add_argument("--cells", type=names, help="all of them if not given")
    parser.add_argument("--device", help="cuda:N or cpu")
    parser.add_argument("--soak-s", type=float, default=120.0)
    parser.add_argument("--limit-s", type=float, default=240.0, help="for one process")
    parser.add_argument("--within-s", type=float, help="begin no job that would probably end later than this")
    parser.add_argument("--known-truth", action="store_true", help="do not look again for truths that --from has")
    parser.add_argument("--from", dest="earlier", type=Path, action="append", default=[], help="kept by another call")
    parser.add_argument("--keep", type=Path, help="folder for memory.json and logs")
    parser.add_argument("--note", type=Path, help="file to keep the note in")
    parser.add_argument("--smoke", action="store_true", help="tiny models with a made-up ceiling")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit: processes end, what is known is kept
    until = None if given.within_s is None else time.monotonic() + given.within_s
    keep = given.keep or Path(tempfile.mkdtemp(prefix="memory-"))
    keep.mkdir(parents=True, exist_ok=True)
    host = read_host()
    try:
        slot = Slot(given.device or ("cpu" if given.smoke else None), host, keep / "logs")
    except DeviceError as error:
        sys.exit(str(error))
    command = shlex.join(["python", "benchmarks/memory.py", *without_paths(sys.argv[1:])])
    results = Results(commands=[command], host=describe_host(host, slot.device))
    for path in given.earlier:
        results.absorb(msgspec.json.decode(path.read_bytes(), type=Results))

    def save() -> None:
        (keep / "memory.json").write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
        if given.note is not None:
            given.note.write_text(note(results))

    try:
        run_jobs(jobs_of(given, Training(slot, given.limit_s, given.soak_s), results), results.failed, until, save)
    finally:
        save()
        end_all()
    print(tables(results))
    found = list(goals(results))
    print("\n".join(["", *(f"missed: {goal}" for goal, met in found if not met)]))
    print(f"{sum(met for _, met in found)} of {len(found)} goals met; {keep / 'memory.json'}")
    return 0 if all(met for _, met in found) else 1


if __name__ == "__main__":
    sys.exit(main())
