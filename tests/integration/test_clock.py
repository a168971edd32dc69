"""A trial's samples/s against what the loader logged of itself: one cell of ``benchmarks/clock.py``."""

import os

import pytest
from clock import TOLERANCE
from clock_cells import FOLDER, Cell, run


def test_a_queue_that_was_full_at_the_start_is_no_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (FOLDER, "OMP_NUM_THREADS", "PYTHONPATH"):  # what it sets is put back afterwards
        monkeypatch.setenv(name, os.environ.get(name, ""))
    (outcome,) = run([Cell(num_workers=4, prefetch_factor=8, regime="loader")], linger_s=1.0)
    assert abs(outcome.error) <= TOLERANCE, outcome
    assert outcome.counted > 1.1 * outcome.truth, "the queue was not full: the test tests nothing"
