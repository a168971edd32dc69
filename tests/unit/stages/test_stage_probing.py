"""What the probing stages say of the fastest rate."""

import pytest
from pipeline_rig import GPU

from loadtune.findings import Findings
from loadtune.records import ComputePoint, Recipe, RecipeChoice, TuneConfig, Window
from loadtune.stages.probing import fastest
from loadtune.testing import FakeClock, fake_host

CHOSEN = Recipe(memory_format="channels_last", compile=True)


def point(recipe: Recipe, batch_size: int, rate: int) -> ComputePoint:
    window = Window(start_s=0.0, seconds=1.0, num_steps=10, num_samples=rate)
    return ComputePoint(recipe=recipe, batch_size=batch_size, windows=(window,))


@pytest.mark.parametrize("others", [(), (point(Recipe(), 64, 5000),)], ids=["a curve alone", "beside your own recipe"])
def test_the_fastest_rate_is_of_the_space(others: tuple[ComputePoint, ...]) -> None:
    found = Findings(TuneConfig(), fake_host(), GPU, "0", FakeClock())
    curve = (point(CHOSEN, 256, 3000), point(CHOSEN, 512, 3200))
    found.recipes = (RecipeChoice(chosen=CHOSEN, points=(point(Recipe(), 256, 4000), curve[0])),)
    found.compute_points = (*curve, *others)
    assert fastest(found) == curve[1]
