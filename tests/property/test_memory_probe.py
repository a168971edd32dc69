"""The memory probe over simulated memory of every shape: its answers were run, fit, and lie close to the wall."""

import math
from dataclasses import dataclass

from fakes import GIB, FakeTraining, Surface
from hypothesis import example, given
from hypothesis import strategies as st

from loadtune.decide.ceiling import MemoryProbe
from loadtune.records.config import Precision, Recipe
from loadtune.records.memory import MemoryCeiling
from loadtune.seams import drive

CLOSE = 0.97
MOST_PROBES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RoughSurface(Surface):
    """What grows with the batch jumps once, by up to 5%, and ripples: neither straight nor monotonic."""

    jump_at: int = 0
    jump: float = 0.0
    ripple: float = 0.0
    period: int = 7

    def peak_bytes(self, precision: Precision, batch_size: int) -> int:
        jump = self.jump if self.jump_at and batch_size >= self.jump_at else 0.0
        wave = self.ripple * math.sin(2 * math.pi * batch_size / self.period)
        return int(self.fixed_bytes + self.bytes_per_sample[precision] * batch_size * (1 + jump + wave))

    def first_wall(self) -> int:
        """Smallest size that does not fit."""
        size = int(Surface.largest_batch(self, "fp32") / (1 + self.jump + self.ripple))
        while self.peak_bytes("fp32", size) <= self.budget_bytes:
            size += 1
        return size


@st.composite
def surfaces(draw: st.DrawFn, *, jumps: bool = False, ripples: bool = False, retries: bool = False) -> RoughSurface:
    wall = draw(st.integers(200, 20_000))
    budget = draw(st.integers(4, 180)) * GIB
    fixed = int(budget * draw(st.floats(0.001, 0.4)))
    return RoughSurface(
        fixed_bytes=fixed,
        bytes_per_sample={"fp32": (budget - fixed) / wall},
        budget_bytes=budget,
        jump_at=int(wall * draw(st.floats(0.01, 1.0))) if jumps else 0,
        jump=draw(st.floats(0.0, 0.05)) if jumps else 0.0,
        ripple=draw(st.floats(0.0, 0.005)) if ripples else 0.0,
        period=draw(st.integers(3, 200)),
        quiet_share=draw(st.floats(0.85, 1.0)) if retries else 1.0,
    )


def check(surface: RoughSurface) -> MemoryCeiling:
    """It is within 3% of the largest size below the first that does not fit, or above it, since it was run."""
    ceiling = drive(MemoryProbe(Recipe(precision="fp32"), {"dataset": 10**7}).verify(), FakeTraining(surface).try_batch)
    fitting = {report.batch_size: report for report in ceiling.probes if report.fits}
    assert ceiling.batch_size in fitting
    assert ceiling.batch_size >= CLOSE * (surface.first_wall() - 1)
    assert len(ceiling.probes) <= MOST_PROBES
    safe = fitting[ceiling.safe_batch_size]
    assert not safe.num_steady_retries
    assert safe.batch_size <= 0.96 * ceiling.batch_size
    assert safe.num_steady_retries is not None, "it was verified"
    return ceiling


@given(surface=surfaces())
def test_straight_memory_needs_no_out_of_memory(surface: RoughSurface) -> None:
    assert not any(probe.failure for probe in check(surface).probes)


AGAIN = {"fixed_bytes": 20 * GIB, "bytes_per_sample": {"fp32": 30 * GIB / 385}, "budget_bytes": 50 * GIB}


@given(surface=surfaces(retries=True))
@example(RoughSurface(**AGAIN, quiet_share=0.892))  # 345 fits unverified, and retries when it is run again
def test_an_allocator_that_has_to_try_again(surface: RoughSurface) -> None:
    ceiling = check(surface)
    quiet = surface.quiet_share * surface.budget_bytes
    assert surface.peak_bytes("fp32", ceiling.safe_batch_size) <= quiet


ROUGH = [surfaces(**{how: True, "retries": retries}) for how in ("jumps", "ripples") for retries in (False, True)]


@given(surface=st.one_of(ROUGH))
def test_memory_that_jumps_by_up_to_five_per_cent_ripples_or_tries_again(surface: RoughSurface) -> None:
    assert check(surface).verified


@given(wall=st.integers(2, 64))
def test_small_ceilings_are_exact_to_one_sample(wall: int) -> None:
    surface = Surface(fixed_bytes=GIB, bytes_per_sample={"fp32": GIB}, budget_bytes=(wall + 1) * GIB)
    ceiling = drive(MemoryProbe(Recipe(precision="fp32"), {"dataset": 10**6}).verify(), FakeTraining(surface).try_batch)
    assert wall - 1 <= ceiling.batch_size <= wall
