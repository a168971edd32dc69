"""Images decoded to tensors: samples stay what they were, whoever opens the files; wrong ways are refused."""

import pickle
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from remedy_rig import LOADER, apart, delivered, image_folder, job_with, lines_of, pasted_batch, trained_on, way_of
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import io
from torchvision import transforms as v1
from torchvision.transforms import functional, v2
from torchvision.transforms.v2 import functional as v2_functional
from workload_rig import workload_of

from loadtune.changes import vision
from loadtune.changes.trial import Ways, examine
from loadtune.changes.way import Changed, How
from loadtune.records.loading import Examined

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEVEL = 1 / 255 / min(STD)
"""One step of 8 bits, once it is normalised."""


def plain() -> list[Any]:
    return [v1.ToTensor(), v1.Normalize(MEAN, STD)]


TRANSFORMS: dict[str, Any] = {
    "v1": lambda: v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), *plain()]),
    "v2": lambda: v2.Compose(
        [v2.RandomResizedCrop(24), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    ),
    "colours": lambda: v1.Compose([v1.Resize((24, 24)), v1.ColorJitter(0.2, 0.2, 0.2), *plain()]),
    "asked for its size": lambda: v1.Compose([HalfCrop(), v1.Resize((24, 24)), *plain()]),
    "one of the user's own": lambda: v1.Compose([v1.Resize((24, 24)), Turn(), *plain()]),
}


class Turn:
    def __call__(self, image: Any) -> Any:
        return functional.rotate(image, 90)


class HalfCrop:
    def __call__(self, image: Any) -> Any:
        width, height = functional.get_image_size(image)
        return functional.crop(image, 0, 0, height // 2, width // 2)


class Own(Dataset[Any]):
    """Opens its files itself."""

    def __init__(self, folder: Any, augment: Any) -> None:
        self.paths, self.augment = [path for path, _ in folder.samples], augment

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.augment(Image.open(self.paths[index]).convert("RGB")), index


def examined(dataset: Any, *names: str) -> Examined:
    *before, name = names
    return examine(Ways(way_of(workload_of(dataset))), before, name)


@pytest.mark.parametrize("kind", ["folder", "subset", "own"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_pasted_lines_do_what_was_tried_and_samples_hardly_change(name: str, kind: str, tmp_path: Path) -> None:
    folder = image_folder(tmp_path, TRANSFORMS[name]())
    dataset: Any = {
        "folder": folder,
        "subset": Subset(folder, [4, 2, 0, 1, 3, 5]),
        "own": Own(folder, folder.transform),
    }
    job = workload_of(dataset[kind])
    before, tried = (trained_on(each) for each in (job, job_with(job, "tensor_decoding")))
    assert apart(before, tried) < 8 * LEVEL
    lines = lines_of("tensor_decoding", job)
    assert ("before[1]" in lines) == (name == "one of the user's own")
    names: dict[str, Any] = {"dataset": job.dataset}
    exec(lines, names)
    if kind == "own":  # what the lines leave to the user
        functional_open = names["read"]
        Own.__getitem__ = lambda self, at: (self.augment(functional_open(self.paths[at])), at)
    assert apart(tried, pasted_batch(job.dataset)) < 1e-5


@pytest.fixture(autouse=True)
def own_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "__getitem__", Own.__getitem__)


def test_lines_of_two_changes_are_pasted_one_after_the_other(tmp_path: Path) -> None:
    job = workload_of(image_folder(tmp_path, TRANSFORMS["v1"]()))
    expected = trained_on(job_with(job, "tensor_decoding", "uint8_transfer"))
    names: dict[str, Any] = {"dataset": job.dataset, "torch": torch, "device": "cpu"}
    exec(lines_of("tensor_decoding", job), names)
    first, _, loop = lines_of(
        "uint8_transfer", workload_of(image_folder(tmp_path, TRANSFORMS["v1"]())), "tensor_decoding"
    ).partition("# in the training loop")
    exec(first, names)
    images, targets = pasted_batch(job.dataset)
    assert images.dtype == torch.uint8
    exec(f"#{loop}", names | {"images": images}, found := dict[str, Any]())
    assert apart(expected, (found["images"], targets)) < 1e-5


def test_what_is_replaced_is_put_back_and_nothing_of_the_users_is_changed(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, TRANSFORMS["v1"]())
    had = as_they_are(folder)
    seen = examined(folder, "uint8_transfer", "tensor_decoding")
    assert seen.refused is None
    assert seen.values.mean < LEVEL / 10
    made = job_with(workload_of(folder), "tensor_decoding", "uint8_transfer").dataset
    with pytest.raises(IndexError):
        made[1000]
    assert had == as_they_are(folder)


def as_they_are(folder: Any) -> tuple[Any, ...]:
    libraries = Image.open, functional.resized_crop, functional.to_tensor, v2.Normalize.transform
    return (*libraries, folder.transform, folder.loader)


def test_other_processes_load_with_the_change_too(tmp_path: Path) -> None:
    job = job_with(workload_of(image_folder(tmp_path, TRANSFORMS["v1"]())), "uint8_transfer")
    loader = job.loader.make(replace(LOADER, num_workers=1), sampler=range(6), multiprocessing_context="spawn")
    assert {images.dtype for images, _ in loader} == {torch.uint8}
    assert delivered(job)[0].dtype == pickle.loads(pickle.dumps(job.dataset))[0][0].dtype


def odd_files(folder: Path) -> list[Path]:
    """Grey, CMYK, turned by EXIF, progressive, a palette, 16 bits, cut off, no image."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 30, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x112] = 6
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "grey.jpg": (picture.convert("L"), {}),
        "cmyk.jpg": (picture.convert("CMYK"), {}),
        "turned.jpg": (picture, {"exif": exif}),
        "progressive.jpg": (picture, {"progressive": True}),
        "palette.png": (picture.convert("P"), {}),
        "bits.png": (Image.fromarray(np.asarray(picture)[..., 0].astype(np.uint16) * 257), {}),
        "picture.bmp": (picture, {}),
    }
    for name, (made, given) in kinds.items():
        made.save(folder / name, **given)
    (folder / "cut.jpg").write_bytes((folder / "turned.jpg").read_bytes()[:-300])
    (folder / "none.jpg").write_text("no image")
    return [folder / name for name in (*kinds, "cut.jpg", "none.jpg")]


class Files(Dataset[Any]):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return functional.pil_to_tensor(Image.open(self.paths[index]).convert("RGB"))


def test_files_of_all_kinds_are_read_as_before_and_broken_ones_fail_as_before(tmp_path: Path) -> None:
    before = Files(odd_files(tmp_path))
    changed = Changed(before, How(tensors=True, of_images=vision.replacements))
    for index, path in enumerate(before.paths[:-2]):
        assert torch.equal(before[index], changed[index]), path.name
    for index in (-1, -2):
        said = list[str]()
        for dataset in (before, changed):
            with pytest.raises(OSError, match="image file") as error:
                dataset[index]
            said.append(str(error.value))
        assert said[0] == said[1]


def smooth(folder: Path) -> Any:
    """Grey pictures without fine lines, all alike: values of samples show none of the errors."""
    (folder / "class0").mkdir()
    grey = np.tile(np.linspace(100, 140, 48).astype(np.uint8)[:, None, None], (1, 48, 3))
    for at in range(4):
        Image.fromarray(grey).save(folder / "class0" / f"{at}.png")
    from torchvision.datasets import ImageFolder

    return ImageFolder(str(folder), v1.Compose([v1.Resize((24, 24)), *plain()]))


def flipped(before: Any) -> Any:
    return lambda *given: before(*given).flip(0)


def turned(before: Any) -> Any:
    def read(data: Any, mode: Any) -> Any:
        image = Image.open(BytesIO(data.numpy().tobytes())) if isinstance(data, torch.Tensor) else Image.open(data)
        made = before(data, mode)
        return made.rot90(dims=(-2, -1)) if image.getexif().get(0x112) == 6 else made

    return read


def aliased(before: Any) -> Any:
    return lambda image, size, *_, **given: before(image, size, antialias=False)


def unscaled(before: Any) -> Any:
    return lambda whole, as_bytes, pic: pic.float() if isinstance(pic, torch.Tensor) else before(whole, as_bytes, pic)


WRONG: dict[str, tuple[Any, str, Any]] = {
    "blue for red": (io, "decode_image", flipped),
    "turned by EXIF": (io, "decode_image", turned),
    "no antialiasing": (v2_functional, "resize", aliased),
    "0 to 255 for 0 to 1": (vision, "_to_tensor", unscaled),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_change_is_refused_though_the_samples_do_not_show_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = smooth(tmp_path)
    assert examined(folder, "tensor_decoding").refused is None
    owner, attribute, wrong = WRONG[name]
    monkeypatch.setattr(owner, attribute, wrong(getattr(owner, attribute)))
    refused = examined(folder, "tensor_decoding").refused
    assert "would" in refused, refused


class Nested(Dataset[Any]):
    """A transform that the lines to paste would not reach."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder
        inner = v1.Compose([v1.Resize((24, 24)), v1.ToTensor()])
        self.augment = v1.Compose([v1.RandomHorizontalFlip(), v1.Lambda(lambda image: inner(image))])

    def __len__(self) -> int:
        return len(self.folder.samples)

    def __getitem__(self, index: int) -> Any:
        return self.augment(Image.open(self.folder.samples[index][0]).convert("RGB")), index


def test_lines_that_would_not_do_what_was_tried_give_way_to_the_pattern(tmp_path: Path) -> None:
    seen = examined(Nested(image_folder(tmp_path, None)), "tensor_decoding")
    assert seen.refused is None
    assert "def read(path)" in seen.code
    assert "dataset." not in seen.code


def test_parts_of_a_list_are_copied_so_that_other_splits_stay(tmp_path: Path) -> None:
    both = ConcatDataset([image_folder(tmp_path, TRANSFORMS["v1"]()) for _ in range(2)])
    train, other = Subset(both, range(6)), Subset(both, range(6, 12))
    before = [each.loader for each in other.dataset.datasets]
    exec(examined(train, "tensor_decoding").code, {"dataset": train})
    assert [each.loader for each in other.dataset.datasets] == before
    assert all(each.loader.__name__ == "read" for each in train.dataset.datasets)
