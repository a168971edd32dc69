"""What the rules' sentences are made of: figures in words, and a finding that begins with a capital letter."""

from loadtune.records import Bound, Hindrance
from loadtune.study.walls import Evidence
from loadtune.units import MISSING, counted, rate_text


def named(bound: Bound, figures: str, gain: float | None) -> Hindrance:
    """The finding. A gain below 1 is what noise makes of none."""
    return Hindrance(
        bound_by=bound,
        evidence=figures[0].upper() + figures[1:],
        gain_at_most=None if gain is None else max(1.0, gain),
    )


def count(number: float | None, name: str) -> str:
    """``1 worker``, ``8 workers``, or ``workers`` where it is not known how many."""
    return f"{name}s" if number is None else counted(number, name)


def cores_text(number: float | None) -> str:
    """Cores' worth of CPU time: ``0.12``."""
    return MISSING if number is None else f"{number:.2f}"


def device_takes(e: Evidence) -> str:
    """The end of a sentence: what the device could train."""
    return "" if e.compute_per_s is None else f", the device takes {rate_text(e.compute_per_s)}"
