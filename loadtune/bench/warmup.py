"""Steps nobody counts: kernels chosen, caches filled, the optimizer's state made, the model compiled."""

from loadtune.bench.line import Line
from loadtune.bench.training import Trainer
from loadtune.records import Recipe
from loadtune.workload import Batch

# On CUDA the first step chooses kernels (0.1 to 18 s were seen), the second runs with the optimizer's state in place,
# the third with the allocator settled. On a CPU the first step is the only one that differs.
_CUDA_STEPS = 3
_CPU_STEPS = 1
# An fp16 run begins with a scale of 2^16, which is halved in each step that overflows and leaves the optimizer out. A
# model that still overflows at 2^-4 will go on doing so, and its windows say it.
_MAX_UPDATES = 20


class WarmUp:
    """Remembers what is warm, because on a CPU a step may take seconds."""

    def __init__(self) -> None:
        self._warm: set[tuple[Recipe, int]] = set()

    def run(self, trainer: Trainer, recipe: Recipe, batch: Batch, line: Line) -> None:
        """Warm this recipe at this batch size. Ends with the device idle."""
        line.enter("warm-up")
        key = (recipe, trainer.num_samples(batch))
        on_cuda = trainer.device.type == "cuda"
        if on_cuda or key not in self._warm:
            least = _CUDA_STEPS if on_cuda else _CPU_STEPS
            for number in range(1, _MAX_UPDATES + 1):
                halvings, compiled = trainer.num_halvings(), trainer.num_compiled()
                for _ in range(trainer.accumulate):  # only the last of them can tell that the scale is too large
                    trainer.step(batch)
                    trainer.synchronize()
                    line.pulse()
                settled = trainer.num_halvings() == halvings and trainer.num_compiled() == compiled
                if number * trainer.accumulate >= least and settled:
                    break
        self._warm.add(key)
