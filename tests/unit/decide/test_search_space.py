"""Ladders and the space."""

from dataclasses import replace

from fakes import Surface, fake_facts
from hypothesis import given
from hypothesis import strategies as st

from loadtune.decide.space import SearchSpace, batch_sizes, worker_counts, worker_grid
from loadtune.records.config import LoaderConfig, Recipe, TuneConfig, YourSettings
from loadtune.records.measurement import ComputePoint, RecipeChoice
from loadtune.records.memory import MemoryCeiling


@given(most=st.integers(0, 300), extra=st.integers(0, 300))
def test_worker_grid_holds_its_ends_and_what_the_user_has(most: int, extra: int) -> None:
    grid = worker_grid(most, (extra,))
    assert {0, most, extra} <= set(grid)
    assert max(grid) == max(most, extra)


def test_without_workers_what_they_would_prefetch_is_no_difference() -> None:
    space = SearchSpace(
        batch_sizes=(32, 64),
        num_workers=(0, 4),
        pin_memory=(False,),
        recipes={"fp32": Recipe(), "bf16": Recipe(precision="bf16")},
        ceilings={"fp32": 32, "bf16": 64},
        others=LoaderConfig(batch_size=1, prefetch_factor=4),
    )
    configs = list(space.modelled())
    assert len(configs) == len(set(configs)) == 3 * 2  # three sizes fit, and nothing differs but workers
    assert all(space.at(space.point(config)) == config == space.nearest(config) for config in configs)
    beyond = replace(configs[-1], loader=LoaderConfig(batch_size=500, num_workers=9, prefetch_factor=3))
    near = space.nearest(beyond)
    assert (near.batch_size, near.loader.num_workers, near.loader.prefetch_factor) == (64, 4, 4)


def test_a_batch_is_at_most_a_tenth_of_an_epoch_unless_it_is_named() -> None:
    facts = replace(fake_facts(Surface()), dataset_length=1000)
    point = ComputePoint(recipe=Recipe(), batch_size=64, windows=())
    choices = (RecipeChoice(chosen=Recipe(), points=(point,)),)
    ceilings = (MemoryCeiling(precision="fp32", batch_size=900, safe_batch_size=800, limit="memory", probes=()),)
    named = TuneConfig(yours=YourSettings(batch_size=300))
    largest = [max(batch_sizes(each, facts, 64, choices, ceilings)) for each in (TuneConfig(), named)]
    assert largest == [96, 256]


def test_the_users_workers_above_the_most_allowed_are_not_searched() -> None:
    assert worker_counts(TuneConfig(max_workers=2), fake_facts(Surface()), 8, 16) == (0, 1, 2)
