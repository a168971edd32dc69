"""The account of a step, checked against what arithmetic says of small and of well-known models."""

from typing import Any

import pytest
import torch
import torchvision
from account_rig import plan_of
from torch import nn

from loadtune.footprint.estimate import CUDA_CONTEXT_BYTES, estimate_step, largest_batch
from loadtune.records.memory import block_bytes as rounded


class ConvStack(nn.Sequential):
    """Its map is averaged to logits."""

    def __init__(self) -> None:
        first, second = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
        last = nn.Conv2d(64, 128, 3, padding=1)
        super().__init__(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True), nn.MaxPool2d(2), last)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs).mean((-2, -1))


@pytest.mark.parametrize(
    ("optimizer", "copies"), [(lambda weights: torch.optim.SGD(weights, lr=0.1), 0), ("sgd", 1), (torch.optim.Adam, 2)]
)
def test_gradients_are_one_copy_of_the_parameters_and_state_none_one_or_two(optimizer: Any, copies: int) -> None:
    account, _ = estimate_step(plan_of(lambda: nn.Linear(32, 16), (32,), optimizer=optimizer), 100)
    parameters = 32 * 16 * 4 + rounded(16 * 4)
    assert account.num_parameters == 32 * 16 + 16
    assert account.largest.parameters_bytes == account.largest.gradients_bytes == parameters
    assert account.largest.optimizer_state_bytes == copies * parameters
    assert (account.unexplained_bytes, account.at_peak.total_bytes) == (0, account.peak_bytes)


def test_an_in_place_relu_is_counted_once() -> None:
    account, layers = estimate_step(plan_of(ConvStack, (3, 32, 32)), 4)
    assert account.num_parameters == 112_576
    rows = {row.name: row for row in layers}
    assert sum(row.kept_bytes for row in rows.values()) == account.largest.activations_bytes
    assert sum(row.num_parameters for row in rows.values()) == 112_576
    one_map = 4 * 64 * 32 * 32 * 4
    assert rows["0"].output_shape == rows["1"].output_shape == (4, 64, 32, 32)
    # each map once, although convolution, ReLU and pooling all save it; pooling adds its indices
    assert rows["1"].kept_bytes == rows["3"].kept_bytes == one_map
    assert rows["2"].kept_bytes == 0
    assert rows["4"].kept_bytes == one_map // 4 * 2
    assert rows["5"].kept_bytes == one_map // 4


def test_resnet50_takes_the_bytes_a_sample_that_an_h200_was_measured_to() -> None:
    plan = plan_of(lambda: torchvision.models.resnet50(weights=None), (3, 224, 224), precision="bf16")
    assert largest_batch(plan, 24 * 2**30).bytes_per_sample == pytest.approx(44.8e6, rel=0.01)


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    plan = plan_of(ConvStack, (3, 32, 32))
    memory = 4 * 2**30
    found = largest_batch(plan, memory)
    left = memory - CUDA_CONTEXT_BYTES
    assert estimate_step(plan, found.batch_size)[0].peak_bytes == pytest.approx(left, rel=0.01)
    assert found.batch_size * found.bytes_per_sample + found.fixed_bytes <= left
    assert (found.batch_size + 1) * found.bytes_per_sample + found.fixed_bytes > left
    assert largest_batch(plan, CUDA_CONTEXT_BYTES).batch_size == 0


class Shared(nn.Module):
    """A weight is used by two layers, and a parameter by none."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode, self.again = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.again.weight = self.decode.weight
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.again(self.decode(self.encode(inputs)))


def test_layers_count_each_parameter_once() -> None:
    plan = plan_of(Shared, (8,))
    account, rows = estimate_step(plan, 4)
    assert account.unexplained_bytes == 0
    assert [row.name for row in rows] == ["(model)", "encode", "decode", "again", "(loss)"]
    assert sum(row.num_parameters for row in rows) == account.num_parameters == 2 * 64 + 3 * 8 + 3


def encoder() -> nn.Module:
    """Of PyTorch's own layers, which nn.TransformerEncoder copies."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Flatten())


def test_a_transformer_of_copied_layers_is_estimated() -> None:
    account, _ = estimate_step(plan_of(encoder, (8, 16)), 4)
    assert account.num_parameters == sum(parameter.numel() for parameter in encoder().parameters())
    assert account.largest.activations_bytes > 3 * 4 * 8 * 16 * 4  # each layer's input at the least
    assert account.unexplained_bytes == 0


def test_no_cuda_context_and_no_memory_of_the_models_size() -> None:
    estimate_step(plan_of(lambda: nn.Linear(2**18, 2**18), (2**18,)), 1)  # 256 GiB of weights
    assert not torch.cuda.is_initialized()
