"""The compute curve climbs to saturation, and its bound holds."""

from hypothesis import given
from hypothesis import strategies as st

from loadtune.probe.compute import as_fast, compute_bound, compute_curve, knee, reaches
from loadtune.records import ComputePoint, Recipe
from loadtune.testing import FakeBench, Surface

FP32, BF16 = Recipe(precision="fp32"), Recipe(precision="bf16")


def curve(bench: FakeBench, until_s: float = 1e9, largest: int = 4096) -> tuple[ComputePoint, ...]:
    known = [bench.time_compute(recipe, 64, 1.0) for recipe in (FP32, BF16)]
    return compute_curve(
        bench, known, {"fp32": largest, "bf16": largest}, clock=bench.clock, until_s=until_s, point_s=1.0
    )


def test_it_doubles_until_saturation_the_fastest_precision_first() -> None:
    points = curve(FakeBench(noise=0.0))
    sizes = [p.batch_size for p in points if p.recipe == BF16]
    assert sizes == [64 * 2**i for i in range(len(sizes))]
    assert 3 <= len(sizes) <= 6
    assert points[0].recipe == BF16


def test_it_ends_at_the_ceiling() -> None:
    points = curve(FakeBench(noise=0.0), largest=100)
    assert {p.batch_size for p in points} == {64, 100}


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


@given(batch_size=st.integers(1, 4096))
def test_the_bound_is_never_below_the_truth(batch_size: int) -> None:
    surface = Surface()
    bound = compute_bound(curve(FakeBench(surface, noise=0.0)), FP32, batch_size)
    assert bound is not None
    assert bound >= surface.compute_rate(FP32, batch_size)


def test_nothing_is_known_beyond_a_curve_that_still_grew_at_its_end() -> None:
    bench = FakeBench(noise=0.0)
    points = [bench.time_compute(FP32, size, 1.0) for size in (8, 16)]
    assert compute_bound(points, FP32, 12) is not None
    assert compute_bound(points, FP32, 32) is None
    assert not reaches(points, FP32, 32)
    assert reaches(points, FP32, 16)
    assert reaches(curve(bench), FP32, 10**6)
    assert not reaches(points, BF16, 16)


def test_no_bound_for_what_was_not_timed() -> None:
    assert compute_bound(curve(FakeBench()), Recipe(precision="fp16"), 64) is None


def test_precisions_are_told_apart_where_both_were_timed() -> None:
    bench = FakeBench(Surface(compute_per_s={"fp32": 2000.0, "fp16": 4000.0, "bf16": 3900.0}), noise=0.0)
    one, close, slow = (Recipe(precision=each) for each in ("fp16", "bf16", "fp32"))
    timed = [bench.time_compute(recipe, size, 1.0) for recipe in (one, close, slow) for size in (64, 128)]
    further = bench.time_compute(one, 512, 1.0)  # whose rate the others have not had the chance to show
    points = [point for point in (*timed, further) if isinstance(point, ComputePoint)]
    assert as_fast(points, one, close)
    assert not as_fast(points, one, slow)
    assert not as_fast(points, one, Recipe(precision="bf16", compile=True))
