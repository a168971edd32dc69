"""What the table of limits claims: sizes that were run, how the line fits them, who shares the budget."""

import dataclasses

import pytest
from page_rig import cut_short, golden

from loadtune.records.measurement import TrialFailure
from loadtune.records.memory import FitReport, MemoryCeiling
from loadtune.report.page.memory import limits_table
from loadtune.testing import GIB

OOM = TrialFailure(kind="oom", phase="training", message="out of memory")


def fit(batch_size: int, peak_gib: float, **more: object) -> FitReport:
    report = FitReport(
        precision="fp32",
        batch_size=batch_size,
        first_step_peak_bytes=int(peak_gib * GIB),
        steady_peak_bytes=int(peak_gib * GIB) - 1,
        reserved_peak_bytes=int((peak_gib + 1) * GIB),
        num_alloc_retries=0,
        seconds=1.0,
    )
    return dataclasses.replace(report, **more)  # type: ignore[arg-type]


CEILING = MemoryCeiling(
    precision="fp32",
    batch_size=95,
    safe_batch_size=88,
    limit="memory",
    probes=(fit(32, 33.0), fit(95, 96.0), FitReport(precision="fp32", batch_size=98, failure=OOM), fit(88, 90.0)),
    bytes_per_sample=float(GIB),
    fixed_bytes=float(GIB),
    line_error_fraction=0.0112,
    capacity_bytes=int(139.8 * GIB),
    budget_bytes=100 * GIB,
)


def row_of(**changes: object) -> dict[str, str]:
    ceiling = dataclasses.replace(CEILING, **changes)  # type: ignore[arg-type]
    table = limits_table(dataclasses.replace(golden(), ceilings=(ceiling,)))
    assert table is not None
    return dict(zip(table.columns, table.rows[0], strict=True))


def test_the_line_tells_how_far_it_is_off_where_that_is_known() -> None:
    assert row_of()["peak over batch size"] == "1.00 GiB + 1.00 GiB a sample\noff by at most 1.1%"
    assert "through two sizes only" in row_of(probes=CEILING.probes[:2])["peak over batch size"]
    assert row_of(bytes_per_sample=None)["peak over batch size"] == "–"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "100.0 GiB of 139.8 GiB"),
        ({"capacity_bytes": None}, "100.0 GiB"),
        ({"others_bytes": 2**20}, "100.0 GiB of 139.8 GiB"),
        (
            {"others_bytes": 12 * GIB, "others": ("python (pid 812), 12.0 GiB",)},
            "100.0 GiB of 139.8 GiB\nheld by python (pid 812), 12.0 GiB",
        ),
        (
            {"others_bytes": 12 * GIB},
            "100.0 GiB of 139.8 GiB\n12.0 GiB held by processes that the driver does not name",
        ),
        (
            {"alloc_conf": "expandable_segments:True"},
            "100.0 GiB of 139.8 GiB\nPYTORCH_CUDA_ALLOC_CONF: expandable_segments:True",
        ),
    ],
)
def test_the_budget_says_who_has_the_rest(changes: dict[str, object], words: str) -> None:
    assert row_of(**changes)["budget"] == words


def test_the_table_holds_both_ceilings_and_what_they_took() -> None:
    sizes = {
        "safe batch": "88",
        "largest (hard)": "95",
        "peak at largest": "96.0 GiB",
        "sizes tried": "4, 1 OOM\n3.0 s",
    }
    assert row_of().items() >= (sizes | {"limited by": "GPU memory\n(98 failed)"}).items()
    assert row_of(limit="cap", probes=CEILING.probes[:2])["limited by"] == "--max-batch-size"
    assert row_of(probes=CEILING.probes[:2])["sizes tried"].startswith("2, no OOM")
    assert limits_table(cut_short()) is None


def test_the_rate_without_a_loader_stands_beside_the_limits_of_its_precision() -> None:
    table = limits_table(golden())
    assert table is not None
    assert [row[-1] for row in table.rows] == ["6,121 samples/s\nat batch 256", "–"]


def test_a_predicted_ceiling_is_called_so() -> None:
    predicted = row_of(verified=False, probes=CEILING.probes[:1])
    assert (predicted["safe batch"], predicted["largest (hard)"]) == ("88\npredicted", "95\npredicted")
    assert not any("predicted" in cell for cell in row_of().values())
    said = str(dataclasses.replace(CEILING, verified=False, probes=CEILING.probes[:1]))
    assert said.startswith("Predicted largest batch size in fp32: 95; safe batch size: 88\n")
