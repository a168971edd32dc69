"""Shares of the time are of the long run, as the rate is."""

from dataclasses import replace

import pytest

from loadtune.records import Measurement, Window


def measured(*, wait_s: float, queue_start: float | None, queue_end: float | None) -> Measurement:
    """20 batches of 8 samples in a second."""
    window = Window(
        start_s=0.0,
        seconds=1.0,
        num_steps=20,
        num_samples=160,
        wait_s=wait_s,
        queue_start=queue_start,
        queue_end=queue_end,
    )
    return Measurement(windows=(window,), first_batch_s=1.0, seconds=3.0)


@pytest.mark.parametrize(
    ("wait_s", "queue", "share"),
    [
        (0.06, (16.0, 11.0), 1 - 0.94 * 15 / 20),
        (0.29, (2.0, 2.0), 0.29),
        (0.06, (2.0, 3.0), 0.06),
        (0.06, (None, None), 0.06),
    ],
    ids=["runs down", "stays", "fills up", "no queue"],
)
def test_batches_that_were_made_before_spare_no_wait(
    wait_s: float, queue: tuple[float | None, float | None], share: float
) -> None:
    """Workers that make 15 batches a second beside steps that take 21 seem to keep up while 16 are left."""
    run = measured(wait_s=wait_s, queue_start=queue[0], queue_end=queue[1])
    assert run.wait_fraction == pytest.approx(share)


def test_the_devices_own_account_is_of_the_same_run_as_the_rate() -> None:
    """So a step that takes it 45 ms does by rate and share together, whatever was left in the queue."""
    for queue_end, num_made in ((16.0, 20), (11.0, 15)):
        run = measured(wait_s=0.06, queue_start=16.0, queue_end=queue_end)
        run = replace(run, windows=tuple(replace(w, copy_s=0.04, compute_s=0.9, idle_s=0.06) for w in run.windows))
        assert run.samples_per_s == pytest.approx(8 * num_made)
        assert run.compute_fraction == pytest.approx(0.045 * num_made)
        assert run.copy_fraction == pytest.approx(0.002 * num_made)
        assert run.idle_fraction == pytest.approx(1 - 0.047 * num_made)
