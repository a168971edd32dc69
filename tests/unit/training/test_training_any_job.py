"""Training steps, samples and batches of jobs that are not pairs of tensors."""

import itertools
import random
import time
from collections import UserDict
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loop_rig import LINE
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    get_worker_info,
)
from workload_rig import workload_of

from loadtune.records.config import LoaderConfig, Recipe, WorkloadSpec
from loadtune.training.describe import Samples
from loadtune.training.failures import failure_from
from loadtune.training.loop import EndlessLoader, NoBatchError
from loadtune.training.steps import ResidentModel, Trainer
from loadtune.workload.build import loss_of_batches
from loadtune.workload.loaders import LoaderParts

CPU = torch.device("cpu")
HERE = SimpleNamespace(to_device=lambda batch: batch)


def rows(num: int = 64) -> list[Any]:
    return [{"x": torch.full((3,), float(at)), "y": torch.tensor(1.0)} for at in range(num)]


def squared(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch["x"])[:, 0] - batch["y"]).square().mean()


def trainer_of(compute_loss: Any, accumulate: int = 1, **given: Any) -> tuple[Trainer, nn.Module]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    spec = WorkloadSpec(accumulate=accumulate)
    own = loss_of_batches(compute_loss)
    workload = workload_of(rows(), model, compute_loss=own, loss_takes="batch", spec=spec, **given)
    return Trainer(ResidentModel(workload, CPU), Recipe(), workload), model


def test_gradients_of_several_batches_are_summed_before_the_optimizer_steps() -> None:
    def plain(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    batches = [{"x": torch.rand(4, 3), "y": torch.rand(4)} for _ in range(3)]
    trainer, model = trainer_of(squared, accumulate=3, optimizer=plain)
    before = model.weight.detach().clone()
    for batch in batches[:2]:
        trainer.step(batch)
        assert torch.equal(model.weight, before)
    trainer.step(batches[2])
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in ("x", "y")}
    at_once, other = trainer_of(squared, optimizer=plain)
    at_once.step(whole)
    assert torch.allclose(model.weight, other.weight)
    assert not torch.equal(model.weight, before)


def test_the_users_code_may_take_parts_out_of_its_batch() -> None:
    def popping(model: Any, batch: Any) -> torch.Tensor:
        return (model(batch.pop("x"))[:, 0] - batch.pop("y")).square().mean()

    resident = {"x": torch.rand(4, 3), "y": torch.rand(4)}
    trainer, _ = trainer_of(popping)
    for _ in range(2):
        trainer.step(resident)
    trainer.evaluate(resident)
    assert resident.keys() == {"x", "y"}


def ragged(batch: list[Any]) -> Any:
    if len(batch) > 8:
        raise ValueError("a ragged batch")
    return torch.stack([each["x"] for each in batch])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_collate_function_that_raises_is_named_and_no_sample_is_blamed(num_workers: int) -> None:
    workload = workload_of(None, loader=LoaderParts.of(DataLoader(rows(), 4, collate_fn=ragged)))
    with (
        closing(EndlessLoader(workload, LoaderConfig(batch_size=16, num_workers=num_workers))) as loader,
        pytest.raises(ValueError, match="ragged") as raised,
    ):
        loader.next_batch()
    failure = failure_from(raised.value, "training")
    assert failure.kind == "user_error"
    assert failure.message.startswith(
        "The collate function raised ValueError: a ragged batch, for a batch of 16 samples. It has to accept every"
    )
    assert "in ragged" in failure.log_tail
    assert "while reading sample" not in failure.log_tail
    assert "loadtune: " not in failure.log_tail


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_what_workers_cannot_be_given_is_named() -> None:
    plain: DataLoader[Any] = DataLoader(
        rows(),
        4,
        num_workers=1,
        collate_fn=lambda batch: batch,
        multiprocessing_context="spawn",
    )
    loader = EndlessLoader(workload_of(None, loader=LoaderParts.of(plain)), LoaderConfig(batch_size=4, num_workers=1))
    with pytest.raises(Exception, match="pickle") as raised:
        loader.next_batch()
    failure = failure_from(raised.value, "first batch")
    assert failure.kind == "user_error"
    assert "multiprocessing/" not in failure.log_tail
    assert failure.message.startswith("The collate_fn of the loader cannot be pickled, which workers started with")
    assert failure.message.endswith('or use multiprocessing_context="fork"')


class Counted(IterableDataset[Any]):
    def __init__(self, num: int, *, shared: bool) -> None:
        self.num, self.shared = num, shared

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info() if self.shared else None
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from ({"x": torch.full((2,), float(at))} for at in range(start, self.num, step))


def samples_of(loader: DataLoader[Any], **given: Any) -> Samples:
    return Samples(workload_of(None, loader=LoaderParts.of(loader), **({"loss_takes": "batch"} | given)), LINE)


def seed_worker(worker_id: int) -> None:
    """As PyTorch's notes on reproducibility have it, and a setting that a training process would miss."""
    random.seed(torch.initial_seed() % 2**32)
    torch.set_num_threads(1)
    torch.manual_seed(worker_id)


def share_worker(worker_id: int) -> None:
    """As PyTorch's documentation of IterableDataset has it."""
    info: Any = get_worker_info()
    info.dataset.num = info.dataset.num // info.num_workers


@pytest.mark.parametrize(
    ("shared", "init", "is_shared_out"),
    [(False, None, False), (True, None, True), (False, seed_worker, False), (False, share_worker, True)],
)
def test_a_stream_that_asks_for_its_worker_is_shared_out(shared: bool, init: Any, is_shared_out: bool) -> None:
    stream, state, threads = Counted(40, shared=shared), random.getstate(), torch.get_num_threads()
    samples = samples_of(DataLoader(stream, 4, worker_init_fn=init))
    assert samples.is_shared_out == is_shared_out
    assert samples.num == samples.num_in_batch
    assert (stream.num, random.getstate(), torch.get_num_threads()) == (40, state, threads)


def test_samples_that_the_sampler_never_draws_are_not_read() -> None:
    class Damaged(Dataset[Any]):
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> Any:
            if index >= 50:
                raise OSError("damaged")
            return {"x": torch.rand(2 + index % 3)}  # of different size, so that more are read

    samples = samples_of(DataLoader(Damaged(), 4, sampler=SubsetRandomSampler(range(50)), collate_fn=padded))
    assert samples.num_per_epoch == 50
    assert len(samples.batch["x"]) == 16


def padded(batch: list[Any]) -> Any:
    return {"x": nn.utils.rnn.pad_sequence([each["x"] for each in batch], batch_first=True)}


class Bulk(Dataset[Any]):
    """Read a whole batch at once."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, indices: list[int]) -> Any:
        return {"x": torch.tensor(indices, dtype=torch.float32)[:, None]}


def test_a_dataset_that_reads_batches_by_a_list_of_indices() -> None:
    """PyTorch's documented bulk loading."""
    sampler = BatchSampler(RandomSampler(Bulk()), 8, drop_last=False)
    loader: DataLoader[Any] = DataLoader(Bulk(), batch_size=None, sampler=sampler)
    samples = samples_of(loader)
    assert (samples.num, samples.num_in_batch) == (8, 8)
    assert samples.num_per_epoch == pytest.approx(100, abs=4)
    assert len(samples.resident(8, HERE)["x"]) == 8
    with closing(
        EndlessLoader(workload_of(None, loader=LoaderParts.of(loader)), LoaderConfig(batch_size=8))
    ) as endless:
        assert {len(endless.next_batch()["x"]) for _ in range(13)} == {4, 8}


def test_memory_is_probed_with_the_largest_batch_of_a_batch_sampler() -> None:
    batches = [[at] for at in range(40)] + [[at, at + 1, at + 2] for at in range(40)] + [list(range(20))]
    samples = samples_of(DataLoader(rows(), batch_sampler=batches))
    assert len(samples.resident(2, HERE, largest=True)["x"]) == 20
    assert samples.num_per_epoch == 40 + 120 + 20
    assert len(samples.resident(2, HERE)["x"]) in (1, 3), "as the sampler draws them"


class Text(UserDict[str, Any]):
    """As Hugging Face's BatchEncoding."""


@pytest.mark.parametrize("make", [lambda num: Text(ids=[1] * num), lambda num: "a" * num], ids=["mapping", "string"])
def test_samples_of_any_kind_differ_in_size(make: Any) -> None:
    texts = [make(5 + (50 if at % 20 == 0 else 0)) for at in range(100)]

    def length(text: Any) -> int:
        return len(text["ids"] if isinstance(text, Text) else text)

    def pad(batch: list[Any]) -> Any:
        return {"input_ids": torch.zeros(len(batch), max(map(length, batch)))}

    samples = samples_of(DataLoader(texts, 4, collate_fn=pad))
    trainer: Any = SimpleNamespace(to_device=lambda batch: batch, places=samples.places)
    assert samples.resident(3, trainer, largest=True)["input_ids"].shape == (3, 55)
    assert samples_of(DataLoader([make(5)] * 100, 4, collate_fn=pad)).largest_bytes is None


def drawn(loader: DataLoader[Any], num: int, batch_size: int = 4) -> list[list[float]]:
    parts = LoaderParts.of(loader)
    with closing(EndlessLoader(workload_of(None, loader=parts), LoaderConfig(batch_size=batch_size))) as endless:
        return [endless.next_batch()["x"][:, 0].tolist() for _ in range(num)]


def test_a_stream_begins_again_at_its_end_and_one_shorter_than_a_batch_has_none() -> None:
    found = drawn(DataLoader(Counted(9, shared=False), 4), 5)
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    with pytest.raises(NoBatchError):
        drawn(DataLoader(Counted(3, shared=False), 4), 1)


def test_workers_of_a_stream_tell_what_the_start_of_an_epoch_takes() -> None:
    parts = LoaderParts.of(DataLoader(Counted(9, shared=False), 4))
    config = LoaderConfig(batch_size=4, num_workers=1, persistent_workers=False)
    with closing(EndlessLoader(workload_of(None, loader=parts), config)) as endless:
        for _ in range(2):
            endless.next_batch()
        time.sleep(1.0)
        begun_s = time.monotonic()
        endless.next_batch()
        times = endless.times()
        assert 0 < times["ready_s"] < times["first_batch_s"] < time.monotonic() - begun_s
        assert 0 <= endless.num_ahead() <= 2


def test_the_order_is_the_samplers() -> None:
    found = drawn(DataLoader(rows(10), 4, sampler=[3, 1, 2]), 3)
    assert found == [[3, 1, 2, 3], [1, 2, 3, 1], [2, 3, 1, 2]]
    again = drawn(DataLoader(rows(10), batch_sampler=[[1], [2, 3]]), 3)
    assert again == [[1], [2, 3], [1]]
    shuffled = drawn(DataLoader(rows(10), 5, sampler=RandomSampler(rows(10))), 2, batch_size=5)
    assert sorted(itertools.chain(*shuffled)) == list(range(10))
