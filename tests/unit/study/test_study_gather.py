"""Records to plain numbers: which point means what, and what a sample could weigh."""

from dataclasses import replace

import pytest

from loadtune.records import (
    Device,
    Finalist,
    LoaderConfig,
    LoaderPoint,
    Measurement,
    Recipe,
    Telemetry,
    TransferPoint,
    TrialConfig,
    Window,
    WorkerShare,
    WorkerUse,
)
from loadtune.study.gather import gather, smaller_bytes
from loadtune.study.walls import Evidence
from loadtune.testing import Surface, fake_facts, fake_host

FACTS = fake_facts(Surface())
GPU = Device(kind="cuda", uuid="GPU-0", name="GPU")


def window(rate: int, wait_s: float = 0.0) -> Window:
    return Window(start_s=0.0, seconds=1.0, num_steps=10, num_samples=rate, wait_s=wait_s)


def evidence(compute_per_s: float = 2000.0, **loader: object) -> Evidence:
    config = LoaderConfig(batch_size=64, **loader)  # type: ignore[arg-type]
    busy = Telemetry(seconds=1.0, num_readings=10, bench_cpu_cores=3.5)
    runs = tuple(
        Measurement(windows=(window(rate, 0.2),), first_batch_s=1.5, seconds=2.0, telemetry=busy)
        for rate in (900, 1100)
    )
    alone = [
        LoaderPoint(config=replace(config, pin_memory=pin), windows=(window(rate),), first_batch_s=1.0)
        for pin, rate in ((config.pin_memory, 1200), (False, 1600))
    ]
    return gather(
        Finalist(config=TrialConfig(loader=config, recipe=Recipe()), runs=runs),
        facts=FACTS,
        host=fake_host(),
        device=GPU,
        compute_per_s=compute_per_s,
        loader_points=alone,
        transfer_points=[
            TransferPoint(batch_size=64, batch_bytes=64, pinned=config.pin_memory, num_copies=100, seconds=1.0)
        ],
    )


@pytest.mark.parametrize(
    ("loader", "workers_per_s", "pinned_per_s"),
    [
        pytest.param({"num_workers": 4, "pin_memory": True}, 1600.0, 1200.0, id="pinned"),
        pytest.param({"num_workers": 4}, 1200.0, None, id="not-pinned"),
        pytest.param({"pin_memory": True}, 1200.0, None, id="no-workers-no-pinning-thread"),
    ],
)
def test_what_each_loader_point_stands_for(
    loader: dict[str, object], workers_per_s: float, pinned_per_s: float | None
) -> None:
    found = evidence(**loader)
    assert (found.workers_per_s, found.pinned_per_s) == (workers_per_s, pinned_per_s)
    assert (found.trained_per_s, found.transfer_per_s) == (1000.0, 6400.0)
    assert found.utilization == 0.5
    assert found.job_cores == 3.5


@pytest.mark.parametrize(("compute_per_s", "utilization"), [(400.0, None), (950.0, pytest.approx(1000 / 950))])
def test_computing_alone_is_never_slower_than_training(compute_per_s: float, utilization: float | None) -> None:
    """By a noise's worth it may read so, by more it was misread."""
    assert evidence(compute_per_s, num_workers=4).utilization == utilization


@pytest.mark.parametrize(
    ("loader", "restart_s"),
    [
        pytest.param({"num_workers": 4}, 64 * FACTS.sample_s, id="workers-that-stay-make-one-batch"),
        pytest.param({"num_workers": 4, "persistent_workers": False}, 1.5, id="others-start-as-well"),
        pytest.param({}, 0.0, id="no-workers-no-queue"),
    ],
)
def test_how_an_epoch_begins(loader: dict[str, object], restart_s: float) -> None:
    found = evidence(**loader)
    assert found.restart_s == pytest.approx(restart_s)
    assert found.epoch_s == FACTS.dataset_length / 1000


@pytest.mark.parametrize(
    ("dtype", "shape", "sample_bytes", "uint8", "half"),
    [
        ("float32", (3, 224, 224), 602_120, 150_536, 301_064),
        ("float16", (3, 224, 224), 301_064, 150_536, None),
        ("uint8", (3, 224, 224), 150_536, None, None),
        ("float32", (1000,), 4008, None, 2008),
        ("int64", (128,), 2048, None, None),
    ],
)
def test_what_a_sample_could_weigh(
    dtype: str, shape: tuple[int, ...], sample_bytes: int, uint8: int | None, half: int | None
) -> None:
    facts = replace(FACTS, input_dtype=dtype, input_shape=shape, sample_bytes=sample_bytes)
    assert smaller_bytes(facts) == (uint8, half)


@pytest.mark.parametrize("pins", [True, False])
@pytest.mark.parametrize(("least", "seldom_rests"), [((3, 1), True), ((3, 0), False), ((3, None), None)])
def test_whoever_takes_batches_over_seldom_rests_where_it_does_so_in_every_run(
    least: tuple[int, int | None], seldom_rests: bool | None, pins: bool
) -> None:
    """The pinning thread, or without one the training process."""
    seen = [{"num_pinned": 4, "least_unpinned": n} if pins else {"num_taken": 4, "least_untaken": n} for n in least]
    windows = [replace(window(1000, 0.3), **each) for each in seen]
    runs = tuple(Measurement(windows=(each,), first_batch_s=1.0, seconds=2.0) for each in windows)
    config = TrialConfig(loader=LoaderConfig(batch_size=64, num_workers=3, pin_memory=pins), recipe=Recipe())
    found = gather(Finalist(config=config, runs=runs), facts=FACTS, host=fake_host(), device=GPU)
    told = (found.pinning_seldom_rests, found.taking_seldom_rests)
    assert told == ((seldom_rests, None) if pins else (None, seldom_rests))


def test_what_training_looked_like_inside() -> None:
    """Figures of windows are means over steps, those of the machine over runs; a slow worker is one in most runs."""
    inside = replace(window(1000, 0.3), copy_s=0.2, compute_s=0.5, idle_s=0.3, unpinned=3.0, ready=0.25)
    steady = WorkerShare(num_batches=10, wait_s=0.1, num_made=10, made_s=1.0, max_made_s=0.1)
    slow = WorkerShare(num_batches=10, wait_s=5.0, num_made=10, made_s=3.0, max_made_s=0.3)
    seen = Telemetry(
        seconds=10.0,
        num_readings=10,
        cgroup_cpu_cores=3.0,
        cpu_throttled_s=10.0,
        pin_thread_cores=0.75,
        workers=(WorkerUse(cpu_cores=0.25), WorkerUse(cpu_cores=0.75), WorkerUse()),
        disk_read_bytes_per_s=1e6,
        disk_idle_fraction=0.125,
    )
    run = Measurement(
        windows=(inside, replace(inside, num_steps=30, unpinned=1.0)),
        first_batch_s=1.0,
        seconds=2.0,
        telemetry=seen,
        workers=(steady, slow, steady),
    )
    config = TrialConfig(loader=LoaderConfig(batch_size=64, num_workers=3, pin_memory=True), recipe=Recipe())
    found = gather(Finalist(config=config, runs=(run, run)), facts=FACTS, host=fake_host(), device=GPU, restart_s=0.25)
    assert (found.copy_fraction, found.compute_fraction, found.idle_fraction) == pytest.approx((0.2, 0.5, 0.3))
    assert (found.unpinned_batches, found.ready_batches, found.pinning_seldom_rests) == (1.5, 0.25, None)
    assert (found.slowest_worker_ratio, found.late_batch_ratio) == (pytest.approx(3.0), None)
    assert (found.worker_cores, found.pin_thread_cores) == (0.5, 0.75)
    assert found.throttled_fraction == 10 / (10 + 3.0 * 10)
    assert (found.disk_read_bytes_per_s, found.disk_idle_fraction, found.restart_s) == (1e6, 0.125, 0.25)
