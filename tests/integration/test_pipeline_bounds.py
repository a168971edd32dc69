"""The verdict of whole runs over fake machines whose wall is known."""

from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.report.store import load_result
from loadtune.testing import FakeBench, Surface

COMPUTE = Surface(sample_s=1 / 50_000, pinned_per_s=1e9, pageable_per_s=1e9, copy_per_s=1e9)
WORKERS = Surface(sample_s=1 / 50, pinned_per_s=1e9, pageable_per_s=1e9, copy_per_s=1e9)
# Eight workers make more than the thread pins, and so does the device train at any batch that may win.
PINNING = Surface(sample_s=1 / 700, half_batch=1.0, pinned_per_s=3000.0)


@pytest.mark.parametrize(
    ("surface", "bound_by"),
    [
        pytest.param(COMPUTE, "compute", id="compute"),
        pytest.param(WORKERS, "workers", id="workers"),
        pytest.param(PINNING, "pinning", id="pinning"),
    ],
)
def test_the_wall_of_a_known_machine_is_named(tmp_path: Path, surface: Surface, bound_by: str) -> None:
    bench = FakeBench(surface, between_runs=0.004)
    result = tune_fake(bench, tmp_path)
    assert result.best is not None
    assert result.verdict is not None
    assert result.verdict.bound_by == bound_by
    loader = result.best.config.loader
    makers, device = (
        loader.num_workers / surface.sample_s,
        surface.compute_rate(result.best.config.recipe, loader.batch_size),
    )
    next_wall = {"compute": makers, "workers": device, "pinning": min(makers, device)}[bound_by]
    # Two noisy rates over a third, and copies that the device waits for: 1 in 18 of its time.
    assert result.verdict.gain_at_most == pytest.approx(next_wall / result.best.samples_per_s, rel=0.1)
    assert result.verdict.accelerator_utilization == pytest.approx(result.best.compute_fraction)
    assert [point.config.pin_memory for point in result.loader_points] == (
        [True, False] if loader.pin_memory else [False]
    )
    assert [point.pinned for point in result.transfer_points] == [loader.pin_memory]
    assert load_result(tmp_path) == result
