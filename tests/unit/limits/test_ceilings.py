"""The memory probe over simulated memory: what it names was run and fits, and what RAM has to hold."""

from dataclasses import replace

import pytest
from fakes import GIB, FakeTraining, Surface, fake_host
from hypothesis import given
from hypothesis import strategies as st

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.limits.memory import MemoryProbe, fits_host, prefetch_bytes
from loadtune.records.config import LoaderConfig, Recipe
from loadtune.records.measurement import FailureKind, TrialFailure
from loadtune.records.memory import BatchTry, FitReport

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
    ceiling = MemoryProbe(Untold(surface), RECIPE, {"dataset": 10**6}).verify()
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


@pytest.mark.parametrize(
    ("first", "kind", "limit", "sizes"),
    [
        (64, "unsupported", "failure", range(32, 64)),
        (64, "crash", "failure", range(32, 64)),
        (2, "oom", "memory", range(1, 2)),
    ],
)
def test_a_wall_is_called_what_it_is(first: int, kind: FailureKind, limit: str, sizes: range) -> None:
    ceiling = MemoryProbe(fails_from(first, kind), RECIPE, {"dataset": 10**6}).verify()
    assert ceiling.batch_size in sizes
    assert 1 <= ceiling.safe_batch_size <= ceiling.batch_size
    assert ceiling.limit == limit
    assert {probe.failure.kind for probe in ceiling.probes if probe.failure} == {kind}


def test_where_no_size_trains_a_way_out_is_named_that_fits_the_reason() -> None:
    with pytest.raises(NothingFitsError, match=r"smallest batch .*--image-size"):
        MemoryProbe(line(7e9, 1e6, 6e9), RECIPE, {"dataset": 100}).verify()
    with pytest.raises(WorkloadError, match="A batch of 1 cannot be trained in fp32: no such kernel") as raised:
        MemoryProbe(fails_from(1, "crash"), RECIPE, {"dataset": 100}).verify()
    assert not isinstance(raised.value, NothingFitsError)
    assert raised.value.user_traceback == "its last words"


def test_a_bound_runs_two_sizes_and_predicts_what_a_run_then_verifies() -> None:
    training = line(GIB, 87e6, 139 * GIB)
    probe = MemoryProbe(training, RECIPE, {"dataset": 10**6})
    bound = probe.bound()
    assert not bound.verified
    assert [report.batch_size for report in bound.probes] == [size for _, size in training.requests]
    assert len(bound.probes) == 2
    verified = probe.verify()
    assert verified.verified
    assert verified.probes[:2] == bound.probes  # not run again
    assert verified == MemoryProbe(line(GIB, 87e6, 139 * GIB), RECIPE, {"dataset": 10**6}).verify()
    assert (verified.batch_size, verified.safe_batch_size) == (bound.batch_size, bound.safe_batch_size)


@given(fixed=st.floats(1e6, 5e9), per_sample=st.floats(1e4, 5e8), budget=st.floats(6e9, 150e9))
def test_a_bound_keeps_the_margins_of_a_ceiling_that_is_run(fixed: float, per_sample: float, budget: float) -> None:
    training = line(fixed, per_sample, budget)
    bound, largest = MemoryProbe(training, RECIPE, {"dataset": 10**8}).bound(), training.surface.largest_batch("fp32")
    if bound.verified:
        return
    assert all(report.batch_size < bound.batch_size for report in bound.probes if report.fits)
    assert 0.95 * largest - 1 <= bound.batch_size <= largest
    room = 0.96 * (training.surface.budget_bytes - int(fixed))
    assert int(0.8 * bound.batch_size) <= bound.safe_batch_size  # a size is a whole number of samples
    assert per_sample * (bound.safe_batch_size - 1) <= room


@pytest.mark.parametrize("cap", [1, 64])
def test_a_cap_that_the_runs_of_the_line_decide_is_verified(cap: int) -> None:
    bound = MemoryProbe(line(GIB, 1e6, 139 * GIB), RECIPE, {"cap": cap}).bound()
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
