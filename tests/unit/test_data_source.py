"""Where samples came from and whether they stay, as the notes tell it."""

from dataclasses import replace

from study_rig import measured

from loadtune.records.measurement import Measurement, Telemetry
from loadtune.report.notes import cached_text, growth_text

MB = 1e6


def run(read: float | None, fetched: float | None, seconds: float = 2.0, **more: float | None) -> Measurement:
    """1000 samples/s, with these bytes/s."""
    seen = Telemetry(seconds=seconds, file_read_bytes_per_s=read, disk_read_bytes_per_s=fetched, **more)
    return replace(measured(1000.0), telemetry=seen, epoch_samples=10**6)


def test_bytes_of_all_runs_are_counted_by_their_length() -> None:
    runs = [run(100 * MB, 0.0, seconds=3.0), run(100 * MB, 8 * MB, seconds=1.0), run(None, 5 * MB)]
    told = "from the page cache: 2% of the 381 MiB that were read came from storage. The first epoch"
    assert told in (cached_text(runs, 600_000) or "")


def test_nothing_is_said_where_little_was_read_or_nothing_is_known_or_it_came_from_storage() -> None:
    silent = [[], *([each] for each in (run(None, 5 * MB), run(100 * MB, None), run(0.5 * MB, 0.0), run(5 * MB, 0.0)))]
    for runs in (*silent, [run(100 * MB, 60 * MB)]):
        assert cached_text(runs, 600_000) is None


def test_memory_that_grows_with_each_sample_is_told_where_an_epoch_would_not_fit() -> None:
    cases = [[100 * MB, 100 * MB, None, 100 * MB], [], [None], [100 * MB, 0.0, 0.0], [30 * MB] * 3]
    runs = ([run(0.0, 0.0, workers_growth_bytes_per_s=each) for each in case] for case in cases)
    told, *silent = (growth_text(each, ram_bytes=64 << 30) for each in runs)
    assert "by 95.4 MiB in 1,000 samples. At this pace an epoch of" in (told or "")
    assert silent == [None] * 4
