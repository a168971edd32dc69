"""What ``print`` shows of a ceiling, for a user who only imported loadtune."""

from loadtune.records.measurement import TrialFailure
from loadtune.records.memory import FitReport, MemoryCeiling

GIB = 2**30


def fit(batch_size: int, peak_gib: float) -> FitReport:
    return FitReport(
        precision="bf16",
        batch_size=batch_size,
        first_step_peak_bytes=int(peak_gib * GIB),
        reserved_peak_bytes=int((peak_gib + 1) * GIB),
        num_alloc_retries=0,
    )


def test_a_printed_ceiling_is_a_table_of_every_size_tried() -> None:
    out_of_memory = TrialFailure(kind="oom", phase="training", message="out of memory")
    hung = TrialFailure(kind="hang", phase="training", message="no sign of life")
    ceiling = MemoryCeiling(
        precision="bf16",
        batch_size=1200,
        safe_batch_size=1100,
        limit="memory",
        probes=(
            fit(32, 3.0),
            fit(1200, 60.0),
            FitReport(precision="bf16", batch_size=1300, failure=out_of_memory),
            FitReport(precision="bf16", batch_size=1400, failure=hung),
            fit(1100, 55.0),
        ),
        capacity_bytes=80 * GIB,
        budget_bytes=70 * GIB,
    )
    assert str(ceiling).splitlines() == [
        "Largest batch size in bf16: 1,200; safe batch size: 1,100",
        "Limited by memory.",
        "",
        "  batch size   allocated    reserved  retries  result",
        "          32    3.00 GiB    4.00 GiB        0  trained",
        "       1,100    55.0 GiB    56.0 GiB        0  trained, safe",
        "       1,200    60.0 GiB    61.0 GiB        0  trained, largest",
        "       1,300           –           –        –  out of memory",
        "       1,400           –           –        –  failed: hang",
        "",
        "Peak memory as PyTorch's allocator counts it; on a CPU, resident memory.",
        "Memory for training: 70.0 GiB of 80.0 GiB.",
    ]
