"""What is trained and what is loaded: a model's name → the module, on the CPU with random weights, and what is known of
its input; a dataset's name or an object → `LoaderParts`."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, IterableDataset

from loadtune.errors import WorkloadError
from loadtune.records.config import TIMM, WorkloadSpec
from loadtune.units import counted
from loadtune.workload.loaders import LoaderParts
from loadtune.workload.user_code import made_by, reported, torchvision_for, unknown_name

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as in torchvision's own recipes
_CLASSES, _SEGMENTED_CLASSES = 1000, 21  # that published weights were trained for: ImageNet, VOC
_DEFAULT_IMAGE_SIZE = 224  # where a model's weights name no size: the ImageNet crop


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeeds:
    """What has to be known of a model before its dataset can be made, and what makes it."""

    image_size: int
    num_classes: int = _CLASSES
    """What the model has where neither the user nor the dataset says."""
    build: Callable[..., nn.Module] | None = None
    """Takes the number of classes. None: the model is the user's own, and may take gray images of any size."""


def model_needs(spec: WorkloadSpec, own: Mapping[str, Any]) -> ModelNeeds:
    """Look the name up, without building the model; ``own``: the user's parts, by name. Raises WorkloadError."""
    if "model" in own:
        return ModelNeeds(image_size=spec.image_size or _DEFAULT_IMAGE_SIZE)
    if spec.model.startswith(TIMM):
        return _timm_needs(spec, spec.model.removeprefix(TIMM))
    models = torchvision_for("model", spec.model).models
    names = models.list_models()
    if spec.model not in names:
        raise unknown_name("model", spec.model, names, "torchvision.models.list_models()")
    builder = models.get_model_builder(spec.model)
    kind = builder.__module__.split(".")
    if "detection" in kind or "optical_flow" in kind:
        raise WorkloadError(
            f"loadtune has no loss for the model {spec.model}. Give a function that builds the model and one, "
            "fn(model, batch), that computes its loss: --model FILE.py:factory --loss FILE.py:fn."
        )
    size = spec.image_size or _published_size(models, spec.model)
    arguments: dict[str, Any] = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        arguments["weights_backbone"] = None  # its default would download ImageNet weights
    if spec.model.startswith("vit_"):
        arguments["image_size"] = size
    num_classes = _SEGMENTED_CLASSES if "segmentation" in kind else _CLASSES
    return ModelNeeds(image_size=size, num_classes=num_classes, build=partial(builder, **arguments))


def make_model(
    spec: WorkloadSpec, needs: ModelNeeds, num_classes: int, own: Mapping[str, Any], *, own_training: bool
) -> nn.Module:
    """The user's own model, or one built with random weights; an empty one where a step holds it. Raises WorkloadError,
    also for a model with a training step of its own, which nobody would call unless ``own_training`` says so."""
    if needs.build is not None:
        with reported(
            f"The model {spec.model} could not be built for {counted(num_classes, 'class')} and images of "
            f"{needs.image_size} pixels: {{}}. Leave --image-size out to use the size the model was designed for, or "
            "write a function that builds the model and name it: --model pkg.mod:factory.",
            traced=False,
        ):
            return needs.build(num_classes=num_classes)
    model = made_by(own["model"], spec.model, "model", nn.Module)
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"The factory of the model {spec.model} returned type {type(model).__name__}. It has to return a "
            "torch.nn.Module."
        )
    if not own_training and hasattr(model, "training_step") and hasattr(model, "configure_optimizers"):
        raise WorkloadError(
            f"The model {type(model).__name__} is a LightningModule, or has its methods. loadtune would ignore its "
            "training_step and configure_optimizers, and measure another training than yours. Tune the script that "
            "trains it: loadtune run -- python train.py. Or pass the torch.nn.Module inside it, with its loss."
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
    sizes = tree_leaves(getattr(preset, "crop_size", None) or getattr(preset, "resize_size", None))
    return sizes[-1] if sizes and isinstance(sizes[-1], int) else _DEFAULT_IMAGE_SIZE


def _timm_needs(spec: WorkloadSpec, name: str) -> ModelNeeds:
    with reported(f"The model timm:{name} needs the package timm: {{}}. Install it: pip install timm.", traced=False):
        timm = import_module("timm")
    if not timm.is_model(name):
        raise unknown_name("model", name, timm.list_models(), "timm.list_models()")
    size = spec.image_size or int(timm.get_pretrained_cfg(name).input_size[-1])
    return ModelNeeds(image_size=size, build=partial(timm.create_model, name, pretrained=False))


class ToRgb:
    """Three channels, whatever the file held. A class, not a lambda: workers started by spawn have to pickle it."""

    def __call__(self, image: Any) -> Any:
        return image.convert("RGB") if hasattr(image, "convert") else image


def training_transform(image_size: int | None, *, is_gray: bool = False) -> Any:
    """The augmentation of torchvision's reference recipe: crop, flip, tensor, normalise. Of gray images one channel is
    kept, and without ``image_size`` their size."""
    from torchvision import transforms

    crop = [] if image_size is None else [transforms.RandomResizedCrop(image_size)]
    if is_gray:
        return transforms.Compose([*crop, transforms.ToTensor()])
    end = [transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)]
    return transforms.Compose([ToRgb(), *crop, *end])


def make_parts(spec: WorkloadSpec, needs: ModelNeeds, own: Mapping[str, Any]) -> LoaderParts:
    """The user's own loader, or a dataset that is read in random order. Raises WorkloadError."""
    if "loader" not in own:
        return LoaderParts.shuffled(make_dataset(spec, needs, own), own.get("collate"))
    parts = own["loader"]
    if not isinstance(parts, LoaderParts):
        name = spec.loader or "loader"
        made = made_by(parts, name, "loader")
        if not isinstance(made, DataLoader):
            wrapped = isinstance(getattr(made, "loader", None), DataLoader)
            advice = "Return the DataLoader inside it; with timm, call create_loader(..., use_prefetcher=False)."
            raise WorkloadError(
                f"The loader {name} is of type {type(made).__name__}. It has to be a torch.utils.data.DataLoader, or a "
                f"function that returns one. {advice if wrapped else 'A dataset alone goes to --dataset.'}"
            )
        parts = LoaderParts.of(made)
    _check_length(parts.dataset, "of the loader")
    return parts


def make_dataset(spec: WorkloadSpec, needs: ModelNeeds, own: Mapping[str, Any]) -> Dataset[Any]:
    """Take the user's own or resolve the name, and check that a DataLoader can shuffle what came of it."""
    if "input_shape" in own:
        return RandomSamples(own["input_shape"])
    dataset = own["dataset"] if "dataset" in own else _make_named(spec, needs)
    if isinstance(dataset, type) or not hasattr(dataset, "__getitem__"):
        dataset = made_by(dataset, spec.dataset, "dataset")
    lacks = [method for method in ("__len__", "__getitem__") if not hasattr(dataset, method)]
    if not isinstance(dataset, IterableDataset) and (isinstance(dataset, Mapping) or lacks):  # a dict is no list
        without = f" without {' and '.join(lacks)}" if lacks else ""
        hint = " Give a function that returns a DataLoader to --loader." if isinstance(dataset, DataLoader) else ""
        raise WorkloadError(
            f"The dataset {spec.dataset} is of type {type(dataset).__name__}{without}. It has to be map-style "
            "(len(dataset) is the number of samples, and dataset[i] returns one) or a "
            f"torch.utils.data.IterableDataset. Return a dataset like that.{hint}"
        )
    _check_length(dataset, spec.dataset)
    return dataset


def num_classes_of(dataset: Dataset[Any]) -> int | None:
    """What the dataset says about its classes. None: nothing."""
    classes = getattr(dataset, "classes", None)
    if isinstance(classes, (list, tuple, dict)) and classes:
        return len(classes)
    number = getattr(dataset, "num_classes", None)
    return number if isinstance(number, int) and number > 0 else None


def _check_length(dataset: Any, name: str) -> None:
    """Raises WorkloadError for a dataset that says it is empty. A stream need not tell."""
    length = None
    if hasattr(dataset, "__len__"):
        sentence = f"len() of the dataset {name} raised {{}}. It has to return the number of samples."
        with suppress(Exception) if isinstance(dataset, IterableDataset) else reported(sentence):
            length = len(dataset)
    if length is not None and length < 1:
        raise WorkloadError(
            f"The dataset {name} is empty: len() is {length}. Point it to a folder or split that holds samples."
        )


def _make_named(spec: WorkloadSpec, needs: ModelNeeds) -> Dataset[Any]:
    vision = torchvision_for("dataset", spec.dataset)
    datasets, hidden = vision.datasets, {"VisionDataset", "wrap_dataset_for_transforms_v2"}
    names = [name for name in datasets.__all__ if name not in hidden]
    if spec.dataset not in names:
        raise unknown_name("dataset", spec.dataset, names, "torchvision.datasets")
    if spec.dataset == "FakeData":
        shape, num_classes = (3, needs.image_size, needs.image_size), spec.num_classes or needs.num_classes
        return datasets.FakeData(NUM_FAKE_SAMPLES, shape, num_classes, vision.transforms.ToTensor())  # type: ignore[no-any-return]
    cls = getattr(datasets, spec.dataset)
    if spec.data_root is None:
        raise WorkloadError(
            f"The dataset {spec.dataset} is read from a folder, and none was given. Add --data-root FOLDER."
        )
    root = Path(spec.data_root).expanduser()
    if spec.dataset == "ImageFolder" and (root / "train").is_dir():
        root /= "train"  # the usual layout has train/ and val/ inside, which are not two classes
    is_gray = needs.build is None and issubclass(cls, datasets.MNIST)
    size = spec.image_size if is_gray else needs.image_size
    arguments = {"root": str(root), "transform": training_transform(size, is_gray=is_gray)}
    if not root.is_dir():
        raise WorkloadError(
            f"--data-root {spec.data_root} does not exist in {Path.cwd()}, or is not a folder. The dataset "
            f"{spec.dataset} reads its files from it, and loadtune downloads nothing."
        )
    with reported(
        f"The dataset {spec.dataset} could not be read from {spec.data_root}: {{}}. loadtune downloads nothing. Put "
        "its files into --data-root as torchvision's documentation of the class says, or write a function that "
        "returns the dataset, and name it: --dataset FILE.py:factory.",
        traced=False,
    ):
        return cls(**arguments)  # type: ignore[no-any-return]


NUM_FAKE_SAMPLES = 1_281_167  # as ImageNet's training set
NUM_RANDOM_SAMPLES = 1 << 40  # above any batch that any memory holds: a shape alone does not bound the batch size


@dataclass(eq=False)
class RandomSamples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random float32 inputs of one shape. Targets are class indices, of one class until the model's output was seen."""

    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...] = ()
    """(*d), for logits (B, K, *d)."""
    num_classes: int = 0
    """K. 0: not known yet."""

    def __len__(self) -> int:
        return NUM_RANDOM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        inputs = torch.rand(self.input_shape, generator=generator)
        return inputs, torch.randint(0, max(1, self.num_classes), self.target_shape, generator=generator)
