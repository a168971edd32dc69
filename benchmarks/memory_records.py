"""What the memory benchmark found, as records that go to JSON and back, so that parts may be run on different days.

`None` is not measured. Each record holds figures; what is derived from them is a property.
"""

from typing import Any

import msgspec

GIB = 1 << 30


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One size that the probe ran."""

    batch_size: int
    failure: str | None = None
    seconds: float
    num_retries: int | None = None
    num_steady_retries: int | None = None
    peak_bytes: int | None = None
    evaluation_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    outside_bytes: int | None = None
    budget_bytes: int | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What loadtune says of a cell."""

    hard: int
    safe: int
    limit: str
    probes: list[Probe]
    num_probes: int
    num_ooms: int
    counted_s: float
    """By its own count."""
    bench_s: float
    """Until the bench was up and the workload described."""
    probe_s: float
    """The probe by our clock."""
    bytes_per_sample: float | None = None
    fixed_bytes: float | None = None
    line_error_fraction: float | None = None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One fresh process that trained one size, or failed to."""

    batch_size: int
    verdict: str
    seconds: float
    free_bytes: int | None = None
    """Free memory of the device before its model was built."""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    num_retries: int | None = None
    message: str | None = None


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """The bracket around the largest batch that trains."""

    fits: int | None
    fails: int | None
    checks: list[Check]
    from_earlier: bool = False
    """Taken from an earlier call, not looked for in this one."""


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """A claim beside its truth."""

    claim: Claim | None
    truth: Truth | None
    error: str | None = None
    seconds: float
    held_fraction: float | None = None
    held_bytes: int | None = None

    @property
    def lowest_share(self) -> float | None:
        """Hard ceiling over the smallest size that fails: the truth is below that."""
        return self.claim.hard / self.truth.fails if self.claim and self.truth and self.truth.fails else None

    @property
    def highest_share(self) -> float | None:
        """Hard ceiling over the largest size that fits: the truth is that, or above."""
        return self.claim.hard / self.truth.fits if self.claim and self.truth and self.truth.fits else None


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """What another tool found."""

    tool: str
    found: int | None = None
    was_run: bool = False
    num_attempts: int | None = None
    num_ooms: int | None = None
    seconds: float | None = None
    wall_s: float
    """Of its process, imports and all."""
    remark: str = ""
    error: str | None = None


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """Minutes of plain training at the safe ceiling."""

    batch_size: int
    num_steps: int | None = None
    num_evaluations: int | None = None
    partial_batch_size: int | None = None
    seconds: float | None = None
    step_s: float | None = None
    num_retries: int | None = None
    num_late_retries: int | None = None
    """In the second half of the time."""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    oom: str | None = None
    error: str | None = None


class Clean(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe left of the device, and of processes."""

    ended: str
    """``finished``, ``bench killed`` or ``controller killed``."""
    used_before_bytes: int | None
    used_at_kill_bytes: int | None = None
    used_after_bytes: int | None
    settle_s: float
    """Until processes were gone and memory was back, or patience ended."""
    num_processes: int
    """That the probe had started, the controller's own among them."""
    num_left: int
    error: str | None = None


class Results(msgspec.Struct, kw_only=True):
    """Everything; keys are cells, or a cell and what was done to it."""

    version: int = 1
    host: dict[str, str] = {}
    commands: list[str] = []
    ceilings: dict[str, Ceiling] = {}
    peers: dict[str, dict[str, Peer]] = {}
    soaks: dict[str, Soak] = {}
    held: dict[str, Ceiling] = {}
    clean: dict[str, Clean] = {}
    failed: dict[str, str] = {}
    """Jobs that ended in an exception of ours, or were not begun for lack of time."""

    def absorb(self, earlier: "Results") -> None:
        """Take over what an earlier call found and this one has not."""
        self.commands = earlier.commands + self.commands
        self.ceilings = earlier.ceilings | self.ceilings
        self.soaks = earlier.soaks | self.soaks
        self.held = earlier.held | self.held
        self.clean = earlier.clean | self.clean
        for cell, peers in earlier.peers.items():
            self.peers[cell] = peers | self.peers.get(cell, {})


def to_json(results: Results) -> bytes:
    return msgspec.json.format(msgspec.json.encode(results), indent=1)


def from_json(data: bytes) -> Results:
    """Raises msgspec.ValidationError, with the path of what does not fit."""
    return msgspec.json.decode(data, type=Results)


def record(kind: type[Any], **figures: object) -> Any:
    """A record out of a process's plain figures."""
    return msgspec.convert(figures, kind)
