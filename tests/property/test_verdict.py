"""Whatever was measured, and whatever was not, there is a verdict whose figures agree and whose words fit."""

import textwrap
from dataclasses import fields
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtune.records import FailureKind
from loadtune.report.wording import verdict_lines
from loadtune.study.verdict import LOADING, judge
from loadtune.study.walls import Evidence

RATE, SHARE, BYTES = st.floats(0.1, 1e6), st.floats(0.0, 1.2), st.floats(1.0, 1e10)
NAMED = {
    "num_workers": st.integers(0, 256),
    "num_usable_cores": st.integers(1, 256),
    "most_workers_tried": st.integers(0, 256),
    "most_workers_in_memory": st.integers(0, 256),
    "num_memory_failures": st.integers(0, 20),
    "failed_with_more_workers": st.lists(st.sampled_from(get_args(FailureKind)), max_size=3).map(tuple),
    "late_batch_ratio": st.floats(3.0, 1000.0),
    "unpinned_batches": st.floats(0.0, 64.0),
    "ready_batches": st.floats(0.0, 64.0),
    "slowest_worker_ratio": st.floats(1.0, 100.0),
    "epoch_s": st.floats(0.01, 1e5),
    "restart_s": st.floats(0.0, 100.0),
}
BY_SUFFIX = {"_per_s": RATE, "_fraction": SHARE, "_bytes": BYTES, "_cores": st.floats(0.0, 64.0)}


def values_of(name: str, annotation: object) -> st.SearchStrategy[object]:
    if "bool" in str(annotation):
        return st.booleans()
    if name in NAMED:
        return NAMED[name]
    return next(values for suffix, values in BY_SUFFIX.items() if name.endswith(suffix))


evidences = st.builds(
    Evidence, **{field.name: st.just(field.default) | values_of(field.name, field.type) for field in fields(Evidence)}
)


@settings(max_examples=150, deadline=None)
@given(evidences)
def test_every_evidence_gives_a_verdict_whose_figures_agree_and_whose_words_fit(evidence: Evidence) -> None:
    found = judge(evidence)
    gains = [found.gain_at_most, *(other.gain_at_most for other in found.also)]
    assert all(gain is None or gain >= 1.0 for gain in gains)
    assert all((gain or 0.0) >= 1.05 for gain in gains[1:])
    assert (found.gain_at_most or 1.0) >= max((gain or 1.0) for gain in gains)
    places = ["loading" if bound in LOADING else bound for bound in [found.bound_by, *(o.bound_by for o in found.also)]]
    assert len(places) == len(set(places))
    assert found.evidence
    assert found.advice
    assert (found.bound_by in ("compute", "startup")) or (found.accelerator_utilization or 0.0) < 0.9

    lines = [line for said in verdict_lines(found) for line in textwrap.wrap(said, 78)]
    assert len(lines) <= 6, "\n".join(lines)
