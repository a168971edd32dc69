"""Batches sent to the GPU as fewer bytes, or ahead: what is trained on stays what it was."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from remedy_rig import (
    Table,
    apart,
    delivered,
    equal,
    fake_images,
    job_with,
    lines_of,
    parts_of,
    pasted_batch,
    trained_on,
)
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate
from torchvision import transforms as v1
from torchvision.datasets.vision import StandardTransform
from torchvision.transforms import v2
from workload_rig import workload_of

from loadtune.changes import NotApplicableError

ERASING = v1.Compose([v1.ToTensor(), v1.RandomErasing(p=1.0)])

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

ROUNDING = 1e-6

TRANSFORMS: dict[str, Callable[[], Any]] = {
    "ToTensor alone": v1.ToTensor,
    "ToTensor": lambda: v1.Compose([v1.RandomCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()]),
    "ToTensor, Normalize": lambda: v1.Compose([v1.RandomResizedCrop(24), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "ConvertImageDtype": lambda: v1.Compose([v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]),
    "v2": lambda: v2.Compose(
        [
            v2.RandomResizedCrop(24),
            v2.ToImage(),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    ),
    "one number for all channels": lambda: v1.Compose([v1.ToTensor(), v1.Normalize(0.5, 0.25)]),
}


class Pictures(Dataset[Any]):
    """Samples of any kind, transformed by an attribute `transform`."""

    def __init__(self, samples: list[Any], transform: Any) -> None:
        self.samples, self.transform = samples, transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.samples[index]), index


class Named(Pictures):
    def __getitem__(self, index: int) -> Any:
        return {"image": self.transform(self.samples[index]), "label": index}


class BothTransforms(Pictures):
    """Uses what torchvision's base class keeps in `transforms`, as OxfordIIITPet does."""

    def __init__(self, samples: list[Any], transform: Any) -> None:
        super().__init__(samples, transform)
        self.transforms = StandardTransform(transform, None)

    def __getitem__(self, index: int) -> Any:
        return self.transforms(self.samples[index], index)


def arrays() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (32, 32, 3), generator=generator).to(torch.uint8).numpy() for _ in range(8)]


def pasted(code: str, dataset: Any, **others: Any) -> Any:
    """The batch that is trained on, after these lines were pasted: those of the dataset, then those of the loop."""
    before, _, after = code.partition("# in the training loop")
    names: dict[str, Any] = {"torch": torch, "dataset": dataset, "device": "cpu", **others}
    exec(before, names)
    images, targets = pasted_batch(dataset)
    assert images.dtype == torch.uint8
    names["images"] = images
    exec(f"#{after}", names)
    return names["images"], targets


@pytest.mark.parametrize("name", TRANSFORMS)
def test_bytes_travel_and_the_same_floats_are_trained_on(name: str) -> None:
    dataset = fake_images(TRANSFORMS[name]())
    plain = workload_of(dataset)
    changed = job_with(plain, "uint8_transfer")
    images, before = delivered(changed)[0], delivered(plain)[0]
    assert images.dtype == torch.uint8
    assert 4 * images.nbytes == before.nbytes
    one, other = trained_on(plain), trained_on(changed)
    assert other[0].dtype == torch.float32
    assert equal(one, other) if name.startswith("ToTensor") else apart(one, other) < ROUNDING
    assert apart(one, trained_on(plain, seed=1)) > 0.1 or not _is_random(dataset.transform)
    expected = pasted_batch(dataset)
    assert apart(expected, pasted(lines_of("uint8_transfer", plain), dataset)) < ROUNDING


def test_behind_subsets_the_inner_dataset_is_changed_and_the_lines_reach_it() -> None:
    inner = fake_images(TRANSFORMS["ToTensor, Normalize"]())
    dataset = Subset(Subset(inner, range(1, 12)), [3, 1, 0, 5, 2, 7])
    job = workload_of(dataset)
    plain = trained_on(job)
    changed = job_with(job, "uint8_transfer")
    assert delivered(changed)[0].dtype == torch.uint8
    assert equal(plain, trained_on(changed))
    code = lines_of("uint8_transfer", job)
    assert "dataset.dataset.dataset.transform = " in code
    other = Subset(inner, range(4))
    validated = pasted_batch(other)
    assert equal(pasted_batch(dataset), pasted(code, dataset))
    assert equal(pasted_batch(other), validated), "another split of the same dataset"


@pytest.mark.parametrize("kind", [Pictures, BothTransforms])
def test_pictures_that_are_arrays(kind: type[Pictures]) -> None:
    dataset = kind(arrays(), v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)]))
    job = workload_of(dataset)
    assert equal(trained_on(job), trained_on(job_with(job, "uint8_transfer")))
    plain = pasted_batch(dataset)
    assert equal(plain, pasted(lines_of("uint8_transfer", job), dataset))


def test_the_users_dataset_stays_as_it_was() -> None:
    transform = TRANSFORMS["ToTensor, Normalize"]()
    inner = fake_images(transform)
    dataset = Subset(inner, range(8))
    steps, attributes = list(transform.transforms), copy.copy(vars(inner))
    job = workload_of(dataset)
    before = trained_on(job)
    trained_on(job_with(job, "uint8_transfer"))
    assert vars(inner) == attributes
    assert transform.transforms == steps
    assert dataset.dataset is inner
    assert equal(before, trained_on(job))


ENDING = "does not end in ToTensor"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "erasing after ToTensor": (lambda: fake_images(ERASING), ENDING),
    "no scaling": (lambda: fake_images(v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32)])), ENDING),
    "half": (lambda: fake_images(v2.Compose([v2.ToImage(), v2.ToDtype(torch.float16, scale=True)])), ENDING),
    "no step": (lambda: Pictures([torch.rand(3, 8, 8)] * 4, v1.Compose([])), ENDING),
    "no transform": (lambda: [(torch.rand(3, 8, 8), 0)] * 4, "no transform in an attribute"),
    "floats from the start": (lambda: Pictures([a.astype("float32") for a in arrays()], v1.ToTensor()), "never bytes"),
    "no pair": (lambda: Named(arrays(), v1.ToTensor()), "no pair"),  # the pasted lines could not name its images
}


@pytest.mark.parametrize(("dataset", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_images_that_cannot_be_sent_as_bytes(dataset: Callable[[], Any], reason: str) -> None:
    with pytest.raises(NotApplicableError, match=reason):
        job_with(workload_of(dataset()), "uint8_transfer")


def _is_random(transform: Any) -> bool:
    return any("Random" in type(step).__name__ for step in getattr(transform, "transforms", []))


HALF_ROUNDING = 2**-11
"""Relative, of 16-bit floats."""


def doubled(samples: list[Any]) -> Any:
    """A collate function of the user's own."""
    inputs, targets = default_collate(samples)
    return 2 * inputs, targets


def pasted_half(code: str, dataset: Any, **others: Any) -> Any:
    """The batch that is trained on, after these lines were pasted."""
    before, _, after = code.partition("# DataLoader(")
    names: dict[str, Any] = {"torch": torch, "dataset": dataset, **others}
    exec(before, names)
    inputs, targets = pasted_batch(dataset, collate_fn=names["collate_halved"])
    assert inputs.dtype == torch.float16
    names["inputs"] = inputs
    exec(f"#{after}", names)
    return names["inputs"], targets


def test_half_of_the_bytes_travel_and_rounded_floats_are_trained_on() -> None:
    dataset = fake_images(ERASING)
    plain = workload_of(dataset)
    changed = job_with(plain, "half_transfer")
    assert 2 * delivered(changed)[0].nbytes == delivered(plain)[0].nbytes
    one, other = trained_on(plain), trained_on(changed)
    assert other[0].dtype == torch.float32
    assert 0.0 < apart(one, other) <= HALF_ROUNDING  # values are at most 1
    assert delivered(plain)[0].dtype == torch.float32, "the user's own loader stays as it was"
    assert apart(one, pasted_half(lines_of("half_transfer", plain), dataset)) <= HALF_ROUNDING, "they need no loader"


def test_targets_are_not_rounded() -> None:
    """Floats too, as regression has them."""
    inputs, targets = torch.rand(8, 4), torch.rand(8)
    changed = job_with(workload_of(TensorDataset(inputs, targets)), "half_transfer")
    assert torch.equal(trained_on(changed, range(8))[1], targets)


def test_the_users_collate_function_is_called_first() -> None:
    loader = DataLoader(Table(), batch_size=4, collate_fn=doubled)
    plain = workload_of(Table(), **parts_of(loader))
    changed = job_with(plain, "half_transfer")
    assert torch.equal(trained_on(changed)[0], 2 * Table()[range(6)][0])
    assert loader.collate_fn is doubled


@pytest.mark.parametrize("own", [None, doubled, lambda samples: doubled(samples)], ids=["none", "own", "own lambda"])
def test_the_pasted_lines_train_on_the_same_rounded_inputs(own: Any) -> None:
    dataset = Table()
    loader = DataLoader(dataset, batch_size=6, collate_fn=own)
    job = workload_of(dataset, **parts_of(loader))
    code = lines_of("half_transfer", job)
    assert apart(trained_on(job_with(job, "half_transfer")), pasted_half(code, dataset, loader=loader)) == 0.0


def rows(inputs: torch.Tensor) -> Any:
    return TensorDataset(inputs, torch.zeros(len(inputs), dtype=torch.int64))


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (rows(torch.full((4, 2), 1e6)), "too large"),
        (rows(torch.rand(4, 2).double()), "no pair"),
        (rows(torch.arange(8).reshape(4, 2)), "no pair"),
        ([{"x": torch.rand(2), "y": 0}] * 4, "no pair"),
        ([(torch.rand(2), 0, 1)] * 4, "no pair"),
    ],
)
def test_inputs_that_cannot_be_halved(dataset: Any, reason: str) -> None:
    with pytest.raises(NotApplicableError, match=reason):
        job_with(workload_of(dataset), "half_transfer")


class Stream:
    """Stands for a CUDA stream: counts copies on it, and keeps which of them it waited for."""

    def __init__(self) -> None:
        self.num_copied, self.waited = 0, set[int]()

    def record_event(self) -> int:
        self.num_copied += 1
        return self.num_copied

    def wait_event(self, event: int) -> None:
        self.waited.add(event)


class Cuda:
    """Stands for `torch.cuda`."""

    def __init__(self) -> None:
        self.main, self.side = Stream(), Stream()
        self.now = self.main

    def Stream(self, device: str) -> Stream:
        return self.side

    def current_stream(self) -> Stream:
        return self.now

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.now = stream
        yield
        self.now = self.main


class Part:
    """Stands for a tensor in page-locked memory."""

    def __init__(self, number: int, cuda: Cuda, where: str = "cpu") -> None:
        self.number, self.cuda, self.where = number, cuda, where
        self.kept_for: list[Stream] = []

    def to(self, device: str, non_blocking: bool = False) -> "Part":
        assert non_blocking
        assert self.cuda.now is self.cuda.side, "a copy on the stream that computes does not overlap"
        return Part(self.number, self.cuda, device)

    def record_stream(self, stream: Stream) -> None:
        self.kept_for.append(stream)


def copied_ahead(cuda: Cuda, num: int) -> Iterator[Any]:
    """Batches by the pasted lines, without the loop at their end."""
    torch_of_user = type("torch", (), {"cuda": cuda})
    definitions, loop, _ = lines_of("copy_ahead", workload_of(Table())).partition("for inputs, targets in")
    assert loop
    names: dict[str, Any] = {"torch": torch_of_user}
    exec(definitions, names)
    loader = ([Part(at, cuda), Part(-at, cuda)] for at in range(1, num + 1))
    return names["copied_ahead"](loader, "cuda")  # type: ignore[no-any-return]


@pytest.mark.parametrize("num", [0, 1, 2, 7])
def test_the_pasted_lines_copy_every_batch_ahead_in_order_and_wait_for_the_copy_of_their_own(num: int) -> None:
    cuda, seen = Cuda(), list[tuple[int, int]]()
    for number, (inputs, targets) in enumerate(copied_ahead(cuda, num), start=1):
        seen.append((inputs.number, targets.number))
        assert cuda.now is cuda.main
        assert cuda.main.waited == set(range(1, number + 1))
        assert (cuda.main.num_copied, cuda.side.num_copied) == (0, min(num, number + 1))
        assert (inputs.where, targets.where) == ("cuda", "cuda")
        assert inputs.kept_for == targets.kept_for == [cuda.main], "or its memory is reused while it is trained on"
    assert seen == [(at, -at) for at in range(1, num + 1)]


def test_the_job_copies_ahead_and_the_users_own_does_not() -> None:
    job = workload_of(Table())
    assert job_with(job, "copy_ahead").copy_ahead
    assert not job.copy_ahead
