"""One ceiling as text: 80 columns and a row a size, whatever was measured."""

from hypothesis import given
from hypothesis import strategies as st

from loadtune.records.measurement import TrialFailure
from loadtune.records.memory import LIMIT_TEXT, FitReport, MemoryCeiling
from loadtune.report.wording import FAILURE_TEXT

SIZES = st.integers(1, 10**6)
BYTES = st.none() | st.integers(0, 2**63)
RETRIES = st.none() | st.integers(0, 9999)
WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200)

FAILURES = st.builds(
    TrialFailure, kind=st.sampled_from(list(FAILURE_TEXT)), phase=st.just("training"), message=st.just("")
)
REPORTS = st.builds(
    FitReport,
    precision=st.just("fp16"),
    batch_size=SIZES,
    failure=st.none() | FAILURES,
    first_step_peak_bytes=BYTES,
    steady_peak_bytes=BYTES,
    reserved_peak_bytes=BYTES,
    num_alloc_retries=RETRIES,
    num_steady_retries=RETRIES,
)


@st.composite
def ceilings(draw: st.DrawFn) -> MemoryCeiling:
    probes = tuple(draw(st.lists(REPORTS, min_size=1, max_size=8)))
    return MemoryCeiling(
        precision="fp16",
        batch_size=draw(st.sampled_from(probes)).batch_size,
        safe_batch_size=draw(st.sampled_from(probes)).batch_size,
        limit=draw(st.sampled_from(list(LIMIT_TEXT))),
        probes=probes,
        bytes_per_sample=draw(st.none() | st.floats(-1e12, 1e12)),
        fixed_bytes=draw(st.none() | st.floats(-1e15, 1e15)),
        capacity_bytes=draw(BYTES),
        budget_bytes=draw(BYTES),
        others_bytes=draw(BYTES),
        others=tuple(draw(st.lists(WORDS, max_size=2))),
    )


@given(ceiling=ceilings())
def test_a_printed_ceiling_has_a_row_for_each_size_within_80_columns(ceiling: MemoryCeiling) -> None:
    lines = str(ceiling).split("\n")
    assert max(map(len, lines)) <= 80
    tried = sorted(report.batch_size for report in ceiling.probes)
    rows = lines[4 : 4 + len(tried)]
    assert [row.split()[0] for row in rows] == [f"{size:,}" for size in tried]
    assert lines[4 + len(tried)] == ""
