"""What waits and workers' own times say of a slow worker and of slow samples."""

import pytest

from loadtune.late_batches import late_batches, usually_late
from loadtune.records.measurement import WorkerShare


def share(
    wait: float = 0.1, made: float = 1.0, *, longest: float | None = None, max_wait: float = 0.1, num_made: int = 11
) -> WorkerShare:
    """Ten batches that took ``made`` each, and the longest."""
    longest = made if longest is None else longest
    return WorkerShare(
        num_batches=num_made,
        wait_s=wait,
        max_wait_s=max_wait,
        num_made=num_made,
        made_s=made * (num_made - 1) + longest,
        max_made_s=longest,
    )


def test_a_slow_worker_that_the_loop_waits_for_is_named() -> None:
    found = late_batches([share(), share(wait=20.0, made=3.0), share(), share()])
    assert found is not None
    assert found.by == "worker"
    assert found.ratio == pytest.approx(3.0)
    assert found.wait_fraction > 0.9


def test_equal_workers_in_step_are_not_blamed_for_the_burst() -> None:
    """The loop waits for the same worker in every round, because all of them finish together."""
    assert late_batches([share(wait=20.0), share(wait=0.0), share(wait=0.0), share(wait=0.0)]) is None


def test_single_slow_samples_are_told_from_a_slow_worker() -> None:
    late = share(wait=9.5, longest=10.0, max_wait=9.0)
    found = late_batches([late, share(), share(), share()])
    assert found is not None
    assert found.by == "samples"
    assert found.ratio == pytest.approx(10.0)


@pytest.mark.parametrize("workers", [[], [share(wait=9.0)], [share(num_made=2, made=3.0, wait=9.0), share(num_made=2)]])
def test_too_little_says_nothing(workers: list[WorkerShare]) -> None:
    assert late_batches(workers) is None


def test_one_run_of_three_is_bad_luck_and_two_are_a_finding() -> None:
    slow, even = [share(wait=20.0, made=3.0), share(), share()], [share(), share(), share()]
    assert usually_late([slow, even, even]) is None
    assert usually_late([slow, even, slow]) == late_batches(slow)
