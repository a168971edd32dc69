"""The compute curve climbs to saturation, and its bound holds."""

from loadtune.probe.compute import compute_curve, knee, reaches
from loadtune.records import ComputePoint, Recipe
from loadtune.testing import FakeBench

FP32, BF16 = Recipe(precision="fp32"), Recipe(precision="bf16")


def curve(bench: FakeBench, until_s: float = 1e9, largest: int = 4096) -> tuple[ComputePoint, ...]:
    known = [bench.time_compute(recipe, 64, 1.0) for recipe in (FP32, BF16)]
    return compute_curve(
        bench, known, {"fp32": largest, "bf16": largest}, smallest=2, clock=bench.clock, until_s=until_s, point_s=1.0
    )


def test_it_doubles_until_saturation_the_fastest_precision_first() -> None:
    points = curve(FakeBench(noise=0.0))
    *sizes, last = [p.batch_size for p in points if p.recipe == BF16]
    assert sizes == [64 * 2**i for i in range(len(sizes))]
    assert 3 <= len(sizes) <= 6
    assert last == 4  # a small one, where launching the step limits
    assert points[0].recipe == BF16


def test_it_ends_at_the_ceiling() -> None:
    points = curve(FakeBench(noise=0.0), largest=100)
    assert {p.batch_size for p in points} == {4, 64, 100}


def test_it_ends_when_the_time_is_up() -> None:
    bench = FakeBench(noise=0.0)
    assert {p.batch_size for p in curve(bench, until_s=bench.clock.now())} == {64}


def test_the_knee_is_the_smallest_saturating_batch() -> None:
    bench = FakeBench(noise=0.0)
    points = curve(bench)
    top = max(p.samples_per_s for p in points if p.recipe == FP32)
    found = knee(points, FP32)
    assert found.samples_per_s >= top / 1.03
    assert found.batch_size < max(p.batch_size for p in points if p.recipe == FP32)


def test_a_curve_that_still_grew_at_its_end_reaches_no_further() -> None:
    bench = FakeBench(noise=0.0)
    points = [bench.time_compute(FP32, size, 1.0) for size in (8, 16)]
    assert not reaches(points, FP32, 32)
    assert reaches(points, FP32, 16)
    assert reaches(curve(bench), FP32, 10**6)
    assert not reaches(points, BF16, 16)
