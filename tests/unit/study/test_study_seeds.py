"""Which precision the first trials are run in, where the fastest one may be overtaken; what is tried of what was asked
for."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from loadtune.records import ComputePoint, Dimension, Precision, Recipe, Trial, TrialConfig
from loadtune.study.optuna_study import OptunaStudy
from loadtune.study.seeds import Seed, seed_configs
from loadtune.study.space import SearchSpace, batch_ladder, worker_ladder
from loadtune.testing import FakeBench

FP16, BF16 = Recipe(precision="fp16"), Recipe(precision="bf16", fused_optimizer=True)
SPACE = SearchSpace(
    batch_sizes=batch_ladder(16, 1024),
    num_workers=worker_ladder(16),
    pin_memory=(False, True),
    recipes={"fp16": FP16, "bf16": BF16},
    ceilings={"fp16": 1024, "bf16": 192},
)


def seeds(
    unhindered: Precision | None = "bf16",
    yours: TrialConfig | None = None,
    sample_s: float = 1 / 1000,
    enough_per_s: float | None = None,
) -> list[Seed]:
    fastest = FakeBench(noise=0.0).time_compute(FP16, 256, 1.0)
    assert isinstance(fastest, ComputePoint)
    return seed_configs(SPACE, yours, fastest, sample_s=sample_s, unhindered=unhindered, enough_per_s=enough_per_s)


def asked(rates: Mapping[TrialConfig, float | None], first: list[Seed]) -> list[TrialConfig]:
    return asked_in(SPACE, rates, first)


def asked_in(space: SearchSpace, rates: Mapping[TrialConfig, float | None], first: list[Seed]) -> list[TrialConfig]:
    """What a study asks for until its seeds are through; it is told these rates, None: does not run, else 3,000/s."""
    study = OptunaStudy(space, first, None, seed=0)
    configs = []
    for _ in first:
        trial = study.ask()
        rate = rates.get(trial.config, 3000.0)
        if rate is None:
            study.tell_infeasible(trial, 1.0, "out of memory")
        else:
            study.tell_measured(trial, rate)
        configs += [trial.config] if trial.origin != "search" else []
    return configs


def with_bf16_at(rate: float) -> list[TrialConfig]:
    """What is asked for where the second corner trains at this rate and all else at 3,000/s."""
    first = seeds()
    return asked({first[1].config: rate}, first)


def test_a_precision_that_waits_for_nothing_is_tried_in_the_same_corner() -> None:
    corner, other, *around = seeds()
    assert (corner.config.precision, other.config.precision) == ("fp16", "bf16")
    assert (corner.config.batch_size, other.config.batch_size) == (256, 192), "its ceiling"
    assert other.config.loader.num_workers == corner.config.loader.num_workers
    assert not corner.follows
    assert not other.follows
    assert all(seed.follows == (corner.config, other.config) for seed in around)


LARGEST = SPACE.config(1024, 16, True, "fp16")


@pytest.mark.parametrize(("rate", "is_tried"), [(2100.0, False), (1900.0, True), (None, False)])
def test_where_all_workers_are_too_slow_the_largest_batch_is_tried_by_all(rate: float | None, is_tried: bool) -> None:
    first = seeds(unhindered=None, enough_per_s=2000.0)
    corner = SPACE.config(256, 16, True, "fp16")
    assert (LARGEST in asked({corner: rate}, first)) == is_tried


def test_the_largest_batch_follows_a_faster_precision_to_its_own_ceiling() -> None:
    first = seeds(enough_per_s=4000.0)
    tried = asked({first[1].config: 3500.0}, first)
    assert LARGEST not in tried
    assert SPACE.config(192, 16, True, "bf16") in tried


def test_without_workers_none_is_too_slow() -> None:
    fastest = FakeBench(noise=0.0).time_compute(FP16, 256, 1.0)
    assert isinstance(fastest, ComputePoint)
    space = replace(SPACE, num_workers=(0,))
    tried = seed_configs(space, None, fastest, sample_s=0.05, enough_per_s=4000.0)
    assert max(seed.config.batch_size for seed in tried) == 512, "the larger one that is always tried"


@pytest.mark.parametrize(("sample_s", "workers"), [(1 / 1000, 8), (1 / 1800, 8), (1 / 2200, 0), (1e-6, 0)])
def test_the_conservative_one_has_no_workers_where_samples_are_nearly_free(sample_s: float, workers: int) -> None:
    """Beside a step of 2,918 samples/s: one process alone would train 745, 1,113, 1,254 and 2,909/s."""
    last = seeds(unhindered=None, sample_s=sample_s)[-1].config
    assert (last.batch_size, last.loader.num_workers) == (128, workers)


def test_on_two_cores_slow_samples_are_as_slow() -> None:
    """50 ms each: no worker is done without for nothing."""
    fastest = FakeBench(noise=0.0).time_compute(FP16, 256, 1.0)
    assert isinstance(fastest, ComputePoint)
    tried = seed_configs(replace(SPACE, num_workers=(0, 1, 2)), None, fastest, sample_s=0.05)
    assert tried[-1].config.loader.num_workers == 1


def test_what_follows_is_tried_in_the_precision_that_was_faster() -> None:
    slower, faster = with_bf16_at(2900.0), with_bf16_at(4000.0)
    assert [config.precision for config in slower] == ["fp16", "bf16", "fp16", "fp16", "fp16"]
    assert [config.precision for config in faster] == ["fp16", "bf16", "bf16", "bf16", "bf16"]
    assert [config.precision for config in with_bf16_at(3100.0)] == [
        "fp16",
        "bf16",
        "fp16",
        "fp16",
        "fp16",
    ], "by chance"
    assert [config.loader.num_workers for config in slower[2:4]] == [
        config.loader.num_workers for config in faster[2:4]
    ]
    assert all(config.batch_size <= 192 for config in faster[1:])


YOURS = SPACE.config(64, 16, True, "bf16")


@pytest.mark.parametrize("unhindered", [None, "bf16"])
def test_nothing_follows_what_was_faster_with_another_loader(unhindered: Precision | None) -> None:
    """The user's own 16 workers say nothing of a precision beside a corner with too few."""
    first = seeds(unhindered, YOURS)
    rates = {YOURS: 4000.0}
    assert {config.precision for config in asked(rates, first)[2 if unhindered is None else 3 :]} == {"fp16"}


@pytest.mark.parametrize("failing", [0, 1])
def test_nothing_follows_where_a_corner_did_not_run(failing: int) -> None:
    first = seeds()
    rates = {first[1 - failing].config: 4000.0, first[failing].config: None}
    assert [config.precision for config in asked(rates, first)[2:]] == ["fp16"] * 3


def test_what_was_asked_for_in_the_faster_precision_is_no_prediction_left() -> None:
    """192 is bf16's ceiling, so what is larger falls together; what computes as fast is a seed of its own."""
    corners = seeds()[:2]
    larger = [SPACE.config(size, 8, True, "fp16") for size in (256, 512)]
    first = [*corners, *(Seed("seed", config, (corners[0].config, corners[1].config)) for config in larger)]
    study = OptunaStudy(SPACE, first, None, seed=0)
    left = []
    for rate in (3000.0, 4000.0, 4000.0):
        left.append(study.has_predictions_left)
        study.tell_measured(study.ask(), rate)
    assert left == [True, True, True]
    assert not study.has_predictions_left
    assert study.ask().origin == "search"


def test_what_was_screened_before_is_asked_for_again() -> None:
    """Of a run that goes on: another bound may hold by now, or none."""
    corners = seeds()[:2]
    screened = Trial(number=0, config=corners[0].config, origin="seed", screened="at most 100/s by compute alone")
    study = OptunaStudy(SPACE, corners, None, seed=0, known=[screened])
    assert [study.ask().config for _ in corners] == [seed.config for seed in corners]


def test_only_a_scaler_beside_an_optimizer_that_is_not_fused_waits() -> None:
    waiting = (FP16, BF16, Recipe(), Recipe(precision="fp16", fused_optimizer=True))
    assert [recipe.waits_each_step for recipe in waiting] == [True, False, False, False]


TUNED: tuple[Dimension, ...] = ("prefetch_factor", "in_order", "persistent_workers", "memory_format", "compile")
WIDE = replace(
    SPACE,
    prefetch_factors=(1, 2, 4, 8),
    in_order=(True, False),
    persistent_workers=(True, False),
    memory_formats=("contiguous", "channels_last"),
)


def tuned_seeds(
    space: SearchSpace = WIDE,
    tuned: tuple[Dimension, ...] = TUNED,
    unhindered: Precision | None = None,
    warm: TrialConfig | None = None,
) -> list[Seed]:
    fastest = FakeBench(noise=0.0).time_compute(FP16, 256, 1.0)
    assert isinstance(fastest, ComputePoint)
    return seed_configs(space, None, fastest, 1 / 1000, tuned=tuned, unhindered=unhindered, warm=warm)


def test_each_tuned_dimension_is_tried_once_in_the_corner_before_the_conservative_one() -> None:
    plain, tuned = tuned_seeds(tuned=()), tuned_seeds()
    corner = plain[0].config
    assert [seed.config for seed in tuned[: len(plain) - 1]] == [seed.config for seed in plain[:-1]]
    assert tuned[-1] == plain[-1]
    assert [seed.config for seed in tuned[len(plain) - 1 : -1]] == [
        replace(corner, loader=replace(corner.loader, prefetch_factor=4)),
        replace(corner, loader=replace(corner.loader, in_order=False)),
        replace(corner, loader=replace(corner.loader, persistent_workers=False)),
        replace(corner, recipe=replace(FP16, memory_format="channels_last")),
    ]


def test_a_dimension_of_one_value_and_one_the_space_knows_nothing_of_are_no_seeds() -> None:
    assert tuned_seeds(SPACE) == tuned_seeds(SPACE, ())
    assert tuned_seeds(tuned=("compile",)) == tuned_seeds(tuned=())


def test_the_last_value_of_a_dimension_is_followed_by_the_one_before_it() -> None:
    space = replace(WIDE, prefetch_factors=(1, 2))
    factors = [seed.config.loader.prefetch_factor for seed in tuned_seeds(space, ("prefetch_factor",))]
    assert sorted(set(factors)) == [1, 2]


def test_without_workers_a_tuned_dimension_is_the_corner_itself() -> None:
    configs = [seed.config for seed in tuned_seeds(replace(WIDE, num_workers=(0,)), ("prefetch_factor", "in_order"))]
    assert len(configs) == len(set(configs))
    assert {(c.loader.prefetch_factor, c.loader.in_order) for c in configs} == {(2, True)}


def test_what_another_seed_tries_already_is_not_tried_again() -> None:
    corner = tuned_seeds(tuned=())[0].config
    warm = replace(corner, loader=replace(corner.loader, in_order=False))
    (first, *others) = tuned_seeds(tuned=("in_order",), warm=warm)
    assert (first.origin, first.config) == ("warm start", warm)
    assert warm not in [seed.config for seed in others]


def test_tuned_loaders_follow_the_faster_precision_and_a_memory_format_stays() -> None:
    """In the other precision its recipe's own format would be tried again."""
    first = tuned_seeds(unhindered="bf16")
    tried = asked_in(WIDE, {first[1].config: 4000.0}, first)
    assert [c.precision for c in tried if c.loader.prefetch_factor == 4 or not c.loader.in_order] == ["bf16", "bf16"]
    assert [c.precision for c in tried if c.recipe.memory_format == "channels_last"] == ["fp16"]
