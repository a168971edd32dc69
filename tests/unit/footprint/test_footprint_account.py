"""The account of a step, checked against what arithmetic says of small and of well-known models."""

from collections.abc import Callable

import pytest
import torch
import torchvision
from account_rig import plan_of
from torch import nn

from loadtune.errors import WorkloadError
from loadtune.footprint.estimate import CUDA_CONTEXT_BYTES, estimate_layers, estimate_step, largest_batch
from loadtune.records.config import Precision
from loadtune.records.footprint import block_bytes as rounded

MIB = 2**20


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters)


def conv_stack() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
    )


class Classifier(nn.Module):
    """A body whose map is averaged to logits."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs).mean((-2, -1))


@pytest.mark.parametrize(("optimizer", "copies"), [(sgd, 0), (momentum, 1), (adam, 2)])
def test_gradients_are_one_copy_of_the_parameters_and_state_none_one_or_two(
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer], copies: int
) -> None:
    account = estimate_step(plan_of(lambda: nn.Linear(32, 16), (32,), optimizer=optimizer), 100)
    parameters = 32 * 16 * 4 + rounded(16 * 4)
    assert account.num_parameters == 32 * 16 + 16
    assert account.largest.parameters_bytes == parameters
    assert account.largest.gradients_bytes == parameters
    assert account.largest.optimizer_state_bytes == copies * parameters
    lines = account.largest
    total = lines.parameters_bytes + lines.gradients_bytes + lines.optimizer_state_bytes
    assert total == (2 + copies) * parameters


def test_lines_at_the_peak_add_up_to_it() -> None:
    for optimizer in (sgd, momentum, adam):
        account = estimate_step(plan_of(lambda: Classifier(conv_stack()), (3, 32, 32), optimizer=optimizer), 4)
        assert account.at_peak.total_bytes + account.unexplained_bytes == account.peak_bytes
        assert account.unexplained_bytes == 0


def test_an_in_place_relu_is_counted_once() -> None:
    plan = plan_of(lambda: Classifier(conv_stack()), (3, 32, 32))
    account = estimate_step(plan, 4)
    assert account.num_parameters == 112_576
    rows = {row.name: row for row in estimate_layers(plan, 4)}
    assert sum(row.kept_bytes for row in rows.values()) == account.largest.activations_bytes
    assert sum(row.num_parameters for row in rows.values()) == 112_576
    one_map = 4 * 64 * 32 * 32 * 4
    assert rows["body.0"].output_shape == rows["body.1"].output_shape == (4, 64, 32, 32)
    # each map once, although convolution, ReLU and pooling all save it; pooling adds its indices
    assert rows["body.1"].kept_bytes == rows["body.3"].kept_bytes == one_map
    assert rows["body.2"].kept_bytes == 0
    assert rows["body.4"].kept_bytes == one_map // 4 * 2
    assert rows["body.5"].kept_bytes == one_map // 4


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_about_halves_activations_and_nothing_else(precision: Precision) -> None:
    def estimated(chosen: Precision) -> int:
        plan = plan_of(lambda: Classifier(conv_stack()), (3, 64, 64), precision=chosen)
        largest = estimate_step(plan, 16).largest
        assert largest.gradients_bytes == largest.parameters_bytes == largest.optimizer_state_bytes
        return largest.activations_bytes

    # pooling's indices stay as wide as they are, and copies of input and weights come on top
    assert 0.5 < estimated(precision) / estimated("fp32") < 0.65


def test_resnet50_takes_the_bytes_a_sample_that_an_h200_was_measured_to() -> None:
    plan = plan_of(lambda: torchvision.models.resnet50(weights=None), (3, 224, 224), precision="bf16")
    assert largest_batch(plan, 24 * 2**30).bytes_per_sample == pytest.approx(44.8e6, rel=0.01)


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    plan = plan_of(lambda: Classifier(conv_stack()), (3, 32, 32))
    memory = 4 * 2**30
    found = largest_batch(plan, memory)
    left = memory - CUDA_CONTEXT_BYTES
    assert estimate_step(plan, found.batch_size).peak_bytes == pytest.approx(left, rel=0.01)
    assert found.batch_size * found.bytes_per_sample + found.fixed_bytes <= left
    assert (found.batch_size + 1) * found.bytes_per_sample + found.fixed_bytes > left
    assert largest_batch(plan, CUDA_CONTEXT_BYTES).batch_size == 0


def equal_blocks() -> nn.Module:
    blocks = (nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.Tanh()))) for _ in range(8))
    return nn.Sequential(*blocks)


def test_checkpointing_equal_blocks_at_least_halves_what_is_kept() -> None:
    plan = plan_of(equal_blocks, (256,))
    plain, checkpointed = (estimate_step(plan, 1024, checkpoint=wanted) for wanted in (False, True))
    assert (plain.num_checkpointed_blocks, checkpointed.num_checkpointed_blocks) == (0, 8)
    assert checkpointed.largest.activations_bytes <= plain.largest.activations_bytes / 2
    assert checkpointed.peak_bytes < plain.peak_bytes
    assert checkpointed.unexplained_bytes == 0
    assert estimate_step(plan, 1024) == plain  # the model is as it was


def test_a_model_without_blocks_is_not_checkpointed() -> None:
    plan = plan_of(lambda: nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), (16,))
    with pytest.raises(WorkloadError, match="Sequential has no blocks to checkpoint"):
        estimate_step(plan, 4, checkpoint=True)


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
    account, rows = estimate_step(plan, 4), estimate_layers(plan, 4)
    assert account.unexplained_bytes == 0
    assert [row.name for row in rows] == ["(model)", "encode", "decode", "again", "(loss)"]
    assert sum(row.num_parameters for row in rows) == account.num_parameters == 2 * 64 + 3 * 8 + 3


class Encoder(nn.Module):
    """A model of PyTorch's own layers, which nn.TransformerEncoder copies."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs).mean(1)


def test_a_transformer_of_copied_layers_is_estimated_and_checkpointed() -> None:
    plan = plan_of(Encoder, (8, 16))
    account, checkpointed = estimate_step(plan, 4), estimate_step(plan, 4, checkpoint=True)
    assert account.num_parameters == sum(parameter.numel() for parameter in Encoder().parameters())
    assert account.largest.activations_bytes > 3 * 4 * 8 * 16 * 4  # each layer's input at the least
    assert account.unexplained_bytes == 0
    assert checkpointed.num_checkpointed_blocks == 3
    assert checkpointed.largest.activations_bytes < account.largest.activations_bytes / 2


def test_no_cuda_context_and_no_memory_of_the_models_size() -> None:
    estimate_step(plan_of(lambda: nn.Linear(2**18, 2**18), (2**18,)), 1)  # 256 GiB of weights
    assert not torch.cuda.is_initialized()
