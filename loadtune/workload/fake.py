"""Random samples for measuring without data: images, or inputs of any shape."""

from typing import Any

import torch
from torch.utils.data import Dataset
from torchvision.datasets import FakeData
from torchvision.transforms import ToTensor

from loadtune.workload.models import ModelNeeds

# As many as ImageNet's training set, so that no batch size and no run length meets the end of an epoch early.
NUM_FAKE_SAMPLES = 1_281_167
# Above any batch that any memory holds: a shape alone does not bound the batch size.
NUM_RANDOM_SAMPLES = 1 << 40


class RandomSamples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random float32 inputs of one shape. Targets are random float32 numbers of ``output_shape``, else class indices.

    Until the model's output was seen, the class indices are of one class.
    """

    def __init__(self, input_shape: tuple[int, ...], output_shape: tuple[int, ...] | None = None) -> None:
        self.input_shape = input_shape
        self.output_shape = output_shape
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
        if self.output_shape is not None:
            return inputs, torch.rand(self.output_shape, generator=generator)
        return inputs, torch.randint(0, max(1, self.num_classes), self.target_shape, generator=generator)


def make_fake(needs: ModelNeeds, num_classes: int) -> Dataset[Any]:
    """Images of the size the model was made for."""
    size = needs.image_size
    return FakeData(  # type: ignore[no-any-return]
        size=NUM_FAKE_SAMPLES, image_size=(3, size, size), num_classes=num_classes, transform=ToTensor()
    )
