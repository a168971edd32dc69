"""Ladders and the space."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from loadtune.records import LoaderConfig, Recipe, YourSettings
from loadtune.study.seeds import seed_configs
from loadtune.study.space import SearchSpace, batch_ladder, worker_ladder
from loadtune.study.yours import assumed_settings, your_config
from loadtune.testing import FakeBench


def test_powers_of_two_their_halves_and_what_is_asked_for() -> None:
    assert batch_ladder(16, 100) == (16, 24, 32, 48, 64, 96)
    assert batch_ladder(16, 100, (100,)) == (16, 24, 32, 48, 64, 96, 100)
    assert batch_ladder(1, 3, (7,)) == (1, 2, 3, 7)
    assert batch_ladder(5, 5) == (5,)


def test_every_small_worker_count_then_fifths() -> None:
    assert worker_ladder(2) == (0, 1, 2)
    assert worker_ladder(16) == (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
    assert worker_ladder(0) == (0,)


@given(most=st.integers(0, 300), extra=st.integers(0, 300))
def test_worker_ladder_holds_its_ends_and_what_the_user_has(most: int, extra: int) -> None:
    ladder = worker_ladder(most, (extra,))
    assert {0, most, extra} <= set(ladder)
    assert max(ladder) == max(most, extra)


def test_the_users_own_settings_and_the_predicted_corner_come_first() -> None:
    recipe = Recipe(precision="bf16", memory_format="channels_last")
    space = SearchSpace(
        batch_sizes=batch_ladder(16, 1024),
        num_workers=worker_ladder(16),
        pin_memory=(False, True),
        recipes={"bf16": recipe},
        ceilings={"bf16": 1024},
    )
    point = FakeBench(noise=0.0).time_compute(recipe, 256, 1.0)
    yours = space.config(64, 0, False, "bf16")
    seeds = seed_configs(space, yours, point, sample_s=1 / 1000)
    assert (seeds[0].origin, seeds[0].config) == ("yours", yours)
    corner = seeds[1].config.loader
    assert (corner.batch_size, corner.pin_memory) == (256, True)
    assert corner.num_workers == 5  # 1.2 × 4,160/s at 1,000/s a worker
    assert seeds[2].config.loader.num_workers == 16
    larger = seeds[3].config.loader
    assert (larger.batch_size, larger.num_workers) == (512, 8)  # between 5 and 16
    assert len({seed.config for seed in seeds}) == len(seeds)
    cut_short = seed_configs(space, yours, point, sample_s=1 / 1000, knee_batch_size=1024)
    assert cut_short[3].config.loader.batch_size == 1024
    both = replace(space, recipes={"bf16": recipe, "fp16": replace(recipe, precision="fp16")})
    both = replace(both, ceilings={"bf16": 1024, "fp16": 300})
    as_fast = seed_configs(both, yours, point, sample_s=1 / 1000, as_fast=["fp16"])
    assert [(s.config.precision, s.config.batch_size, s.config.loader.num_workers) for s in as_fast[3:5]] == [
        ("bf16", 512, 8),
        ("fp16", 256, 8),
    ]


def test_without_workers_what_they_would_prefetch_is_no_difference() -> None:
    space = SearchSpace(
        batch_sizes=(32, 64),
        num_workers=(0, 4),
        pin_memory=(False,),
        recipes={"fp32": Recipe(), "bf16": Recipe(precision="bf16")},
        ceilings={"fp32": 32, "bf16": 64},
        prefetch_factors=(1, 4),
        in_order=(True, False),
    )
    configs = list(space.configs())
    assert len(configs) == len(set(configs)) == 3 * (1 + 4)  # three sizes fit, one precision each; 0 workers are one
    assert all(space.clip(config) == config for config in configs)
    beyond = replace(configs[-1], loader=LoaderConfig(batch_size=500, num_workers=9, prefetch_factor=3))
    near = space.clip(replace(beyond, recipe=Recipe()))
    assert (near.batch_size, near.loader.num_workers, near.loader.prefetch_factor) == (32, 4, 1)


def test_the_baselines_workers_end_with_each_epoch_as_in_pytorch_unless_told_otherwise() -> None:
    given = YourSettings(num_workers=4)
    kept = replace(given, persistent_workers=True)
    assert not your_config(given, 64).loader.keeps_workers
    assert your_config(kept, 64).loader.keeps_workers
    assert your_config(YourSettings(), 64).loader.keeps_workers, "there are none"
    assert "persistent_workers" in assumed_settings(given)
    assert "persistent_workers" not in assumed_settings(kept)
    assert "persistent_workers" not in assumed_settings(YourSettings())


def test_an_assumed_batch_gives_way_a_given_one_does_not() -> None:
    assert your_config(YourSettings(), 16).batch_size == 16
    assert your_config(YourSettings(), 1000).batch_size == 64
    assert your_config(YourSettings(batch_size=64), 16).batch_size == 64


def test_steps_count_rungs_of_sizes_and_one_for_any_other_value() -> None:
    space = SearchSpace(
        batch_sizes=(16, 24, 32, 48),
        num_workers=(0, 1, 2, 4),
        pin_memory=(False, True),
        recipes={"fp32": Recipe(), "bf16": Recipe(precision="bf16")},
        ceilings={"fp32": 48, "bf16": 48},
    )
    corner = space.config(32, 4, True, "bf16")
    assert space.num_steps(corner, corner) == 0
    assert space.num_steps(corner, space.config(48, 4, True, "bf16")) == 1
    assert space.num_steps(corner, space.config(16, 1, True, "bf16")) == 4
    assert space.num_steps(corner, space.config(32, 4, False, "fp32")) == 2
