"""Send inputs as 16-bit floats and widen them on the GPU: half of the bytes, where they cannot be sent as uint8."""

from dataclasses import replace
from typing import TYPE_CHECKING

from loadtune.records import TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation

if TYPE_CHECKING:
    import torch

    from loadtune.workload import Workload

LEAST_ELEMENTS = 256
"""Of a sample's tensor: smaller ones are labels and the like, which stay exact."""


class HalfTransfer(Remedy):
    title = "send 16-bit inputs, widen them on the GPU"
    changes = "inputs are rounded to 16 bits"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        if not situation.on_gpu or situation.facts.input_dtype != "float32":
            return None
        return None if {"uint8_transfer", "batched_fetch"} & set(situation.config.remedies) else situation.config

    def apply(self, workload: "Workload") -> "Workload":
        import torch
        from torch.utils.data import default_collate

        from loadtune.remedies.leaves import AtPlaces, Collated, small_batch
        from loadtune.workload import tensors_of

        batch = small_batch(workload)
        wide = tuple(
            at
            for at, tensor in enumerate(tensors_of(batch))
            if tensor.dtype == torch.float32 and tensor.numel() >= 2 * LEAST_ELEMENTS
        )
        if not wide:
            raise NotApplicableError("no tensor of a sample is of float32 and large")
        if not all(tensor.half().isfinite().all() for at, tensor in enumerate(tensors_of(batch)) if at in wide):
            raise NotApplicableError("its inputs are too large for 16-bit floats")
        collate = Collated(workload.loader.collate_fn or default_collate, AtPlaces(wide, halved))
        loader = replace(workload.loader, collate_fn=collate)
        return replace(workload, loader=loader, on_device=(*workload.on_device, AtPlaces(wide, widened)))

    def own_code(self, workload: "Workload") -> str:
        collates = workload.loader.collate_fn
        own = "default_collate" if collates is None or collates.__name__ == "default_collate" else collates.__name__
        return "\n".join(
            [
                *(["from torch.utils.data import default_collate"] if own == "default_collate" else []),
                "def collate(samples):",
                f"    inputs, *others = {own}(samples)",
                "    return [inputs.half(), *others]",
                "# DataLoader(..., collate_fn=collate); in the training loop, once the inputs are on the GPU",
                "inputs = inputs.float()",
            ]
        )


def halved(tensor: "torch.Tensor") -> "torch.Tensor":
    return tensor.half()


def widened(tensor: "torch.Tensor") -> "torch.Tensor":
    return tensor.float()
