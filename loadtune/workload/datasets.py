"""What is loaded, by name or as an object → `LoaderParts`, or a `WorkloadError` that says what to do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torchvision.datasets
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision import transforms

from loadtune.errors import WorkloadError
from loadtune.records.config import WorkloadSpec, is_import_path
from loadtune.workload.live import LiveParts
from loadtune.workload.loaders import LoaderParts
from loadtune.workload.models import ModelNeeds
from loadtune.workload.user_code import call, find_function, last_line, made_by, unknown_name, user_traceback

# ImageNet's channel statistics, which torchvision's own training recipes normalise with.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ToRgb:
    """Three channels, whatever the file held. A class, not a lambda: workers started by spawn have to pickle it."""

    def __call__(self, image: Any) -> Any:
        return image.convert("RGB") if hasattr(image, "convert") else image


def training_transform(image_size: int | None, *, is_gray: bool = False) -> transforms.Compose:
    """The augmentation of torchvision's reference recipe: crop, flip, tensor, normalise. Of gray images one channel is
    kept, and without ``image_size`` their size."""
    if is_gray:
        crop = [] if image_size is None else [transforms.RandomResizedCrop(image_size)]
        return transforms.Compose([*crop, transforms.ToTensor()])
    return transforms.Compose(
        [
            ToRgb(),
            transforms.RandomResizedCrop(image_size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(_MEAN, _STD),
        ]
    )


def transform_text(dataset: Any) -> str:
    """``ToRgb, RandomResizedCrop, …``: what a dataset that was named brings."""
    transform = getattr(dataset, "transform", None)
    return ", ".join(type(step).__name__ for step in getattr(transform, "transforms", [transform]))


def make_parts(spec: WorkloadSpec, needs: ModelNeeds, live: LiveParts) -> LoaderParts:
    """The user's own loader, or a dataset that is read in random order. Raises WorkloadError."""
    if isinstance(live.loader, LoaderParts):
        parts = live.loader
    elif live.loader is not None or spec.loader is not None:
        name = spec.loader or "loader"
        made = made_by(name, "loader") if live.loader is None else call(live.loader, name, "loader")
        if not isinstance(made, DataLoader):
            wrapped = isinstance(getattr(made, "loader", None), DataLoader)
            advice = "Return the DataLoader inside it; with timm, call create_loader(..., use_prefetcher=False)."
            raise WorkloadError(
                f"The loader {name} is a {type(made).__name__}. It has to be a torch.utils.data.DataLoader, or a "
                f"function that returns one. {advice if wrapped else 'A dataset alone goes to --dataset.'}"
            )
        parts = LoaderParts.of(made)
    else:
        collate = live.collate or (None if spec.collate is None else find_function(spec.collate, "collate function"))
        return LoaderParts.shuffled(make_dataset(spec, needs, live), collate)
    _check_length(parts.dataset, "of the loader")
    return parts


def make_dataset(spec: WorkloadSpec, needs: ModelNeeds, live: LiveParts) -> Dataset[Any]:
    """Take the caller's object or resolve the name, and check that a DataLoader can shuffle what came of it."""
    if live.input_shape is not None:
        return RandomSamples(live.input_shape)
    if live.dataset is not None:
        dataset = live.dataset if live.dataset_is_made else call(live.dataset, spec.dataset, "dataset")
    elif is_import_path(spec.dataset):
        dataset = made_by(spec.dataset, "dataset")
    elif spec.dataset == "FakeData":
        dataset = make_fake(needs, spec.num_classes or needs.num_classes)
    else:
        dataset = _make_named(spec, needs)
    return _checked(dataset, spec.dataset)


def num_classes_of(dataset: Dataset[Any]) -> int | None:
    """What the dataset says about its classes. None: nothing."""
    classes = getattr(dataset, "classes", None)
    if isinstance(classes, (list, tuple, dict)) and classes:
        return len(classes)
    number = getattr(dataset, "num_classes", None)
    return number if isinstance(number, int) and number > 0 else None


def _checked(dataset: Any, name: str) -> Dataset[Any]:
    if isinstance(dataset, IterableDataset):
        _check_length(dataset, name)
        return dataset
    lacks = [method for method in ("__len__", "__getitem__") if not hasattr(dataset, method)]
    if isinstance(dataset, Mapping) or lacks:  # a dict is no list of samples
        without = f" without {' and '.join(lacks)}" if lacks else ""
        hint = " Give a function that returns a DataLoader to --loader." if isinstance(dataset, DataLoader) else ""
        raise WorkloadError(
            f"The dataset {name} is a {type(dataset).__name__}{without}. It has to be map-style (len(dataset) is the "
            "number of samples, and dataset[i] returns one) or a torch.utils.data.IterableDataset. Return a dataset "
            f"like that.{hint}"
        )
    _check_length(dataset, name)
    return dataset  # type: ignore[no-any-return]  # duck-typed: DataLoader asks for no base class


def _check_length(dataset: Any, name: str) -> None:
    """Raises WorkloadError for a dataset that says it is empty."""
    if not hasattr(dataset, "__len__"):
        return
    try:
        length = len(dataset)
    except Exception as error:
        if isinstance(dataset, IterableDataset):
            return  # a stream need not tell
        raise WorkloadError(
            f"len() of the dataset {name} raised {last_line(error)}. It has to return the number of samples.",
            user_traceback(error),
        ) from error
    if length < 1:
        raise WorkloadError(
            f"The dataset {name} is empty: len() is {length}. Point it to a folder or split that holds samples."
        )


def _make_named(spec: WorkloadSpec, needs: ModelNeeds) -> Dataset[Any]:
    cls = _find_class(spec.dataset)
    if spec.data_root is None:
        raise WorkloadError(
            f"The dataset {spec.dataset} is read from a folder, and none was given. Add --data-root FOLDER."
        )
    root = Path(spec.data_root).expanduser()
    if spec.dataset == "ImageFolder" and (root / "train").is_dir():
        root /= "train"  # the usual layout has train/ and val/ inside, which are not two classes
    is_gray = needs.is_own and issubclass(cls, torchvision.datasets.MNIST)
    size = spec.image_size if is_gray else needs.image_size
    arguments = {"root": str(root), "transform": training_transform(size, is_gray=is_gray)}
    if not root.is_dir():
        raise WorkloadError(
            f"--data-root {spec.data_root} does not exist in {Path.cwd()}, or is not a folder. The dataset "
            f"{spec.dataset} reads its files from it, and loadtune downloads nothing."
        )
    try:
        return cls(**arguments)  # type: ignore[no-any-return]
    except Exception as error:
        raise WorkloadError(
            f"The dataset {spec.dataset} could not be read from {spec.data_root}: {last_line(error)}. loadtune "
            "downloads nothing. Put its files into --data-root as torchvision's documentation of the class says, or "
            "write a function that returns the dataset, and name it: --dataset FILE.py:factory."
        ) from error


def _find_class(name: str) -> Any:
    hidden = {"FakeData", "VisionDataset", "wrap_dataset_for_transforms_v2"}
    names = ["FakeData", *(n for n in torchvision.datasets.__all__ if n not in hidden)]
    if name not in names:
        raise unknown_name("dataset", name, names, "torchvision.datasets")
    return getattr(torchvision.datasets, name)


# As many as ImageNet's training set, so that no batch size and no run length meets the end of an epoch early.
NUM_FAKE_SAMPLES = 1_281_167
# Above any batch that any memory holds: a shape alone does not bound the batch size.
NUM_RANDOM_SAMPLES = 1 << 40


class RandomSamples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random float32 inputs of one shape. Targets are class indices, of one class until the model's output was seen."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        self.input_shape = input_shape
        self.target_shape: tuple[int, ...] = ()
        self.num_classes = 0
        """0: not known yet."""

    def take_targets_of(self, logits: torch.Tensor) -> None:
        """Bring targets that train logits (B, K, *d): (*d) class indices below K."""
        self.num_classes = logits.shape[1]
        self.target_shape = tuple(logits.shape[2:])

    def __len__(self) -> int:
        return NUM_RANDOM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        inputs = torch.rand(self.input_shape, generator=generator)
        return inputs, torch.randint(0, max(1, self.num_classes), self.target_shape, generator=generator)


def make_fake(needs: ModelNeeds, num_classes: int) -> Dataset[Any]:
    """Images of the size the model was made for."""
    size = needs.image_size
    return torchvision.datasets.FakeData(  # type: ignore[no-any-return]
        size=NUM_FAKE_SAMPLES, image_size=(3, size, size), num_classes=num_classes, transform=transforms.ToTensor()
    )
