"""Send inputs as 16-bit floats and widen them on the GPU: half of the bytes, where they cannot be sent as uint8."""

from dataclasses import replace
from typing import TYPE_CHECKING

from loadtune.records import TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation

if TYPE_CHECKING:
    import torch

    from loadtune.workload import Workload


class HalfTransfer(Remedy):
    title = "send 16-bit inputs, widen them on the GPU"
    changes = "inputs are rounded to 16 bits; values above 65,504 would become infinite"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        if not situation.on_gpu or situation.facts.input_dtype != "float32":
            return None
        return None if {"uint8_transfer", "batched_fetch"} & set(situation.config.remedies) else situation.config

    def apply(self, workload: "Workload") -> "Workload":
        import torch
        from torch.utils.data import default_collate

        from loadtune.remedies.leaves import AtPlaces, Collated, is_pair_of_tensors, small_batch

        batch = small_batch(workload)
        if not is_pair_of_tensors(batch) or batch[0].dtype != torch.float32:
            raise NotApplicableError("a batch is no pair (inputs, targets) of tensors with float32 inputs")
        if not batch[0].half().isfinite().all():
            raise NotApplicableError("its inputs are too large for 16-bit floats")
        collate = Collated(workload.loader.collate_fn or default_collate, AtPlaces((0,), halved))
        loader = replace(workload.loader, collate_fn=collate)
        return replace(workload, loader=loader, on_device=(*workload.on_device, AtPlaces((0,), widened)))

    def own_code(self, workload: "Workload") -> str:
        from torch.utils.data import default_collate

        is_own = workload.loader.collate_fn not in (None, default_collate)
        return "\n".join(
            [
                "own_collate = loader.collate_fn  # of your loader as it is"
                if is_own
                else "from torch.utils.data import default_collate",
                "",
                "def collate_halved(samples):",
                f"    inputs, targets = {'own_collate' if is_own else 'default_collate'}(samples)",
                "    return inputs.half(), targets",
                "",
                "# DataLoader(..., collate_fn=collate_halved); in the training loop, once the inputs are on the GPU",
                "inputs = inputs.float()",
            ]
        )


def halved(tensor: "torch.Tensor") -> "torch.Tensor":
    return tensor.half()


def widened(tensor: "torch.Tensor") -> "torch.Tensor":
    return tensor.float()
