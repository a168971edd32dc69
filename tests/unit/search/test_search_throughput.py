"""What a run found, as the throughput model takes it."""

import math
from dataclasses import replace

import pytest

from loadtune.model.resources import Job
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.facts import Device
from loadtune.records.measurement import ComputePoint, Measurement, Window, WorkerShare
from loadtune.search.search import job_of, points_at, segments_of
from loadtune.testing import FakeTraining, Surface, fake_facts, fake_host

GPU = Device(kind="cuda", uuid="GPU-0", name="Fake GPU")
RECIPES = {"fp32": Recipe(), "fp16": Recipe(precision="fp16"), "bf16": Recipe(precision="bf16")}
CONFIG = TrialConfig(loader=LoaderConfig(batch_size=10, num_workers=2, pin_memory=True), recipe=RECIPES["bf16"])


def test_a_job_has_the_curve_of_each_recipe_smallest_batch_first() -> None:
    training, facts = FakeTraining(noise=0.0), replace(fake_facts(Surface()), sample_cpu_s=None)
    points = [training.time_compute(RECIPES[each], size, 1.0) for each in ("fp32", "bf16") for size in (64, 16, 64)]
    timed = [point for point in points if isinstance(point, ComputePoint)]
    job = job_of(facts, fake_host(), GPU, RECIPES, timed)
    assert [size for size, _ in job.compute["bf16"]] == [16, 64]
    assert 1 / job.compute["bf16"][1][1] == pytest.approx(Surface().compute_rate(RECIPES["bf16"], 64))
    assert job.compute["fp16"] == job.compute["fp32"], "it was not timed"
    assert job.syncing == {"fp16"}
    assert job.sample_cpu_s == job.sample_s == facts.sample_s, "a result of an older version"
    assert job_of(replace(facts, sample_cpu_s=1e-4), fake_host(), GPU, RECIPES, timed).sample_cpu_s == 1e-4


def test_a_segment_has_what_a_worker_and_the_device_took_for_a_sample() -> None:
    window = Window(start_s=0.0, seconds=2.0, num_steps=10, num_samples=100, copy_s=0.2, compute_s=0.8)
    shares = (WorkerShare(num_made=4, made_s=1.0), WorkerShare(num_made=6, made_s=2.0))
    run = Measurement(windows=(window, window), first_batch_s=0.1, seconds=5.0, workers=shares)
    bare = replace(run, workers=(), windows=(replace(window, copy_s=None),))
    job = job_of(
        fake_facts(Surface()),
        fake_host(),
        GPU,
        RECIPES,
        [ComputePoint(recipe=RECIPES["fp32"], batch_size=10, windows=(window,))],
    )
    found = segments_of([(CONFIG, run), (CONFIG, bare)], job)
    assert found.make_s[0] == pytest.approx(3.0 / 10 / 10)
    assert found.device_s[0] == pytest.approx(0.01)
    assert math.isnan(found.make_s[1])
    assert math.isnan(found.device_s[1])
    assert list(found.rates) == [50.0, 50.0]
    assert list(points_at([CONFIG], job).recipe) == [2]


def test_a_pinning_thread_that_always_had_batches_is_timed_by_what_it_pinned() -> None:
    config = TrialConfig(loader=LoaderConfig(batch_size=100, num_workers=4, pin_memory=True), recipe=Recipe())
    busy = Window(start_s=0.0, seconds=2.0, num_steps=10, num_samples=1000, num_pinned=8, least_unpinned=2)
    rested = replace(busy, num_pinned=10, least_unpinned=0)
    job = Job(
        sample_s=1e-3,
        sample_cpu_s=1e-3,
        sample_bytes=100.0,
        num_cores=4.0,
        on_gpu=True,
        compute={"fp32": ((100.0, 1e-4),)},
    )

    def pin_s(*windows: Window) -> float:
        run = Measurement(windows=windows, first_batch_s=1.0, seconds=5.0)
        return float(segments_of([(config, run)], job).pin_s[0])

    assert pin_s(busy, rested) == pytest.approx(2.0 / 8 / 100)
    assert math.isnan(pin_s(rested, rested))
