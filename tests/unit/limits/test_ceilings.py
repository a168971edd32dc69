"""The memory probe over simulated memory: what it names was run, fits, and is close to the wall."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.limits.memory import MemoryProbe
from loadtune.records.config import Recipe
from loadtune.records.measurement import FailureKind, TrialFailure
from loadtune.records.memory import BatchTry, FitReport
from loadtune.testing import GIB, FakeTraining, Surface, fake_facts

RECIPE = Recipe(precision="fp32")


def line(fixed: float, per_sample: float, budget: float) -> FakeTraining:
    return FakeTraining(
        Surface(fixed_bytes=int(fixed), bytes_per_sample={"fp32": per_sample}, budget_bytes=int(budget))
    )


@pytest.mark.parametrize("cap", [2, 5])
def test_no_size_below_the_smallest_that_trains_is_tried(cap: int) -> None:
    training = line(GIB, 1e6, 139 * GIB)
    training.facts = replace(fake_facts(training.surface), min_batch_size=2)
    ceiling = MemoryProbe(training, RECIPE, {"dataset": cap}, smallest=2).verify()
    assert ceiling.batch_size == cap
    assert all(probe.fits for probe in ceiling.probes)


def test_nothing_fits_names_the_size_and_a_way_out() -> None:
    with pytest.raises(NothingFitsError, match=r"smallest batch .*--image-size"):
        MemoryProbe(line(7e9, 1e6, 6e9), RECIPE, {"dataset": 100}).verify()


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
    assert ceiling.bytes_per_sample is None


class NeedsMoreToVerify(FakeTraining):
    """An epoch's end takes a fifth more than its steps do, as an evaluation over larger inputs may."""

    def try_batch(self, asked: BatchTry) -> FitReport:
        report = FakeTraining.try_batch(self, asked)
        if asked.verify and report.peak_bytes and 1.2 * report.peak_bytes > self.surface.budget_bytes:
            failing = FakeTraining.try_batch(self, replace(asked, batch_size=10**9))
            return replace(failing, batch_size=asked.batch_size)
        return report


def test_a_size_that_fails_when_it_is_verified_is_no_ceiling() -> None:
    surface = Surface(fixed_bytes=GIB, bytes_per_sample={"fp32": GIB}, budget_bytes=180 * GIB)
    ceiling = MemoryProbe(NeedsMoreToVerify(surface), RECIPE, {"dataset": 160}).verify()  # 161 GiB, or 193
    assert [probe.fits for probe in ceiling.probes if probe.batch_size == 160] == [False, True]
    assert ceiling.limit == "memory"
    assert 120 < ceiling.safe_batch_size <= ceiling.batch_size < 150
    assert ceiling.batch_size < min(probe.batch_size for probe in ceiling.probes if not probe.fits)


class FailsFrom(FakeTraining):
    """From one size on something breaks, whatever memory there is."""

    first: int = 64
    kind: FailureKind = "unsupported"

    def try_batch(self, asked: BatchTry) -> FitReport:
        report = FakeTraining.try_batch(self, asked)
        if asked.batch_size < self.first:
            return report
        broken = TrialFailure(kind=self.kind, phase="first step", message="no such kernel", log_tail="its last words")
        return FitReport(precision=asked.recipe.precision, batch_size=asked.batch_size, failure=broken)


def fails_from(first: int, kind: FailureKind, budget: float = 139 * GIB) -> FakeTraining:
    training = FailsFrom(Surface(bytes_per_sample={"fp32": 0.1 * GIB}, budget_bytes=int(budget)))
    training.first, training.kind = first, kind
    return training


@pytest.mark.parametrize("kind", ["unsupported", "crash"])
def test_a_wall_that_is_not_of_memory_is_not_called_so(kind: FailureKind) -> None:
    ceiling = MemoryProbe(fails_from(64, kind), RECIPE, {"dataset": 10**6}).verify()
    assert 32 <= ceiling.batch_size < 64
    assert ceiling.limit == "failure"
    assert {probe.failure.kind for probe in ceiling.probes if probe.failure} == {kind}


@pytest.mark.parametrize("kind", ["unsupported", "crash"])
def test_where_no_size_trains_for_another_reason_nobody_is_told_to_free_memory(kind: FailureKind) -> None:
    with pytest.raises(WorkloadError, match="A batch of 1 cannot be trained in fp32: no such kernel") as raised:
        MemoryProbe(fails_from(1, kind), RECIPE, {"dataset": 100}).verify()
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


@pytest.mark.parametrize("cap", [1, 3, 64])
def test_a_cap_that_the_runs_of_the_line_decide_is_verified(cap: int) -> None:
    bound = MemoryProbe(line(GIB, 1e6, 139 * GIB), RECIPE, {"cap": cap}).bound()
    assert bound.verified
    assert (bound.batch_size, bound.safe_batch_size, bound.limit) == (cap, cap, "cap")
    assert len(bound.probes) <= 2
