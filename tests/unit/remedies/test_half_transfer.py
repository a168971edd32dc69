"""Inputs sent as 16-bit floats: half of the bytes, rounded, and 32-bit again where they are trained on."""

from typing import Any

import pytest
import torch
from remedy_rig import (
    CPU,
    Table,
    apart,
    delivered,
    fake_images,
    job_with,
    lines_of,
    parts_of,
    pasted_batch,
    situation,
    trained_on,
)
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torchvision import transforms as v1
from workload_rig import workload_of

from loadtune.remedies import REMEDIES, NotApplicableError

HALF_ROUNDING = 2**-11
"""Relative, of 16-bit floats."""


def doubled(samples: list[Any]) -> Any:
    """A collate function of the user's own."""
    inputs, targets = default_collate(samples)
    return 2 * inputs, targets


def erased_images() -> Any:
    """Images whose transform cannot be split."""
    return fake_images(v1.Compose([v1.ToTensor(), v1.RandomErasing(p=1.0)]))


def pasted(code: str, dataset: Any, **others: Any) -> Any:
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
    plain = workload_of(erased_images())
    changed = job_with(plain, "half_transfer")
    assert 2 * delivered(changed)[0].nbytes == delivered(plain)[0].nbytes
    one, other = trained_on(plain), trained_on(changed)
    assert other[0].dtype == torch.float32
    assert 0.0 < apart(one, other) <= HALF_ROUNDING  # values are at most 1
    assert delivered(plain)[0].dtype == torch.float32, "the user's own loader stays as it was"


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
    assert apart(trained_on(job_with(job, "half_transfer")), pasted(code, dataset, loader=loader)) == 0.0


def test_the_pasted_lines_of_a_dataset_that_was_named_need_no_loader() -> None:
    dataset = erased_images()
    job = workload_of(dataset)
    assert apart(trained_on(job), pasted(lines_of("half_transfer", job), dataset)) <= HALF_ROUNDING


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
def test_refused(dataset: Any, reason: str) -> None:
    with pytest.raises(NotApplicableError, match=reason):
        job_with(workload_of(dataset), "half_transfer")


def test_offered_for_32_bit_floats_on_a_gpu_where_nothing_smaller_is_sent() -> None:
    offer = REMEDIES["half_transfer"].offer
    assert offer(situation()) == situation().config
    assert offer(situation(device=CPU)) is None
    assert offer(situation(facts={"input_dtype": "int64"})) is None
    assert offer(situation(remedies=("uint8_transfer",))) is None
    assert offer(situation(remedies=("batched_fetch",))) is None
