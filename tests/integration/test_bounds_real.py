"""The loader alone and the way to the device, asked of a real bench on the CPU."""

import itertools

import pytest
from bench_rig import bench_on

from loadtune.records import LoaderConfig, LoaderPoint, TransferPoint, TrialFailure

SAMPLE_S = 0.005
"""What `SlowImages` sleeps for each."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with bench_on(tmp_path_factory.mktemp("bounds"), dataset="SlowImages") as client:
        yield client


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_alone_delivers_what_its_workers_can_make(bench, num_workers):
    config = LoaderConfig(batch_size=8, num_workers=num_workers)
    point = bench.time_loader(config, 1.0)
    assert isinstance(point, LoaderPoint)
    assert point.config == config
    # A sleep never ends early. Whole rounds leave a window's edges: half a batch a worker in the whole.
    nominal = max(1, num_workers) / SAMPLE_S
    assert 0.4 * nominal < point.samples_per_s < 1.1 * nominal
    assert len(point.windows) >= 2
    assert all(later.start_s == earlier.end_s for earlier, later in itertools.pairwise(point.windows))
    assert all(window.num_samples == 8 * window.num_steps for window in point.windows)
    assert all((window.queue_end is None) == (num_workers == 0) for window in point.windows)
    assert point.first_batch_s >= 8 * SAMPLE_S


def test_a_loader_without_a_full_batch_is_refused(bench):
    failure = bench.time_loader(LoaderConfig(batch_size=1024), 0.1)
    assert isinstance(failure, TrialFailure)
    assert "1024" in failure.message


def test_on_a_cpu_there_is_no_transfer_to_time(bench):
    point = bench.time_transfer(8, 0.1, pin=True)
    assert isinstance(point, TransferPoint)
    assert point.samples_per_s is None
