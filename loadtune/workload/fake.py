"""Random samples for measuring without data: images, video clips, or inputs of any shape."""

from typing import Any

import torch
from torch.utils.data import Dataset
from torchvision.datasets import FakeData
from torchvision.transforms import ToTensor

from loadtune.workload.models import ModelNeeds

# As many as ImageNet's training set, so that no batch size and no run length meets the end of an epoch early.
NUM_FAKE_SAMPLES = 1_281_167
# Frames of a clip: what the Kinetics models of torchvision are trained on; MViT accepts nothing else.
CLIP_FRAMES = 16
# Above any batch that any memory holds: a shape alone does not bound the batch size.
NUM_RANDOM_SAMPLES = 1 << 40


class FakeClips(Dataset[tuple[torch.Tensor, int]]):
    """Random clips (C, T, H, W); the index is the seed, as in FakeData."""

    def __init__(self, size: int, clip_size: tuple[int, int, int, int], num_classes: int) -> None:
        self.size = size
        self.clip_size = clip_size
        self.num_classes = num_classes

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index >= self.size:
            raise IndexError(f"clip {index} of {self.size}")
        generator = torch.Generator().manual_seed(index)
        clip = torch.randint(0, 256, self.clip_size, dtype=torch.uint8, generator=generator)
        label = torch.randint(0, self.num_classes, (1,), generator=generator)
        return clip.float() / 255, int(label)


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
    """Images, or clips for video models, of the size the model was made for."""
    size = needs.image_size
    if needs.family == "video":
        return FakeClips(NUM_FAKE_SAMPLES, (3, CLIP_FRAMES, size, size), num_classes)
    return FakeData(  # type: ignore[no-any-return]
        size=NUM_FAKE_SAMPLES, image_size=(3, size, size), num_classes=num_classes, transform=ToTensor()
    )
