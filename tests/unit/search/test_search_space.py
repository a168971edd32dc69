"""Ladders and the space."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from loadtune.records.config import LoaderConfig, Recipe, YourSettings
from loadtune.search.baseline import assumed_settings, your_config
from loadtune.search.space import SearchSpace, worker_ladder


@given(most=st.integers(0, 300), extra=st.integers(0, 300))
def test_worker_ladder_holds_its_ends_and_what_the_user_has(most: int, extra: int) -> None:
    ladder = worker_ladder(most, (extra,))
    assert {0, most, extra} <= set(ladder)
    assert max(ladder) == max(most, extra)


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


def test_the_baselines_workers_end_with_each_epoch_as_in_pytorch_unless_told_otherwise() -> None:
    given = YourSettings(num_workers=4)
    kept = replace(given, persistent_workers=True)
    assert not your_config(given, 64).loader.keeps_workers
    assert your_config(kept, 64).loader.keeps_workers
    assert your_config(YourSettings(), 64).loader.keeps_workers, "there are none"
    assert "persistent_workers" in assumed_settings(given)
    assert "persistent_workers" not in assumed_settings(kept)
    assert "persistent_workers" not in assumed_settings(YourSettings())
