"""A measurement's shares of wall time: of what was measured, and none of what was not."""

import pytest

from loadtune.records import Measurement, Window


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
