"""A measurement's shares of wall time: of what was measured, and none of what was not."""

import pytest

from loadtune.records import Measurement, Window, delivered_samples


def measurement(*parts: tuple[float, float, float] | None) -> Measurement:
    """Windows of two seconds, the parts in seconds."""
    windows = []
    for part in parts:
        copy_s, compute_s, idle_s = part or (None, None, None)
        windows.append(
            Window(
                start_s=0.0,
                seconds=2.0,
                num_steps=1,
                num_samples=8,
                copy_s=copy_s,
                compute_s=compute_s,
                idle_s=idle_s,
            )
        )
    return Measurement(windows=tuple(windows), first_batch_s=0.1, seconds=5.0)


def test_shares_are_of_all_windows() -> None:
    found = measurement((0.5, 1.0, 0.5), (0.0, 2.0, 0.0))
    assert found.copy_fraction == pytest.approx(0.125)
    assert found.compute_fraction == pytest.approx(0.75)
    assert found.idle_fraction == pytest.approx(0.125)


def test_what_was_not_measured_is_no_zero() -> None:
    assert measurement(None).copy_fraction is None
    assert measurement(None, (0.5, 1.0, 0.5)).copy_fraction == pytest.approx(0.25)


def delivered(*, wait_s: float, ahead: tuple[float, float]) -> float:
    """Of ten batches in ten seconds."""
    window = Window(
        start_s=0.0,
        seconds=10.0,
        num_steps=10,
        num_samples=10,
        wait_s=wait_s,
        queue_start=ahead[0],
        queue_end=ahead[1],
    )
    return delivered_samples([window])


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
    assert delivered(wait_s=wait_s, ahead=ahead) == pytest.approx(samples)


def test_where_nothing_is_made_ahead_what_was_trained_on_counts() -> None:
    window = Window(start_s=0.0, seconds=2.0, num_steps=2, num_samples=16, wait_s=1.0)
    assert delivered_samples([window]) == 16


def test_what_windows_between_them_made_ahead_is_not_theirs() -> None:
    """A window that was left out, for a skipped step say, may have filled the queue that the next one empties."""
    first = Window(start_s=0.0, seconds=4.0, num_steps=4, num_samples=4, wait_s=2.0, queue_start=0.0, queue_end=0.0)
    later = Window(start_s=9.0, seconds=4.0, num_steps=4, num_samples=4, wait_s=2.0, queue_start=4.0, queue_end=2.0)
    assert delivered_samples([first, later]) == pytest.approx(6.0)
