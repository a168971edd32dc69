"""What is said to hold the winner back: only what its figures show."""

import pytest

from loadtune.records import Finalist, LoaderConfig, Measurement, Recipe, TrialConfig, Verdict, Window, Winner
from loadtune.study.winner import judge
from loadtune.testing import Surface, fake_facts

CORES = 16


def verdict(
    *,
    wait: float,
    share: float | None,
    num_workers: int = 8,
    most_tried: int = 8,
    kind: str = "cuda",
    copy_s: float | None = None,
    depths: tuple[float, float] | None = None,
) -> Verdict:
    """`depths`: batches before and behind the pinning thread."""
    loader = LoaderConfig(batch_size=64, num_workers=num_workers, pin_memory=depths is not None)
    config = TrialConfig(loader=loader, recipe=Recipe())
    unpinned, ready = depths or (None, None)
    window = Window(
        start_s=0.0,
        seconds=1.0,
        num_steps=10,
        num_samples=640,
        wait_s=wait,
        copy_s=copy_s,
        unpinned=unpinned,
        ready=ready,
    )
    run = Measurement(windows=(window,), first_batch_s=0.1, seconds=1.0)
    winner = Winner(config=config, samples_per_s=640.0, half_width_fraction=None, speedup=None, compute_fraction=share)
    finalist = Finalist(config=config, runs=(run,))
    return judge(winner, finalist, fake_facts(Surface()), kind, CORES, most_tried)


@pytest.mark.parametrize(
    ("wait", "share", "kind", "bound_by"),
    [
        (0.5, 0.95, "cuda", "compute"),
        (0.5, 0.5, "cuda", "loader"),
        (0.5, None, "cpu", "loader"),
        (0.05, 0.5, "cuda", "transfer"),
        (0.05, 0.5, "cpu", "unclear"),
        (0.05, None, "cuda", "unclear"),
    ],
)
def test_what_bounds_the_winner(wait: float, share: float | None, kind: str, bound_by: str) -> None:
    assert verdict(wait=wait, share=share, kind=kind).bound_by == bound_by


@pytest.mark.parametrize(
    ("num_workers", "most_tried", "said"),
    [(8, 16, "did not pay"), (8, 8, "were not measured"), (0, 0, "were not measured"), (16, 16, "as many workers")],
)
def test_more_workers_are_called_useless_only_where_they_were_measured(
    num_workers: int, most_tried: int, said: str
) -> None:
    assert said in verdict(wait=0.5, share=0.5, num_workers=num_workers, most_tried=most_tried).advice


@pytest.mark.parametrize(("copy_s", "bound_by"), [(None, "transfer"), (0.3, "transfer"), (0.01, "unclear")])
def test_copies_are_blamed_unless_they_were_timed_and_are_short(copy_s: float | None, bound_by: str) -> None:
    found = verdict(wait=0.05, share=0.5, copy_s=copy_s)
    assert found.bound_by == bound_by
    assert ("not timed" in found.advice) == (copy_s is None)
    assert ("copying" in found.evidence) == (copy_s is not None)


@pytest.mark.parametrize(("depths", "bound_by"), [((6.0, 0.1), "transfer"), ((0.1, 0.1), "loader")])
def test_the_pinning_thread_is_told_from_the_workers(depths: tuple[float, float], bound_by: str) -> None:
    found = verdict(wait=0.5, share=0.5, depths=depths)
    assert found.bound_by == bound_by
    assert "the two were not timed apart" not in found.advice
