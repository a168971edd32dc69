"""Shares of a run's wall time: of what was measured, not of what was not, and of the long run as the rate is."""

from dataclasses import replace

import pytest

from loadtune.records.measurement import Measurement, Window, delivered_samples, half_width_fraction


def ten_batches(wait_s: float, ahead: tuple[float, float]) -> Window:
    """In ten seconds, with so many made ahead before and after."""
    return Window(
        start_s=0.0, seconds=10.0, num_steps=10, num_samples=10, wait_s=wait_s, queue_start=ahead[0], queue_end=ahead[1]
    )


@pytest.mark.parametrize(
    ("wait_s", "ahead", "samples"),
    [
        (0.0, (4.0, 4.0), 10.0),
        (0.0, (4.0, 0.0), 6.0),  # four of the ten were made before
        (6.0, (4.0, 0.0), 6.0),
        (0.0, (0.0, 4.0), 10.0),  # the steps never waited: they are the slower side
        (6.0, (0.5, 2.0), 11.5),  # they waited most of the time: what was made is the rate, in hand or nearly so
        (0.5, (0.0, 4.0), 10 / 0.95),  # without the wait they would have taken a little more
        (10.0, (0.0, 1.0), 11.0),
        (0.0, (12.0, 0.0), 0.0),
    ],
)
def test_the_long_run_is_the_slower_of_what_was_made_and_what_steps_take(
    wait_s: float, ahead: tuple[float, float], samples: float
) -> None:
    assert delivered_samples([ten_batches(wait_s, ahead)]) == pytest.approx(samples)


BUSY = replace(ten_batches(0.0, (20.0, 20.0)), least_unpinned=1, num_pinned=7)
RESTED = replace(BUSY, least_unpinned=0, num_pinned=10)
TAKING = replace(ten_batches(8.0, (10.0, 15.0)), least_untaken=2, num_taken=10)
"""Eight of ten seconds went into taking ten batches over, while the workers made fifteen."""


def test_an_interval_is_no_narrower_than_one_of_the_batches_it_is_made_of() -> None:
    """The steps are as steady as can be, the thread pins seven batches a window."""
    assert half_width_fraction([BUSY] * 8) == pytest.approx(1 / 56)
    assert half_width_fraction([RESTED] * 8) == pytest.approx(0.0, abs=1e-12)
    assert half_width_fraction([replace(BUSY, num_pinned=12)] * 8) == pytest.approx(0.0, abs=1e-12)
    short_of_batches = replace(RESTED, num_pinned=3)
    assert half_width_fraction([BUSY, BUSY, short_of_batches]) == pytest.approx(1 / 14)
    assert half_width_fraction([TAKING] * 8) == pytest.approx(1 / 80), "taken by the training process itself"
    assert half_width_fraction([replace(TAKING, least_untaken=0)] * 8) == pytest.approx(0.0, abs=1e-12)


def test_what_windows_between_them_made_ahead_is_not_theirs() -> None:
    """A window that was left out, for a skipped step say, may have filled the queue that the next one empties."""
    first = Window(start_s=0.0, seconds=4.0, num_steps=4, num_samples=4, wait_s=2.0, queue_start=0.0, queue_end=0.0)
    later = Window(start_s=9.0, seconds=4.0, num_steps=4, num_samples=4, wait_s=2.0, queue_start=4.0, queue_end=2.0)
    assert delivered_samples([first, later]) == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("ahead", "share"), [((4.0, 1.5), 1 - 0.94 * 7.5 / 10), ((2.0, 2.0), 0.06), ((2.0, 3.0), 0.06)]
)
def test_batches_that_were_made_before_spare_no_wait(ahead: tuple[float, float], share: float) -> None:
    """Workers that make three quarters of what the steps take seem to keep up while there is a queue."""
    found = Measurement(windows=(ten_batches(0.6, ahead),), first_batch_s=1.0, seconds=12.0)
    assert found.wait_fraction == pytest.approx(share)
