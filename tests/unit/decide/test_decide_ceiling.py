"""The memory probe over simulated memory: what it names was run and fits, and what RAM has to hold."""

from dataclasses import replace

import pytest
from fakes import GIB, FakeTraining, Surface, fake_host
from hypothesis import given
from hypothesis import strategies as st

from loadtune.decide.ceiling import MemoryProbe
from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.model.workers import fits_host, prefetch_bytes
from loadtune.records.config import LoaderConfig, Recipe
from loadtune.records.measurement import FailureKind, TrialFailure
from loadtune.records.memory import BatchTry, FitReport
from loadtune.seams import drive

RECIPE = Recipe(precision="fp32")


def line(fixed: float, per_sample: float, budget: float) -> FakeTraining:
    return FakeTraining(
        Surface(fixed_bytes=int(fixed), bytes_per_sample={"fp32": per_sample}, budget_bytes=int(budget))
    )


@pytest.mark.parametrize("peak", [0, None])
def test_without_peaks_a_ceiling_is_found_by_running_alone(peak: int | None) -> None:
    """As on a CPU whose platform does not say what is resident."""

    class Untold(FakeTraining):
        def try_batch(self, asked: BatchTry) -> FitReport:
            report = FakeTraining.try_batch(self, asked)
            return replace(report, first_step_peak_bytes=peak, steady_peak_bytes=peak) if report.fits else report

    surface = Surface(fixed_bytes=GIB, bytes_per_sample={"fp32": GIB}, budget_bytes=101 * GIB)
    ceiling = drive(MemoryProbe(RECIPE, {"dataset": 10**6}).verify(), Untold(surface).try_batch)
    assert 90 <= ceiling.batch_size <= 100
    assert ceiling.safe_batch_size < ceiling.batch_size


class FailsFrom(FakeTraining):
    """From one size on something breaks, whatever memory there is."""

    first = 64
    kind: FailureKind = "unsupported"

    def try_batch(self, asked: BatchTry) -> FitReport:
        report = FakeTraining.try_batch(self, asked)
        if asked.batch_size < self.first:
            return report
        broken = TrialFailure(kind=self.kind, phase="first step", message="no such kernel", log_tail="its last words")
        return FitReport(precision=asked.recipe.precision, batch_size=asked.batch_size, failure=broken)


def fails_from(first: int, kind: FailureKind) -> FakeTraining:
    training = FailsFrom(Surface(bytes_per_sample={"fp32": 0.1 * GIB}, budget_bytes=139 * GIB))
    training.first, training.kind = first, kind
    return training


BIG = (GIB, 0.1 * GIB, 101 * GIB)
LINE = [32, 262]
TABLE = {
    "two sizes predict": (line(*BIG), {}, LINE, [], (980, 930, "memory")),
    "what they predict is run": (line(*BIG), {}, LINE, [980, 930], (980, 930, "memory")),
    "a cap below is run at once": (line(*BIG), {"cap": 64}, [16], [64], (64, 64, "cap")),
    "a cap above them": (line(*BIG), {"cap": 640}, LINE, [640], (640, 640, "cap")),
    "small ones are found by halving": (line(GIB, GIB, 10 * GIB), {}, [32, 16, 8, 4], [9, 8], (9, 8, "memory")),
    "something else fails": (fails_from(64, "unsupported"), {}, [32, 349], [190, 111, 71, 25], (32, 25, "failure")),
}


@pytest.mark.parametrize("name", TABLE)
def test_which_sizes_are_asked_for(name: str) -> None:
    """Those of the line, then those that are verified; and both ceilings with what limits them."""
    training, caps, of_line, verified, answer = TABLE[name]
    asked: list[BatchTry] = []

    def do(each: BatchTry) -> FitReport:
        asked.append(each)
        return training.try_batch(each)

    probe = MemoryProbe(RECIPE, {"dataset": 10**6, **caps})
    found = drive(probe.verify() if verified else probe.bound(), do)
    assert (found.batch_size, found.safe_batch_size, found.limit, found.verified) == (*answer, bool(verified))
    assert [(each.batch_size, each.verify) for each in asked] == [
        *((size, False) for size in of_line),
        *((size, True) for size in verified),
    ]


@pytest.mark.parametrize(
    ("first", "kind", "limit", "sizes"),
    [
        (64, "crash", "failure", range(32, 64)),
        (2, "oom", "memory", range(1, 2)),
    ],
)
def test_a_wall_is_called_what_it_is(first: int, kind: FailureKind, limit: str, sizes: range) -> None:
    ceiling = drive(MemoryProbe(RECIPE, {"dataset": 10**6}).verify(), fails_from(first, kind).try_batch)
    assert ceiling.batch_size in sizes
    assert 1 <= ceiling.safe_batch_size <= ceiling.batch_size
    assert ceiling.limit == limit
    assert {probe.failure.kind for probe in ceiling.probes if probe.failure} == {kind}


def test_where_no_size_trains_a_way_out_is_named_that_fits_the_reason() -> None:
    with pytest.raises(NothingFitsError, match=r"smallest batch .*--image-size"):
        drive(MemoryProbe(RECIPE, {"dataset": 100}).verify(), line(7e9, 1e6, 6e9).try_batch)
    with pytest.raises(WorkloadError, match="A batch of 1 cannot be trained in fp32: no such kernel") as raised:
        drive(MemoryProbe(RECIPE, {"dataset": 100}).verify(), fails_from(1, "crash").try_batch)
    assert not isinstance(raised.value, NothingFitsError)
    assert raised.value.user_traceback == "its last words"


def test_a_bound_runs_two_sizes_and_predicts_what_a_run_then_verifies() -> None:
    training = line(GIB, 87e6, 139 * GIB)
    probe = MemoryProbe(RECIPE, {"dataset": 10**6})
    bound = drive(probe.bound(), training.try_batch)
    assert not bound.verified
    assert [report.batch_size for report in bound.probes] == [size for _, size in training.requests]
    assert len(bound.probes) == 2
    verified = drive(probe.verify(), training.try_batch)
    assert verified.verified
    assert verified.probes[:2] == bound.probes  # not run again
    assert verified == drive(MemoryProbe(RECIPE, {"dataset": 10**6}).verify(), line(GIB, 87e6, 139 * GIB).try_batch)
    assert (verified.batch_size, verified.safe_batch_size) == (bound.batch_size, bound.safe_batch_size)


@given(fixed=st.floats(1e6, 5e9), per_sample=st.floats(1e4, 5e8), budget=st.floats(6e9, 150e9))
def test_a_bound_keeps_the_margins_of_a_ceiling_that_is_run(fixed: float, per_sample: float, budget: float) -> None:
    training = line(fixed, per_sample, budget)
    bound = drive(MemoryProbe(RECIPE, {"dataset": 10**8}).bound(), training.try_batch)
    largest = training.surface.largest_batch("fp32")
    if bound.verified:
        return
    assert all(report.batch_size < bound.batch_size for report in bound.probes if report.fits)
    assert 0.95 * largest - 1 <= bound.batch_size <= largest
    room = 0.96 * (training.surface.budget_bytes - int(fixed))
    assert int(0.8 * bound.batch_size) <= bound.safe_batch_size  # a size is a whole number of samples
    assert per_sample * (bound.safe_batch_size - 1) <= room


@pytest.mark.parametrize("cap", [1, 64])
def test_a_cap_that_the_runs_of_the_line_decide_is_verified(cap: int) -> None:
    bound = drive(MemoryProbe(RECIPE, {"cap": cap}).bound(), line(GIB, 1e6, 139 * GIB).try_batch)
    assert bound.verified
    assert (bound.batch_size, bound.safe_batch_size, bound.limit) == (cap, cap, "cap")
    assert len(bound.probes) <= 2


def test_what_is_in_flight() -> None:
    loader = LoaderConfig(batch_size=10, num_workers=4, prefetch_factor=2)
    host = replace(fake_host(), shm_free_bytes=None)
    in_flight = (4 * 2 + 4) * 10 * 100
    assert prefetch_bytes(loader, 100) == in_flight
    # Blocks of 1,024 bytes for batches of 1,000; what the workers are making is not pinned.
    pinned = (4 * 2 + 2) * 1024 + 4 * 1000
    for pin_memory, needed in ((False, in_flight), (True, pinned)):
        for spare, fits in ((0, True), (-1, False)):
            there = replace(host, ram_available_bytes=2 * (needed + spare))
            assert fits_host(replace(loader, pin_memory=pin_memory), 100, there) == fits
    assert not fits_host(loader, 100, replace(host, shm_free_bytes=in_flight))
    assert prefetch_bytes(LoaderConfig(batch_size=10), 100) == 10 * 100
