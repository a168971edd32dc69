"""What the benchmark of memory found: records that go to JSON and back, tables in Markdown, and which goals are met.

`None` is not measured.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from processes import markdown_row, markdown_table

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


class Clean(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe left of the device's memory and of processes."""

    ended: str
    """``finished``, ``training killed`` or ``controller killed``."""
    used_before_bytes: int | None
    used_at_kill_bytes: int | None = None
    used_after_bytes: int | None
    settle_s: float
    num_processes: int
    """That the probe had started, the controller's own among them."""
    num_left: int
    error: str | None = None


class Results(msgspec.Struct, kw_only=True):
    """Everything; keys are cells, or a cell and what was done to it."""

    host: dict[str, str] = {}
    commands: list[str] = []
    ceilings: dict[str, Ceiling] = {}
    soaks: dict[str, Soak] = {}
    held: dict[str, Ceiling] = {}
    clean: dict[str, Clean] = {}
    failed: dict[str, str] = {}
    """Jobs that ended in an exception, or were not begun for lack of time."""

    def absorb(self, earlier: "Results") -> None:
        """Take over what an earlier call found and this one has not."""
        self.commands = earlier.commands + self.commands
        for name in ("ceilings", "soaks", "held", "clean"):
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
        (
            "What is left behind",
            "cell, who was killed | used before | at the kill | after | bytes more | back within s | processes (left)",
            [clean_row(*each) for each in results.clean.items()],
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


def clean_row(key: str, clean: Clean) -> str:
    before, after = clean.used_before_bytes, clean.used_after_bytes
    sizes = [None if b is None else f"{b / GIB:.3f} GiB" for b in (before, clean.used_at_kill_bytes, after)]
    more = None if before is None or after is None else after - before
    return markdown_row([key, *sizes, more, f"{clean.settle_s:.1f}", f"{clean.num_processes} ({clean.num_left})"])


def goals(results: Results) -> Iterator[tuple[str, bool]]:
    """Every goal that what was measured can speak to, and whether it is met."""
    for cell, ceiling in (results.ceilings | results.held).items():
        yield from ceiling_goals(cell, ceiling)
    for cell, soak in results.soaks.items():
        ended = soak.error is None and soak.oom is None and bool(soak.num_steps)
        yield f"{cell}: trains at {soak.batch_size} for {soak.seconds or 0:.0f} s without an OOM", ended
    for key, clean in results.clean.items():
        same = clean.used_before_bytes == clean.used_after_bytes and clean.num_left == 0
        # What was in use at the kill tells whether it hit a probe at all.
        hit = clean.ended == "finished" or (clean.used_at_kill_bytes or 1) > (clean.used_before_bytes or 0)
        yield f"{key}: memory as before, no process left", same and hit
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
