"""What the comparison with other tools found, as records that go to JSON and back. Needs neither torch nor loadtune.

`None` is not measured, or not decided by a tool: PyTorch's default then holds.
"""

import statistics
from typing import Any, Literal

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How a tool says to train. Its defaults are PyTorch's: what a tool does not decide stays there."""

    batch_size: int
    num_workers: int = 0
    pin_memory: bool = False
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    in_order: bool = True
    non_blocking: bool = False
    """Of the copies to the device."""
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    channels_last: bool = False
    fused: bool = False
    compile: bool = False
    num_threads: int | None = None
    uint8: bool = False
    """Workers send bytes, floats are made on the device."""

    @property
    def key(self) -> str:
        """The same for the same configuration: those are timed once."""
        return msgspec.json.encode(self).decode()

    @property
    def num_prefetched(self) -> int:
        """Batches asked for ahead."""
        return max(1, self.num_workers * (self.prefetch_factor or 2))

    def loader_kwargs(self) -> dict[str, Any]:
        """What ``DataLoader(dataset, **kwargs)`` takes."""
        kwargs: dict[str, Any] = {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "pin_memory": self.pin_memory,
        }
        if self.num_workers > 0:
            kwargs["persistent_workers"] = self.persistent_workers
            kwargs |= {} if self.prefetch_factor is None else {"prefetch_factor": self.prefetch_factor}
            kwargs |= {} if self.in_order else {"in_order": False}
        return kwargs


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """What became of asking one tool."""

    answer: Answer | None = None
    wall_s: float = 0.0
    """From the start of its process to its end, imports and all."""
    search_s: float | None = None
    """Of that its search, where the tool's own share could be told apart."""
    claimed_per_s: float | None = None
    """Samples/s that the tool itself gives for its answer."""
    remark: str = ""
    error: str | None = None
    changed: "Tuned | None" = None
    """The same asking's second answer: with changes of the training code."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """One fresh process that trained by one answer."""

    samples_per_s: float | None = None
    num_batches: int = 0
    """Timed."""
    num_queues: float | None = None
    """The same in lengths of the prefetch queue."""
    seconds: float = 0.0
    drift: float | None = None
    """Rate of the first half over that of the second. Above 1: a queue that still ran down."""
    peak_reserved_bytes: int | None = None
    error: str | None = None


class Results(msgspec.Struct, kw_only=True):
    """Everything. Tools by name; timings by the answer's key, one a round."""

    version: int = 1
    host: dict[str, str] = {}
    boot: str | None = None
    """Which start of which machine. None: it does not say."""
    commands: list[str] = []
    tuned: dict[str, Tuned] = {}
    timings: dict[str, list[Timing]] = {}
    failed: dict[str, str] = {}
    """Jobs that were not begun, or ended in an exception of ours."""

    def absorb(self, earlier: "Results") -> None:
        """Go on from another call. Raises ValueError where that ran on another machine: nothing compares then."""
        if None not in (earlier.boot, self.boot) and earlier.boot != self.boot:
            raise ValueError("it was kept on another machine, or before this one was started anew")
        self.commands = earlier.commands + self.commands
        self.tuned = earlier.tuned | self.tuned
        self.timings = earlier.timings | self.timings

    def rates(self, tool: str) -> list[float]:
        """Samples/s of a tool's answer in each round that worked."""
        answer = self.tuned[tool].answer
        timings = [] if answer is None else self.timings.get(answer.key, [])
        return [timing.samples_per_s for timing in timings if timing.samples_per_s is not None]

    def rate(self, tool: str) -> float | None:
        rates = self.rates(tool)
        return statistics.fmean(rates) if rates else None


def to_json(results: Results) -> bytes:
    return msgspec.json.format(msgspec.json.encode(results), indent=1)


def from_json(data: bytes) -> Results:
    """Raises msgspec.ValidationError, with the path of what does not fit."""
    return msgspec.json.decode(data, type=Results)
