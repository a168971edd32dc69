"""What of a segment is left out, and when it has seen enough."""

import pytest

from loadtune.decide.search import Segment
from loadtune.records.config import LoaderConfig
from loadtune.records.measurement import Window

IN_PROCESS, EIGHT = LoaderConfig(batch_size=10), LoaderConfig(batch_size=10, num_workers=8)


def window(num_steps=10, seconds=0.4, **changed):
    return Window(start_s=0.0, seconds=seconds, num_steps=num_steps, num_samples=10 * num_steps, **changed)


def feed(segment, windows):
    """How many of them it takes."""
    for number, each in enumerate(windows, 1):
        if not segment.add(each):
            return number
    return None


LOCKING, SKIPPING = window(page_lock_s=0.3), window(num_skipped_steps=1)


@pytest.mark.parametrize(
    ("loader", "windows", "num_kept"),
    [
        (EIGHT, [window(num_steps=8)] * 4, 3),  # without the first round of the workers
        (EIGHT, [window(num_steps=2)] * 5, 1),  # its windows may be shorter
        (IN_PROCESS, [window()] * 4, 4),
        (IN_PROCESS, [SKIPPING, *[window()] * 3], 2),  # the window after it shows that it is over
        # Pages that are locked are no part of the rate, nor is what came before.
        (IN_PROCESS, [window(), LOCKING, window(), window(), LOCKING, window(), window()], 1),
    ],
)
def test_what_comes_before_a_segment_has_settled_is_left_out(loader, windows, num_kept):
    segment = Segment(loader, 4.0)
    feed(segment, windows)
    assert len(segment.kept) == num_kept
    assert segment.settled


@pytest.mark.parametrize(
    ("loader", "max_s", "each", "num_windows"),
    [
        (IN_PROCESS, 4.0, window(num_steps=100), 5),  # half of its time, where batches came often enough
        (EIGHT, 8.0, window(num_steps=8, seconds=0.5), 1 + 15),  # until the workers have delivered fifteen times
        (EIGHT, 4.0, window(num_steps=8, seconds=0.5), 1 + 8),  # and no longer than its time
    ],
)
def test_how_long_it_lasts(loader, max_s, each, num_windows):
    assert feed(Segment(loader, max_s), [each] * 90) == num_windows
