"""Planted causes are named on a real GPU: a slow loader, a slow worker, a slow step, a slow copy, slow pinning."""

from pathlib import Path

import pytest
from planted import Plant, judged

from loadtune.host import choose_device, read_host
from loadtune.records.config import LoaderConfig

pytestmark = pytest.mark.gpu

FOUR = LoaderConfig(batch_size=64, num_workers=4, pin_memory=True)
PINNED = LoaderConfig(batch_size=64, num_workers=8, pin_memory=True)
PAGEABLE = LoaderConfig(batch_size=64, num_workers=8)


@pytest.mark.parametrize(
    ("plant", "resource", "part"),
    [
        pytest.param(Plant("SlowSamples", "Linear", FOUR), "workers", "waiting", id="slow-loader"),
        pytest.param(Plant("SlowFirstWorker", "Linear", FOUR), "workers", None, id="slow-worker"),
        pytest.param(Plant("Samples", "SlowStep", FOUR), "device", "computing", id="slow-step"),
        pytest.param(Plant("LargeSamples", "Linear", PAGEABLE), "main", "copying", id="slow-copy"),
        pytest.param(Plant("LargeSamples", "Linear", PINNED), "pinning", "copying", id="slow-pin"),
    ],
)
def test_what_was_planted_is_named(plant: Plant, resource: str, part: str | None, tmp_path: Path) -> None:
    found = judged(plant, choose_device(read_host(), "cuda"), tmp_path)
    first = found.bottleneck.limits[0]
    print(f"\n{plant.dataset} {plant.model}: {found.run.samples_per_s:.0f}/s, {found.bottleneck}")
    assert first.resource == resource
    if part is not None:  # a single worker cannot be told from its sample in the training process
        assert max(first.shares, key=first.shares.__getitem__) == part
    assert (found.bottleneck.late is not None) == (plant.dataset == "SlowFirstWorker")
