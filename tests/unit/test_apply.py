"""A loader with the winner's settings, and all else as it was; that its samples are the same: `test_loaders.py`."""

import dataclasses
import warnings

import pytest
import torch
from page_rig import golden
from torch.utils.data import DataLoader

import loadtune
from loadtune import TuningResult, UsageError
from loadtune.records.config import LoaderConfig, TrialConfig
from loadtune.workload.loaders import LoaderParts

NUMBERS = list(range(24))


def won(loader: LoaderConfig) -> TuningResult:
    result = golden()
    best = dataclasses.replace(result.best, config=TrialConfig(loader=loader, recipe=result.best.config.recipe))
    return TuningResult.of(dataclasses.replace(result, best=best, finalists=()))


def settings(num_workers: int, batch_size: int = 4) -> LoaderConfig:
    return LoaderConfig(batch_size=batch_size, num_workers=num_workers, prefetch_factor=3)


def test_the_settings_are_the_winners_and_the_rest_is_kept() -> None:
    generator = torch.Generator()
    loader = DataLoader(
        NUMBERS,
        8,
        shuffle=True,
        num_workers=1,
        collate_fn=torch.tensor,
        drop_last=True,
        timeout=7,
        worker_init_fn=torch.manual_seed,
        multiprocessing_context="spawn",
        generator=generator,
    )
    tuned = won(settings(2, batch_size=5)).apply(loader)
    assert (tuned.batch_size, tuned.num_workers, tuned.prefetch_factor) == (5, 2, 3)
    assert tuned.persistent_workers
    assert tuned.dataset is loader.dataset
    assert tuned.sampler is loader.sampler
    assert (tuned.collate_fn, tuned.worker_init_fn) == (torch.tensor, torch.manual_seed)
    assert (tuned.drop_last, tuned.timeout, tuned.generator) == (True, 7, generator)
    assert tuned.multiprocessing_context.get_start_method() == "spawn"
    assert (loader.batch_size, loader.num_workers) == (8, 1)


class Counting(DataLoader[int]):
    """Does more than a DataLoader."""


def test_a_loader_of_another_class_is_warned_about() -> None:
    loader = Counting(NUMBERS, 8)
    assert LoaderParts.of(loader).loader_class == "Counting"
    with pytest.warns(UserWarning, match="loader is a Counting; the new one is a torch.utils.data.DataLoader"):
        tuned = won(settings(0)).apply(loader)
    assert type(tuned) is DataLoader
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for plain in (DataLoader, loadtune.DataLoader):
            assert won(settings(0)).apply(plain(NUMBERS, 8)).batch_size == 4


def test_what_is_no_loader_is_refused() -> None:
    with pytest.raises(UsageError, match="apply got a value of type list; it takes"):
        TuningResult.of(golden()).apply(NUMBERS)
