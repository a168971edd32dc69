"""What is loaded, by name or as an object → `LoaderParts`, or a `WorkloadError` that says what to do."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torchvision.datasets
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision import transforms

from loadtune.errors import WorkloadError
from loadtune.records import WorkloadSpec, is_import_path
from loadtune.workload.factories import call, call_factory, find_function, unknown_name
from loadtune.workload.fake import RandomSamples, make_fake
from loadtune.workload.live import LiveParts
from loadtune.workload.loaders import LoaderParts
from loadtune.workload.models import ModelNeeds
from loadtune.workload.samples import reads_at_once
from loadtune.workload.user_code import all_lines, last_line, user_traceback

# ImageNet's channel statistics, which torchvision's own training recipes normalise with.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ToRgb:
    """Three channels, whatever the file held. A class, not a lambda: workers started by spawn have to pickle it."""

    keeps_size = True

    def __call__(self, image: Any) -> Any:
        return image.convert("RGB") if hasattr(image, "convert") else image


def training_transform(image_size: int) -> transforms.Compose:
    """The augmentation of torchvision's reference recipe: crop, flip, tensor, normalise."""
    return transforms.Compose(
        [
            ToRgb(),
            transforms.RandomResizedCrop(image_size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(_MEAN, _STD),
        ]
    )


def make_parts(spec: WorkloadSpec, needs: ModelNeeds, live: LiveParts) -> LoaderParts:
    """The user's own loader, or a dataset that is read in random order. Raises WorkloadError."""
    if isinstance(live.loader, LoaderParts):
        parts = live.loader
    elif live.loader is not None or spec.loader is not None:
        name = spec.loader or "loader"
        made = call_factory(name, "loader") if live.loader is None else call(live.loader, name, "loader")
        if not isinstance(made, DataLoader):
            raise WorkloadError(
                f"The factory of the loader {name} returned a {type(made).__name__}. It has to return a "
                "torch.utils.data.DataLoader. A dataset alone goes to --dataset."
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
        return RandomSamples(live.input_shape, live.output_shape)
    if live.dataset is not None:
        dataset = live.dataset if live.dataset_is_made else call(live.dataset, spec.dataset, "dataset")
    elif is_import_path(spec.dataset):
        dataset = call_factory(spec.dataset, "dataset")
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
    if reads_at_once(dataset):
        lacks = [method for method in lacks if method != "__getitem__"]
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
    parameters = _parameters(cls)
    arguments = _arguments(spec, needs, parameters)
    _refuse_unanswered(spec, cls, arguments)
    if spec.data_root is not None and not _data_root(spec).is_dir():
        raise _no_folder(spec)
    try:
        return cls(**arguments)  # type: ignore[no-any-return]
    except Exception as error:
        raise WorkloadError(
            f"The dataset {spec.dataset} could not be read from {spec.data_root}: {all_lines(error)}. loadtune "
            "downloads nothing. Put its files there as torchvision's documentation of the class says, or give "
            "--data-root the folder that holds them."
        ) from error


def _no_folder(spec: WorkloadSpec) -> WorkloadError:
    here = "" if Path(str(spec.data_root)).expanduser().is_absolute() else f" in {Path.cwd()}"
    return WorkloadError(
        f"--data-root {spec.data_root} does not exist{here}, or is not a folder. The dataset {spec.dataset} reads its "
        "files from it, and loadtune downloads nothing. Give --data-root the folder that holds them."
    )


def _find_class(name: str) -> Any:
    hidden = {"FakeData", "VisionDataset", "wrap_dataset_for_transforms_v2"}
    names = ["FakeData", *(n for n in torchvision.datasets.__all__ if n not in hidden)]
    if name not in names:
        raise unknown_name("dataset", name, names, "torchvision.datasets")
    return getattr(torchvision.datasets, name)


def _parameters(cls: Any) -> dict[str, inspect.Parameter]:
    """Of the constructor, and where it takes ``**kwargs`` of the base classes' it hands them to."""
    found: dict[str, inspect.Parameter] = {}
    for base in inspect.getmro(cls):
        if "__init__" not in vars(base):
            continue
        own = inspect.signature(vars(base)["__init__"]).parameters
        found = {n: p for n, p in own.items() if n != "self"} | found
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in own.values()):
            break
    return found


def _arguments(spec: WorkloadSpec, needs: ModelNeeds, parameters: dict[str, inspect.Parameter]) -> dict[str, Any]:
    if "transform" not in parameters:
        raise WorkloadError(
            f"The dataset {spec.dataset} takes no transform, so its samples are not (image, class index). Write a "
            "function that returns a dataset of such samples, and name it: --dataset pkg.mod:factory."
        )
    arguments: dict[str, Any] = {"transform": training_transform(needs.image_size)}
    if "root" in parameters:
        arguments["root"] = str(_data_root(spec))
    return arguments


def _data_root(spec: WorkloadSpec) -> Path:
    if spec.data_root is None:
        raise WorkloadError(
            f"The dataset {spec.dataset} is read from a folder, and none was given. Add --data-root FOLDER."
        )
    root = Path(spec.data_root).expanduser()
    train = root / "train"
    # The usual layout of an image folder has train/ and val/ inside, which are not two classes.
    return train if spec.dataset == "ImageFolder" and train.is_dir() else root


def _refuse_unanswered(spec: WorkloadSpec, cls: Any, arguments: dict[str, Any]) -> None:
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    own = {n: p for n, p in inspect.signature(cls.__init__).parameters.items() if n != "self" and p.kind in plain}
    missing = [n for n, p in own.items() if p.default is inspect.Parameter.empty and n not in arguments]
    if missing:
        raise WorkloadError(
            f"The dataset {spec.dataset} also needs {', '.join(missing)}, for which there is no option. Write a "
            "function that builds the dataset, and name it: --dataset pkg.mod:factory."
        )
