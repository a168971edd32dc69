"""What is measured, what is estimated and what is said of each, over a meter with known answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from loadtune.errors import NothingFitsError
from loadtune.footprint.estimate import estimate_step
from loadtune.footprint.plan import plan_of_spec, varied
from loadtune.records import (
    FootprintReport,
    Recipe,
    StepAccount,
    StepVariant,
    TrialFailure,
    WorkloadFacts,
    WorkloadSpec,
)
from loadtune.report.footprint import footprint_view
from loadtune.step_memory import Wanted, step_report, variants
from loadtune.testing import GIB, Surface, fake_facts

SPEC = WorkloadSpec(dataset="bench_workloads:Images", model="account_rig:Blocks")
GIVEN = StepVariant(recipe=Recipe(), batch_size=4)


class FakeMeter:
    """Finds what shapes say, a tenth more, and has no room for large images."""

    def __init__(self) -> None:
        self._plan = plan_of_spec(SPEC)

    def describe(self) -> WorkloadFacts:
        return replace(fake_facts(Surface()), precisions=("fp32", "bf16"), memory_budget_bytes=8 * GIB)

    def account(self, asked: StepVariant) -> StepAccount | TrialFailure:
        if asked.image_size is not None and asked.image_size > 8:
            return TrialFailure(kind="oom", phase="warm-up", message="no room.")
        found = estimate_step(varied(self._plan, asked), asked.batch_size)
        lines = replace(found.at_peak, workspace_bytes=found.peak_bytes // 10, rounding_bytes=0)
        figures: dict[str, Any] = {"fragmentation_bytes": 1 << 20, "outside_bytes": 1 << 29, "step_s": 0.02}
        return replace(found, estimated=False, at_peak=lines, peak_bytes=lines.total_bytes + 7, **figures)


@contextmanager
def metered() -> Iterator[FakeMeter]:
    yield FakeMeter()


@pytest.fixture(scope="module")
def report() -> FootprintReport:
    return step_report(SPEC, Wanted(precision="fp32", batch_size=4, what_if=True), metered)


def test_measured_and_estimated_stand_side_by_side_with_the_error(report: FootprintReport) -> None:
    assert report.estimate is not None
    assert (report.account.estimated, report.estimate.estimated) == (False, True)
    assert report.account.unexplained_bytes == 7
    assert report.error_fraction == pytest.approx(-0.1 / 1.1, abs=1e-3)
    view = footprint_view(report)
    assert view.tables[0].columns == ("", "largest", "at the peak", "estimated", "forward only")
    assert "0.0% is unexplained" in view.lines[0]
    assert "-9.1% of the peak" in view.lines[1]


def test_each_row_changes_one_thing_and_says_what_it_rests_on(report: FootprintReport) -> None:
    rows = {row.name: row for row in report.what_if}
    assert list(rows) == [
        "as given",
        "bf16 (AMP)",
        "SGD",
        "AdamW",
        "checkpointed blocks",
        "4×4 images",
        "16×16 images",
    ]
    given = rows["as given"]
    assert (given.peak_bytes, given.step_s, given.estimated) == (report.account.peak_bytes, 0.02, False)
    assert given.peak_bytes is not None
    assert rows["SGD"].peak_bytes is not None
    assert rows["SGD"].peak_bytes < given.peak_bytes
    assert rows["16×16 images"].peak_bytes is None
    assert "no room" in str(rows["16×16 images"].remark)
    smaller, larger = rows["4×4 images"].largest_batch, rows["16×16 images"].largest_batch
    assert smaller is not None
    assert larger is not None
    assert given.largest_batch is not None
    assert smaller > 2 * given.largest_batch > 4 * larger  # of the GPU's 8 GiB, by shapes alone


def test_a_size_of_images_is_changed_where_there_are_images() -> None:
    names = [name for name, _ in variants(GIVEN, "adamw", (256,), ("fp32",))]
    assert names == ["as given", "SGD", "SGD with momentum", "checkpointed blocks"]


def test_a_step_that_does_not_fit_is_no_estimate_in_disguise() -> None:
    class Full(FakeMeter):
        def account(self, asked: StepVariant) -> TrialFailure:
            return TrialFailure(kind="oom", phase="warm-up", message="out of memory.")

    @contextmanager
    def full() -> Iterator[FakeMeter]:
        yield Full()

    with pytest.raises(NothingFitsError, match=r"A batch of 4 does not fit: out of memory\. Lower --batch-size"):
        step_report(SPEC, Wanted(precision="fp32", batch_size=4), full)
