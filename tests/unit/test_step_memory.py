"""What is measured, what is estimated and what is said of each, over a meter with known answers."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from account_rig import FakeMeter

from loadtune.errors import NothingFitsError
from loadtune.footprint.estimate import CUDA_CONTEXT_BYTES, largest_batch
from loadtune.footprint.plan import plan_of_spec
from loadtune.records.config import WorkloadSpec
from loadtune.records.footprint import FootprintReport, StepVariant
from loadtune.records.measurement import TrialFailure
from loadtune.report.footprint import footprint_view
from loadtune.step_memory import Wanted, step_report
from loadtune.testing import GIB

SPEC = WorkloadSpec(dataset="training_workloads:Images", model="account_rig:Blocks")


@contextmanager
def metered() -> Iterator[FakeMeter]:
    yield FakeMeter(SPEC)


@pytest.fixture(scope="module")
def report() -> FootprintReport:
    return step_report(SPEC, Wanted(precision="fp32", batch_size=4, what_if=True), metered)


def test_measured_and_estimated_stand_side_by_side_with_the_error(report: FootprintReport) -> None:
    assert report.estimate is not None
    assert (report.account.estimated, report.estimate.estimated) == (False, True)
    assert report.account.unexplained_bytes == 7
    assert report.error_fraction == pytest.approx(-0.1 / 1.1, abs=1e-3)
    view = footprint_view(report)
    assert view.tables[0].columns == ("", "row's own\nmaximum", "at the\npeak", "at the peak,\nestimated")
    assert "0.0% of the peak is not attributed" in view.sections[0].lines[0]
    assert "by -9.1%" in view.sections[0].lines[1]


def test_each_row_changes_one_thing_and_says_what_it_rests_on(report: FootprintReport) -> None:
    rows = {row.name: row for row in report.what_if}
    assert list(rows) == [
        "as given: fp32, SGD with momentum 0.9",
        "bf16 (AMP)",
        "AdamW",
        "activation checkpointing",
    ]
    given = report.what_if[0]
    assert (given.peak_bytes, given.step_s, given.estimated) == (report.account.peak_bytes, 0.02, False)
    assert given.peak_bytes is not None
    assert rows["bf16 (AMP)"].step_s == 0.02
    assert rows["AdamW"].peak_bytes is None
    assert "no room" in str(rows["AdamW"].remark)
    assert rows["activation checkpointing"].remark == "3 blocks checkpointed."
    checkpointed, plain = rows["activation checkpointing"].largest_batch, given.largest_batch
    assert checkpointed is not None
    assert plain is not None
    assert checkpointed > plain > 0  # of the GPU's 8 GiB, by shapes alone


def test_what_a_gpu_has_free_is_without_its_context_and_a_memory_that_is_named_is_not(
    report: FootprintReport,
) -> None:
    plan = plan_of_spec(SPEC)
    named = step_report(SPEC, Wanted(precision="fp32", batch_size=4, what_if=True, memory_bytes=8 * GIB), metered)
    assert (named.memory_bytes, report.memory_bytes) == (8 * GIB, 8 * GIB)
    found = largest_batch(plan, 8 * GIB)
    assert named.what_if[0].largest_batch == found.batch_size
    more = CUDA_CONTEXT_BYTES / found.bytes_per_sample
    assert report.what_if[0].largest_batch == pytest.approx(found.batch_size + more, abs=1)


def test_a_step_that_does_not_fit_is_no_estimate_in_disguise() -> None:
    class Full(FakeMeter):
        def account(self, asked: StepVariant) -> TrialFailure:
            return TrialFailure(kind="oom", phase="warm-up", message="out of memory.")

    @contextmanager
    def full() -> Iterator[FakeMeter]:
        yield Full(SPEC)

    with pytest.raises(NothingFitsError, match=r"does not fit into GPU memory: out of memory\. Lower --batch-size"):
        step_report(SPEC, Wanted(precision="fp32", batch_size=4), full)
