"""How near the memory probe comes to the largest batch that trains, and whether its answers hold.

    python benchmarks/memory.py [--parts ceiling,soak,held] [--cells A,B] [--device cuda:0] [--soak-s 120]
                                [--keep FOLDER] [--from JSON] [--note FILE] [--smoke]

The truth of a cell is bisected to 1% with plain PyTorch, a fresh process for every try: a size is over the ceiling if
it fails in two of three. Goal: a hard ceiling of 0.97 to 1.00 of it in every cell, in 5 probes and 1 OOM at most,
ResNet-50 within 10 s; no OOM in two minutes of training at the safe one.
Parts may be run in several calls: --keep writes what is known, --from takes it up again (`soak` needs ceilings).
--smoke rehearses on a CPU.
"""

import argparse
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from cells import CELLS, HELD, SMOKE_CELLS, SMOKE_HELD, Cell, cell_named
from processes import (
    Job,
    Slot,
    add_kept,
    command,
    describe_host,
    keeping,
    markdown_row,
    markdown_table,
    names,
    run_jobs,
    with_kept,
)

from loadtune.errors import DeviceError
from loadtune.host.machine import read_host

PARTS = ("ceiling", "soak", "held")
CHILD = "memory_child.py"
CEILING_S, KNOWN_S, HELD_S, SOAK_MORE_S = 90.0, 25.0, 90.0, 25.0
"""Of a job on an H200, for what still fits into a call: 4 to 6 processes to a truth, 8 to 12 s each."""

VOTERS, MAX_SIZES = 3, 12
"""A bracket is found within 3 sizes where the first is within 1% of the truth, within 6 where it is within 10%."""


RESOLUTION = 0.01
LOWEST, MAX_PROBES, MAX_OOMS, RESNET_S = 0.97, 5, 1, 10.0
GIB = 1 << 30


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One size that the probe ran."""

    batch_size: int
    failed: bool
    num_retries: int | None
    num_steady_retries: int | None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What loadtune says of a cell."""

    hard: int
    safe: int
    probes: list[Probe]
    num_probes: int
    num_ooms: int
    bench_s: float
    """Until the training was up and the workload described."""
    probe_s: float


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """The bracket around the largest batch that trains: what was seen to fit, and to fail. None: not found."""

    fits: int | None
    fails: int | None
    num_processes: int
    error: str | None = None
    """What the first process said that could judge its size neither way."""
    from_earlier: bool = False

    @property
    def is_narrow(self) -> bool:
        return self.fits is not None and self.fails is not None and is_narrow(self.fits, self.fails)


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """A claim beside its truth."""

    claim: Claim | None
    truth: Truth | None
    error: str | None = None

    def share_of(self, size: int | None) -> float | None:
        """Hard ceiling over the smallest size that fails: the truth is below that; or over the largest that fits."""
        return self.claim.hard / size if self.claim is not None and size else None


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """Minutes of plain training at the safe ceiling."""

    batch_size: int
    partial_batch_size: int | None = None
    num_steps: int | None = None
    num_evaluations: int | None = None
    seconds: float | None = None
    step_s: float | None = None
    num_retries: int | None = None
    num_late_retries: int | None = None
    """In the second half of the time."""
    peak_reserved_bytes: int | None = None
    oom: str | None = None
    error: str | None = None


class Results(msgspec.Struct, kw_only=True):
    """Everything; keys are cells, or a cell and what was done to it."""

    host: dict[str, str] = {}
    commands: list[str] = []
    ceilings: dict[str, Ceiling] = {}
    soaks: dict[str, Soak] = {}
    held: dict[str, Ceiling] = {}
    failed: dict[str, str] = {}
    """Jobs that ended in an exception, or were not begun for lack of time."""

    def absorb(self, earlier: "Results") -> None:
        """Take over what an earlier call found and this one has not."""
        self.commands = earlier.commands + self.commands
        for name in ("ceilings", "soaks", "held"):
            setattr(self, name, getattr(earlier, name) | getattr(self, name))


def is_narrow(fits: int, fails: int) -> bool:
    """Whether nothing is left to be found between the two."""
    return fails - fits <= max(1.0, RESOLUTION * fits)


CEILING_HEAD = (
    "cell | hard | safe | truth: fits, fails | hard ÷ truth | probes (OOMs) | probe s | training s | sizes tried | "
    "retries at hard (steady) | processes"
)


def tables(results: Results) -> str:
    """Every part that was run, one table each."""
    parts = [
        ("Ceilings", CEILING_HEAD, [ceiling_row(*each) for each in results.ceilings.items()]),
        ("With memory held by another process", CEILING_HEAD, [ceiling_row(*each) for each in results.held.items()]),
        (
            "Training at the safe ceiling",
            "cell | batch (partial) | steps, evaluations | s | step s | OOMs | retries (second half) | reserved GiB",
            [soak_row(*each) for each in results.soaks.items()],
        ),
        ("Not measured", "job | why", [markdown_row(each) for each in results.failed.items()]),
    ]
    return "\n\n".join(markdown_table(*part) for part in parts if part[2])


def ceiling_row(cell: str, found: Ceiling) -> str:
    claim, truth = found.claim, found.truth
    if claim is None or truth is None:
        return markdown_row([cell, found.error, *[None] * 9])
    at_hard = next((each for each in claim.probes if each.batch_size == claim.hard and not each.failed), None)
    return markdown_row([
        cell,
        claim.hard,
        claim.safe,
        f"{truth.fits or '–'}, {truth.fails or '–'}",
        share_text(found),
        f"{claim.num_probes} ({claim.num_ooms})",
        f"{claim.probe_s:.1f}",
        f"{claim.bench_s:.1f}",
        ", ".join(f"{each.batch_size}{'✗' if each.failed else ''}" for each in claim.probes),
        at_hard and f"{at_hard.num_retries} ({at_hard.num_steady_retries})",
        "known" if truth.from_earlier else f"{truth.num_processes}{'; ' + truth.error if truth.error else ''}",
    ])  # fmt: skip


def share_text(found: Ceiling) -> str:
    """Both ends of hard ÷ truth; the truth is at least what fits and below what fails."""
    ends = (found.truth.fails, found.truth.fits) if found.truth else (None, None)
    return " to ".join("–" if share is None else f"{share:.3f}" for share in map(found.share_of, ends))


def soak_row(cell: str, soak: Soak) -> str:
    size = f"{soak.batch_size} ({soak.partial_batch_size})"
    if soak.num_steps is None:
        return markdown_row([cell, size, None, None, None, soak.oom or soak.error, None, None])
    return markdown_row([
        cell,
        size,
        f"{soak.num_steps}, {soak.num_evaluations}",
        f"{soak.seconds:.0f}",
        None if soak.step_s is None else f"{soak.step_s:.3f}",
        f"1: {soak.oom}" if soak.oom else 0,
        f"{soak.num_retries} ({soak.num_late_retries})",
        None if soak.peak_reserved_bytes is None else f"{soak.peak_reserved_bytes / GIB:.1f}",
    ])  # fmt: skip


def goals(results: Results) -> Iterator[tuple[str, bool]]:
    """Every goal that what was measured can speak to, and whether it is met."""
    for cell, ceiling in (results.ceilings | results.held).items():
        yield from ceiling_goals(cell, ceiling)
    for cell, soak in results.soaks.items():
        ended = soak.error is None and soak.oom is None and bool(soak.num_steps)
        yield f"{cell}: trains at {soak.batch_size} for {soak.seconds or 0:.0f} s without an OOM", ended
    for job in results.failed:
        yield f"{job}: measured", False


def ceiling_goals(cell: str, found: Ceiling) -> Iterator[tuple[str, bool]]:
    claim, truth = found.claim, found.truth
    if claim is None or truth is None or truth.fits is None or truth.fails is None:
        yield f"{cell}: measured", False
        return
    yield f"{cell}: truth known to 1%", truth.is_narrow
    within = claim.hard >= LOWEST * truth.fails and claim.hard <= truth.fits
    yield f"{cell}: hard ÷ truth {share_text(found)} within {LOWEST:.2f} to 1.00", within
    yield f"{cell}: {claim.num_probes} probes of {MAX_PROBES}", claim.num_probes <= MAX_PROBES
    yield f"{cell}: {claim.num_ooms} OOMs of {MAX_OOMS}", claim.num_ooms <= MAX_OOMS
    if cell.startswith("resnet50"):
        yield f"{cell}: {claim.probe_s:.1f} s of {RESNET_S:.0f} s", claim.probe_s <= RESNET_S


def note(results: Results) -> str:
    text = [
        f"# The memory probe on {results.host['Device']}, {datetime.now(UTC):%Y-%m-%d}",
        ". ".join(f"{name}: {fact}" for name, fact in results.host.items()) + ".",
        "Commands: " + ", then ".join(f"`{command}`" for command in results.commands) + ".",
        "A truth is the largest size that trained and the smallest that did not, each in two of up to three fresh "
        "processes; hard ÷ truth is given over both. ✗ marks a size that ran out of memory.",
        tables(results),
    ]
    return "\n\n".join(text) + "\n"


# Measuring


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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=names, default=PARTS, help=f"of {', '.join(PARTS)}")
    parser.add_argument("--cells", type=names, help="all of them if not given")
    parser.add_argument("--device", help="cuda:N or cpu")
    parser.add_argument("--soak-s", type=float, default=120.0)
    parser.add_argument("--limit-s", type=float, default=240.0, help="for one process")
    parser.add_argument("--known-truth", action="store_true", help="do not look again for truths that --from has")
    add_kept(parser)
    parser.add_argument("--smoke", action="store_true", help="tiny models with a made-up ceiling")
    return with_kept(parser.parse_args())


def main() -> int:
    given = arguments()
    host = read_host()
    try:
        slot = Slot(given.device or ("cpu" if given.smoke else None), host, given.keep / "logs")
    except DeviceError as error:
        sys.exit(str(error))
    results = Results(commands=[command()], host=describe_host(host, slot.device))
    for path in given.earlier:
        results.absorb(msgspec.json.decode(path.read_bytes(), type=Results))
    with keeping(given, "memory.json", results, lambda: note(results)) as save:
        jobs = jobs_of(given, Training(slot, given.limit_s, given.soak_s), results)
        run_jobs(jobs, results.failed, given.until, save)
    print(tables(results))
    found = list(goals(results))
    print("\n".join(["", *(f"missed: {goal}" for goal, met in found if not met)]))
    print(f"{sum(met for _, met in found)} of {len(found)} goals met; {given.keep / 'memory.json'}")
    return 0 if all(met for _, met in found) else 1


if __name__ == "__main__":
    sys.exit(main())
