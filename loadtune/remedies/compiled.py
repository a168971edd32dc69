"""torch.compile of the model: where the GPU limits, and there is time to compile."""

from dataclasses import replace

from loadtune.records import Examined, TrialConfig
from loadtune.remedies.base import Remedy, Situation


class Compiled(Remedy):
    title = "torch.compile of the model"
    changes = "rounding; compiling takes most of a minute at each start"
    changes_recipe = True
    takes_s = 60.0
    hoped = 1.3

    def offer(self, situation: Situation) -> TrialConfig | None:
        recipe = situation.config.recipe
        if not situation.on_gpu or recipe.compile or recipe.precision == "own":
            return None
        return replace(situation.config, recipe=replace(recipe, compile=True))

    def code(self, situation: Situation, seen: Examined) -> str:
        return "model = torch.compile(model, dynamic=False)"
