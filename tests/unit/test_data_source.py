"""Where samples came from, as the note tells it."""

import pytest

from loadtune.final.doubts import data_source
from loadtune.records.measurement import Measurement, Window
from loadtune.records.telemetry import Telemetry

MB = 1e6


def run(read: float | None, fetched: float | None, seconds: float = 2.0) -> Measurement:
    """1000 samples/s, with these bytes/s."""
    seen = Telemetry(seconds=seconds, file_read_bytes_per_s=read, disk_read_bytes_per_s=fetched)
    window = Window(start_s=0.0, seconds=1.0, num_samples=1000, num_steps=10)
    return Measurement(windows=(window,), first_batch_s=1.0, seconds=3.0, telemetry=seen)


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (
            [run(100 * MB, 0.0, seconds=3.0), run(100 * MB, 8 * MB, seconds=1.0), run(None, 5 * MB)],
            "from the page cache: 2% of the 381 MiB that were read came from storage. The first epoch",
        ),
        ([run(100 * MB, 130 * MB)], "from storage: 100% of the 191 MiB"),  # it read ahead
    ],
)
def test_bytes_of_all_runs_are_counted_by_their_length(measured: list[Measurement], words: str) -> None:
    assert words in (data_source(measured, 600_000) or "")


@pytest.mark.parametrize(
    "measured",
    [[], [run(None, 5 * MB)], [run(100 * MB, None)], [run(0.5 * MB, 0.0)], [run(5 * MB, 0.0)]],
    ids=["no run", "not told", "storage not told", "less than pipes carry", "under 1% of the samples"],
)
def test_nothing_is_said_where_little_was_read_or_nothing_is_known(measured: list[Measurement]) -> None:
    assert data_source(measured, 600_000) is None
