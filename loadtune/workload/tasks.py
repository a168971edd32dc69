"""What one training step computes: a batch and a model in, a scalar loss out, one way for each family of models.

Shapes: B batch, C channels, T frames, H and W pixels, K classes. Inputs are (B, C, H, W), or (B, C, T, H, W) for video;
targets are class indices (B,).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

from loadtune.errors import WorkloadError
from loadtune.workload.models import Family

Batch = tuple[torch.Tensor, torch.Tensor]
Task = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
"""(model, inputs, targets) → loss."""
Forward = Callable[[nn.Module, torch.Tensor], Any]
"""(model, inputs) → predictions, in evaluation mode."""

# Weight of the auxiliary heads in "Going Deeper with Convolutions"; speed does not depend on it.
_AUXILIARY_WEIGHT = 0.3
# COCO's key points of a person, which Keypoint R-CNN is built for.
_NUM_KEYPOINTS = 17


def task_for(family: Family, model_name: str) -> Task:
    """The loss that trains this family."""
    if family == "detection":
        return _keypoint_loss if "keypoint" in model_name else _mask_loss if "mask" in model_name else _box_loss
    if family == "segmentation":
        return _pixel_loss
    if family == "optical_flow":
        return _flow_loss
    return class_loss


def forward_for(family: Family) -> Forward:
    """How this family predicts."""
    if family == "detection":
        return lambda model, inputs: model(list(inputs))
    if family == "optical_flow":
        return lambda model, inputs: model(inputs, inputs.flip(-1))
    return lambda model, inputs: model(inputs)


def class_logits(output: Any) -> torch.Tensor:
    """(B, K) out of whatever a classifier returned. Raises WorkloadError where there is none."""
    logits = output if isinstance(output, torch.Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, torch.Tensor):
        raise WorkloadError(
            f"the model returned a {type(output).__name__}; it has to return a tensor of shape (batch, classes), or "
            "something with such a tensor as `.logits`."
        )
    if logits.dim() != 2:
        raise WorkloadError(
            f"the model returned a tensor of shape {tuple(logits.shape)}; cross entropy needs (batch, classes)."
        )
    return logits


def class_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy; auxiliary heads (GoogLeNet, Inception v3) are added with their weight."""
    output = model(inputs)
    loss = cross_entropy(class_logits(output), targets)
    for name in ("aux_logits", "aux_logits1", "aux_logits2"):
        auxiliary = getattr(output, name, None)
        if isinstance(auxiliary, torch.Tensor):
            loss = loss + _AUXILIARY_WEIGHT * cross_entropy(auxiliary, targets)
    return loss


def _pixel_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The image's class at every pixel: the same work as a real mask, without one."""
    logits = model(inputs)["out"]
    if logits.shape[-2:] != inputs.shape[-2:]:
        logits = interpolate(logits, size=inputs.shape[-2:], mode="bilinear", align_corners=False)
    pixels = targets[:, None, None].expand(-1, *inputs.shape[-2:])
    return cross_entropy(logits, pixels)


def _flow_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """L1 to zero over all refinements, between an image and its mirror image."""
    flows = model(inputs, inputs.flip(-1))
    return torch.stack([flow.abs().mean() for flow in flows]).mean()


def _box_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return _detection_loss(model, inputs, _boxes(inputs, targets))


def _mask_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    mask = torch.ones((1, *inputs.shape[-2:]), dtype=torch.uint8, device=inputs.device)
    return _detection_loss(model, inputs, [box | {"masks": mask} for box in _boxes(inputs, targets)])


def _keypoint_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    height, width = inputs.shape[-2:]
    centre = torch.tensor([width / 2, height / 2, 1.0], device=inputs.device)  # 1: the point is visible
    points = centre.expand(1, _NUM_KEYPOINTS, 3)
    return _detection_loss(model, inputs, [box | {"keypoints": points} for box in _boxes(inputs, targets)])


def _boxes(inputs: torch.Tensor, targets: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """One object an image, as large as the image; label 0 is the background."""
    height, width = inputs.shape[-2:]
    box = torch.tensor([[0.0, 0.0, width, height]], device=inputs.device)
    return [{"boxes": box, "labels": label[None] + 1} for label in targets]


def _detection_loss(model: nn.Module, inputs: torch.Tensor, boxes: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    losses: dict[str, torch.Tensor] = model(list(inputs), boxes)
    return torch.stack([loss.reshape(()) for loss in losses.values()]).sum()
