"""What a probe is: something the sampler looks at again and again.

In: the moment of the look. Out: a `Look`, figure by figure. A figure is named as the field of `Telemetry` it ends up
in, or as what that is made of. Most speak for the time since the last look; some bring stretches of their own.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Stretch(NamedTuple):
    """A figure's value over a piece of the monotonic clock's time."""

    start_s: float
    end_s: float
    value: Any


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a figure cannot be had."""

    reason: str


Look = Mapping[str, Any]
"""Figure → `Missing`; or None, nothing to say yet; or a list of `Stretch`; or its value since the last look."""


class Probe(ABC):
    """Looks at one part of the machine. May raise: then its figures are missing, with the error as the reason."""

    figures: Sequence[str]

    @abstractmethod
    def look(self, now_s: float) -> Look:
        """What is to be seen at ``now_s`` on the monotonic clock. Differences are to the last look."""

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Give back what the looks took. A look after that begins anew."""

    def all_missing(self, reason: str) -> Look:
        return dict.fromkeys(self.figures, Missing(reason))


class Growth(Generic[Key]):
    """How much counters grew since the last look. Both looks have to see a counter."""

    def __init__(self) -> None:
        self._last: tuple[float, Mapping[Key, float]] | None = None

    def since(self, now_s: float, counts: Mapping[Key, float]) -> tuple[float, dict[Key, float]] | None:
        """Seconds since the last look, and each counter's growth. None: the first look."""
        last, self._last = self._last, (now_s, counts)
        if last is None or now_s <= last[0]:
            return None
        return now_s - last[0], {key: count - last[1][key] for key, count in counts.items() if key in last[1]}
