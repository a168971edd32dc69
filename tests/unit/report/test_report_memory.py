"""What the memory section claims, as data: sizes that were run, how the line fits them, who shares the budget."""

import dataclasses

import pytest

from loadtune.records import FitReport, MemoryCeiling, TrialFailure
from loadtune.report.memory import ceilings_table, memory_words
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
    small_sizes=(fit(3, 5.0), fit(1, 3.0)),
    capacity_bytes=int(139.8 * GIB),
    budget_bytes=100 * GIB,
)


def but(**changes: object) -> MemoryCeiling:
    return dataclasses.replace(CEILING, **changes)  # type: ignore[arg-type]


def row_of(ceiling: MemoryCeiling) -> tuple[str, ...]:
    table = ceilings_table([ceiling], "cuda")
    assert table is not None
    return table.rows[0]


def test_the_line_in_words_ends_in_the_interval_it_gives() -> None:
    lines = memory_words(CEILING)
    assert "Line: 1.00 GiB + 1.00 GiB a sample, off by at most 1.1% at the sizes it is meant for" in lines
    assert "Solved for the budget with that error: a batch of 97 to 100" in lines


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "Budget: 100.0 GiB of 139.8 GiB"),
        ({"capacity_bytes": None}, "Budget: 100.0 GiB"),
        ({"others_bytes": 2**20}, "Budget: 100.0 GiB of 139.8 GiB"),
        (
            {"others_bytes": 12 * GIB, "others": ("python (pid 812), 12.0 GiB",)},
            "Budget: 100.0 GiB of 139.8 GiB; of the rest, held by python (pid 812), 12.0 GiB",
        ),
        (
            {"others_bytes": 12 * GIB},
            "Budget: 100.0 GiB of 139.8 GiB; of the rest, 12.0 GiB held by processes that the driver does not name",
        ),
    ],
)
def test_the_budget_says_who_has_the_rest(changes: dict[str, object], words: str) -> None:
    assert words in memory_words(but(**changes))


def test_the_allocators_settings_are_told_where_there_are_some() -> None:
    assert "PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True" in memory_words(
        but(alloc_conf="expandable_segments:True")
    )
    assert not any("ALLOC_CONF" in line for line in memory_words(CEILING))


def test_the_table_holds_both_ceilings_and_what_they_took() -> None:
    assert row_of(CEILING) == ("fp32", "88", "95", "96.0 GiB", "GPU memory\n(98 failed)", "4, 1 OOM", "5.0 s")
    assert row_of(but(limit="cap", probes=CEILING.probes[:2]))[4:6] == ("--max-batch-size", "2, no OOM")
    assert ceilings_table([], "cuda") is None


def test_a_predicted_ceiling_is_called_so() -> None:
    predicted = but(verified=False, probes=CEILING.probes[:1])
    assert row_of(predicted)[1:4] == ("88\npredicted", "95\npredicted", "–")
    assert "Predicted, not run: safe batch 88, largest batch 95" in memory_words(predicted)
    assert not any("redicted" in line for line in memory_words(CEILING))
    assert str(predicted).startswith("Predicted largest batch size in fp32: 95; safe batch size: 88\n")
