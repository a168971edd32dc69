"""A model's name → the module, on the CPU with random weights, and what is known of its input and classes."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from loadtune.errors import WorkloadError
from loadtune.records.config import TIMM, WorkloadSpec, is_import_path
from loadtune.units import counted
from loadtune.workload.user_code import call, last_line, made_by, torchvision_for, unknown_name

# Classes that published weights were trained for: ImageNet, VOC.
_CLASSES, _SEGMENTED_CLASSES = 1000, 21
# Where a model's weights name no size: the ImageNet crop.
_DEFAULT_IMAGE_SIZE = 224


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeeds:
    """What has to be known of a model before its dataset can be made."""

    image_size: int
    num_classes: int
    """What the model has where neither the user nor the dataset says."""
    is_own: bool = False
    """Whether it is the user's own model, which may take images of one channel and of any size."""


def model_needs(spec: WorkloadSpec, *, is_live: bool = False) -> ModelNeeds:
    """Look the name up, without building the model. Raises WorkloadError for an unknown name."""
    if is_live or is_import_path(spec.model):
        size = spec.image_size or _DEFAULT_IMAGE_SIZE
        return ModelNeeds(image_size=size, num_classes=_CLASSES, is_own=True)
    if spec.model.startswith(TIMM):
        name = spec.model.removeprefix(TIMM)
        size = spec.image_size or int(_timm_with(name).get_pretrained_cfg(name).input_size[-1])
        return ModelNeeds(image_size=size, num_classes=_CLASSES)
    models = torchvision_for("model", spec.model).models
    names = models.list_models()
    if spec.model not in names:
        raise unknown_name("model", spec.model, names, "torchvision.models.list_models()")
    kind = models.get_model_builder(spec.model).__module__.split(".")
    if "detection" in kind or "optical_flow" in kind:
        raise WorkloadError(
            f"loadtune has no loss for the model {spec.model}. Give a function that builds the model and one, "
            "fn(model, batch), that computes its loss: --model FILE.py:factory --loss FILE.py:fn."
        )
    size = spec.image_size or _published_size(models, spec.model)
    return ModelNeeds(image_size=size, num_classes=_SEGMENTED_CLASSES if "segmentation" in kind else _CLASSES)


def make_model(
    spec: WorkloadSpec,
    needs: ModelNeeds,
    num_classes: int,
    own: nn.Module | Callable[[], Any] | None = None,
    *,
    own_training: bool = False,
) -> nn.Module:
    """The caller's own module or factory, or one built with random weights. Raises WorkloadError where that fails.

    ``own_training``: what the model itself would do in training is called, or is meant to be left out.
    """
    if own is not None or is_import_path(spec.model):
        if own is None:
            own = made_by(spec.model, "model", nn.Module)
        elif not isinstance(own, nn.Module):
            own = call(own, spec.model, "model")
        return _checked(own, spec.model, own_training=own_training)
    if spec.model.startswith(TIMM):
        name = spec.model.removeprefix(TIMM)
        build = partial(_timm_with(name).create_model, name, pretrained=False, num_classes=num_classes)
    else:
        models = torchvision_for("model", spec.model).models
        arguments: dict[str, Any] = {"weights": None, "num_classes": num_classes}
        if "weights_backbone" in inspect.signature(models.get_model_builder(spec.model)).parameters:
            arguments["weights_backbone"] = None  # its default would download ImageNet weights
        if spec.model.startswith("vit_"):
            arguments["image_size"] = needs.image_size
        build = partial(models.get_model, spec.model, **arguments)
    try:
        return build()  # type: ignore[no-any-return]
    except Exception as error:
        raise WorkloadError(
            f"The model {spec.model} could not be built for {counted(num_classes, 'class')} and images of "
            f"{needs.image_size} pixels: {last_line(error)}. Leave --image-size out to use the size the model was "
            "designed for, or write a function that builds the model and name it: --model pkg.mod:factory."
        ) from error


def _checked(model: Any, name: str, *, own_training: bool) -> nn.Module:
    """Raises WorkloadError for no model, and for one that brings its own training step, which nobody would call."""
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"The factory of the model {name} returned type {type(model).__name__}. It has to return a torch.nn.Module."
        )
    if not own_training and hasattr(model, "training_step") and hasattr(model, "configure_optimizers"):
        raise WorkloadError(
            f"The model {type(model).__name__} is a LightningModule, or has its methods. loadtune would ignore its "
            "training_step and configure_optimizers, and measure another training than yours. In Python, "
            "loadtune.from_lightning(module, datamodule) makes a job of it. Or pass the torch.nn.Module inside it, "
            "with its loss and its optimizer."
        )
    if all(tensor.device.type == "cpu" for tensor in (*model.parameters(), *model.buffers())):
        return model  # not even `cpu()`, which refuses tensors of shapes alone
    return model.cpu()  # the device is the training's to choose, and its memory the training's to count


def _published_size(models: Any, name: str) -> int:
    """Crop or resize of the model's published weights, read without downloading them."""
    weights = next(iter(models.get_model_weights(name)), None)
    if weights is None or name.startswith("vit_"):  # its position embedding is made for this size; the weights vary
        return _DEFAULT_IMAGE_SIZE
    preset = weights.transforms()
    size = getattr(preset, "crop_size", None) or getattr(preset, "resize_size", None)
    while isinstance(size, (list, tuple)):
        size = size[-1] if size else None
    return size if isinstance(size, int) else _DEFAULT_IMAGE_SIZE


def _timm_with(name: str) -> Any:
    """timm, which has a model of this name. Raises WorkloadError."""
    try:
        import timm
    except ImportError as error:
        raise WorkloadError(
            f"The model timm:{name} needs the package timm: {last_line(error)}. Install it: pip install timm."
        ) from error
    if not timm.is_model(name):
        raise unknown_name("model", name, timm.list_models(), "timm.list_models()")
    return timm
