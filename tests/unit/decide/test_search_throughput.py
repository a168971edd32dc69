"""What a run found, as the throughput model takes it."""

import math
from dataclasses import replace

import pytest
from fakes import FakeTraining, Surface, fake_facts, fake_host

from loadtune.decide.search import model_job
from loadtune.model.fit import points_at, segments_of
from loadtune.model.resources import Job
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.facts import Device
from loadtune.records.measurement import ComputePoint, Measurement, Window

GPU = Device(kind="cuda", uuid="GPU-0", name="Fake GPU")
RECIPES = {"fp32": Recipe(), "fp16": Recipe(precision="fp16"), "bf16": Recipe(precision="bf16")}
JOB = Job(
    sample_s=1e-3,
    sample_cpu_s=1e-3,
    sample_bytes=100.0,
    num_cores=4.0,
    on_gpu=True,
    compute=dict.fromkeys(RECIPES, ((10.0, 1e-3),)),
)
CONFIG = TrialConfig(loader=LoaderConfig(batch_size=10, num_workers=2, pin_memory=True), recipe=RECIPES["bf16"])


def test_a_job_has_the_curve_of_each_recipe_smallest_batch_first() -> None:
    training, facts = FakeTraining(noise=0.0), replace(fake_facts(Surface()), sample_cpu_s=None)
    points = [training.time_compute(RECIPES[each], size, 1.0) for each in ("fp32", "bf16") for size in (64, 16, 64)]
    timed = [point for point in points if isinstance(point, ComputePoint)]
    job = model_job(facts, fake_host(), GPU, RECIPES, timed)
    assert [size for size, _ in job.compute["bf16"]] == [16, 64]
    assert 1 / job.compute["bf16"][1][1] == pytest.approx(Surface().compute_rate(RECIPES["bf16"], 64))
    assert job.compute["fp16"] == job.compute["fp32"], "it was not timed"
    assert job.syncing == {"fp16"}
    assert job.sample_cpu_s == job.sample_s == facts.sample_s, "a result of an older version"


def test_a_segment_has_what_a_worker_the_device_and_a_busy_pinning_thread_took_for_a_sample() -> None:
    window = Window(start_s=0.0, seconds=2.0, num_steps=10, num_samples=100, copy_s=0.2, compute_s=0.8)
    busy, rested = replace(window, num_pinned=8, least_unpinned=2), replace(window, num_pinned=10, least_unpinned=0)
    run = Measurement(windows=(busy, rested), first_batch_s=0.1, seconds=5.0, refill_s=0.3)
    bare = replace(run, refill_s=0.0, windows=(replace(rested, copy_s=None),))
    found = segments_of([(CONFIG, run), (CONFIG, bare)], JOB)
    for name, seconds in (("make", 3.0 / 10 / 10), ("device", 0.01), ("pin", 2.0 / 8 / 10)):
        assert found[name][0] == pytest.approx(seconds)
        assert math.isnan(found[name][1])
    assert found["rate"][1] == 50.0
    assert list(points_at([CONFIG], JOB)["recipe"]) == [2]
