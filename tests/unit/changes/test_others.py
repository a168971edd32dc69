"""Rows of a table, tokens and decoded images that are not made again: the same samples, by lines that run."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from remedy_rig import image_folder, way_of
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms as v1
from workload_rig import workload_of

from loadtune.changes.trial import Ways, examine
from loadtune.changes.way import How, Way
from loadtune.records.loading import Examined


def examined(dataset: Any, name: str, *, memory_bytes: int = 1 << 30) -> Examined:
    way = Way(loader=way_of(workload_of(dataset)).loader, indices=range(len(dataset)), memory_bytes=memory_bytes)
    return examine(Ways(way), (), name)


def is_same(seen: Examined) -> bool:
    assert seen.refused is None, seen.refused
    return seen.values.most == 0


class Rows(Dataset[Any]):
    def __init__(self, frame: Any, read: Any) -> None:
        self.frame, self.read = frame, read

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int) -> Any:
        return self.read(self.frame, index)


NUMBERS = pd.DataFrame(np.arange(600.0).reshape(100, 6), columns=list("abcdef"))
MIXED = NUMBERS.assign(name="x", label=np.arange(100), a=NUMBERS.a.astype("float32"))

READS: dict[str, tuple[Any, Any]] = {
    "values": (NUMBERS, lambda frame, at: torch.tensor(frame.iloc[at].values)),
    "some": (NUMBERS, lambda frame, at: torch.tensor(frame.iloc[at][["b", "a"]].to_numpy(dtype="float32"))),
    "all but one": (NUMBERS, lambda frame, at: (torch.tensor(frame.loc[at].drop("f").values), frame.iloc[at].f)),
    "by name": (MIXED, lambda frame, at: (frame.iloc[at]["a"], frame.iloc[at]["label"], frame.iloc[at].name)),
    "some of several types": (MIXED, lambda frame, at: torch.tensor(frame.iloc[at][["b", "c"]].astype(float).values)),
    "what only a Series has": (NUMBERS, lambda frame, at: frame.iloc[at].sum() + frame.iloc[at].mean()),
}


@pytest.mark.parametrize("name", READS)
def test_rows_from_arrays_are_those_of_pandas(name: str) -> None:
    had = type(NUMBERS.iloc).__mro__[1].__dict__.get("__getitem__")
    assert is_same(examined(Rows(*READS[name]), "table_to_arrays"))
    assert type(NUMBERS.iloc).__mro__[1].__dict__.get("__getitem__") is had
    assert type(NUMBERS.iloc[3]) is pd.Series


OTHER_READS: dict[str, Any] = {
    "a column": lambda frame, at: frame["a"][at],
    "slices": lambda frame, at: torch.tensor(frame.iloc[at : at + 1].values),
    "dates": lambda frame, at: pd.DataFrame({"t": pd.to_datetime(["2026-01-01"])}).iloc[0]["t"].year + at,
}


@pytest.mark.parametrize("name", OTHER_READS)
def test_a_table_that_is_read_otherwise_is_left_alone(name: str) -> None:
    assert "no rows of a pandas" in (examined(Rows(NUMBERS, OTHER_READS[name]), "table_to_arrays").refused or "")


class Texts(Dataset[Any]):
    def __init__(self, **given: Any) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        made = Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1, "b": 2, "c": 3}, unk_token="[PAD]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        self.tokenizer, self.given = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]"), given

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        found = self.tokenizer(f"a b c {'abc'[index % 3]}", **self.given)
        found["input_ids"][0] += index  # what is kept stays as it was
        return torch.as_tensor(found["input_ids"])


@pytest.mark.parametrize("given", [{}, {"return_tensors": "np"}])
def test_tokens_that_are_kept_are_those_that_are_made(given: dict[str, Any]) -> None:
    assert is_same(examined(Texts(**given), "tokenized_once"))
    assert "shared memory, and 10 B may" in (examined(Texts(**given), "tokenized_once", memory_bytes=10).refused or "")


class Captions(Texts):
    def __getitem__(self, index: int) -> Any:
        return torch.as_tensor(self.tokenizer(f"a {int(torch.randint(10**9, ()))}")["input_ids"])


def test_texts_that_are_drawn_at_random_are_not_kept() -> None:
    assert "drawn at random" in (examined(Captions(), "tokenized_once").refused or "")


def test_what_changes_nothing_of_images_goes_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(How())) == How()


def test_a_dataset_without_texts_or_images_keeps_none() -> None:
    for name in ("tokenized_once", "kept_images"):
        assert "the dataset " in (examined([torch.rand(3)] * 9, name).refused or "")


def test_memory_is_for_all_images_though_some_were_drawn_twice(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, v1.ToTensor(), num=8)
    way = Way(loader=way_of(workload_of(folder)).loader, indices=[*range(8)] * 4, num_samples=8, memory_bytes=1 << 30)
    assert f"num_bytes={int(1.05 * 96 * 96 * 3 * 8):_}" in examine(Ways(way), (), "kept_images").code


class Parts(Dataset[Any]):
    """A dataset of datasets."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, index: int) -> Any:
        return self.parts[0][index]


def test_kept_images_are_the_same_and_random_crops_go_on(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()]), num=80)
    seen = examined(folder, "kept_images")
    assert is_same(seen)
    assert f"num_bytes={int(1.05 * 96 * 96 * 3 * 80):_}" in seen.code
    assert "may be used" in (examined(folder, "kept_images", memory_bytes=1000).refused or "")


@pytest.mark.parametrize("before", [(), ("tensor_decoding",)])
def test_the_pasted_lines_keep_images_for_all_workers(before: tuple[str, ...], tmp_path: Path) -> None:
    folder = image_folder(tmp_path, v1.Compose([v1.ToTensor()]), num=8)
    dataset = Subset(folder, [5, 4, 3, 2, 1, 0, 6, 7])
    way = Way(loader=way_of(workload_of(dataset)).loader, indices=range(8), memory_bytes=1 << 30)
    names: dict[str, Any] = {"dataset": dataset}
    expected = list(DataLoader(dataset, 2))
    for lines in [examine(Ways(way), before[:at], name).code for at, name in enumerate((*before, "kept_images"))]:
        exec(lines, names)
    for epoch in range(2):
        loader = DataLoader(dataset, 2, num_workers=2)
        assert all(torch.allclose(a[0], b[0], atol=1e-6) for a, b in zip(expected, loader, strict=True))
        for path, _ in folder.samples if epoch == 0 else ():
            Path(path).unlink()  # the second epoch opens none
    assert type(folder.loader).__name__ == "function", "another split of the same folder"
