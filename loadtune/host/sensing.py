"""What a probe is: something the sampler looks at again and again.

In: the moment of the look. Out: a `Look`, figure by figure. A figure is named as the field of `Telemetry` it ends up
in, or as what that is made of. Most speak for the time since the last look; some bring stretches of their own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple


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

    figures: ClassVar[Sequence[str]]

    @abstractmethod
    def look(self, now_s: float) -> Look:
        """What is to be seen at ``now_s`` on the monotonic clock. Differences are to the last look."""

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Give back what the looks took. A look after that begins anew."""

    def all_missing(self, reason: str) -> Look:
        return dict.fromkeys(self.figures, Missing(reason))
