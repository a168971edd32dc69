"""What only concerns compute: a fused optimizer."""

from dataclasses import replace

from loadtune.changes.base import Remedy, Situation
from loadtune.model.resources import Job
from loadtune.records.config import TrialConfig
from loadtune.records.result import Examined

FUSED = """\
# once, before the training loop, in place of your optimizer
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, fused=True)
for group in optimizer.param_groups:  # GradScaler may skip the first step, which would leave the momentum unset
    for parameter in group["params"]:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)"""


class FusedOptimizer(Remedy):
    """Fused SGD under fp16 takes the scaler's flag on the device, so that no step waits for the device.

    Plain, a fused SGD with momentum does not survive the first step that a GradScaler skips: its momentum is not set
    then. Momentum that begins at zero is set before.
    """

    name = "fused_optimizer"
    title = "fused SGD, momentum set to zero first"
    changes = "rounding of the optimizer's step"
    lines = FUSED
    changes_recipe = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        """With fp16 where that is not the best precision, but may be without its waits."""
        config = situation.config
        if not situation.on_gpu or situation.spec.named_optimizer != "sgd":
            return None
        waits = replace(config.recipe, precision="fp16", fused_optimizer=False)
        if config.precision != "fp16" and "fp16" not in situation.precisions:
            return None
        if not waits.waits_each_step or (config.precision == "fp16" and config.recipe.fused_optimizer):
            return None
        return replace(config, recipe=replace(waits, fused_optimizer=True))

    def job(self, job: Job, seen: Examined, situation: Situation) -> Job | None:
        return replace(job, syncing=job.syncing - {"fp16"})
