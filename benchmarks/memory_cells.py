"""Factories of the memory benchmark's models and datasets, named by `memory_grid` and called by the bench and by the
plain processes alike: both train the very same thing.

Shapes: B batch, K classes, H and W pixels, T tokens. Images (B, 3, H, W) with targets (B,) or (B, H, W); tokens (B, T)
with targets (B, T). Models return (B, K), (B, K, H, W) or (B, T, K).
"""

from collections.abc import Callable

import torch
import torchvision
from torch import nn
from torch.utils.data import Dataset

Sample = tuple[torch.Tensor, torch.Tensor]

# As many as ImageNet's training set: no batch meets its end, and what is left over is no round number.
LENGTH = 1_281_167
# Enough that labels and pixels differ; made once, so that reading a sample costs what copying it costs.
_NUM_DIFFERENT = 64

TINY_CEILING = 490
"""Largest batch the tiny models accept."""


class Repeated(Dataset[Sample]):
    """A few random samples again and again: what is measured is memory, not reading."""

    def __init__(self, make: Callable[[torch.Generator], Sample], length: int = LENGTH) -> None:
        self._length = length
        self._samples = [make(torch.Generator().manual_seed(seed)) for seed in range(_NUM_DIFFERENT)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        if index >= self._length:
            raise IndexError(f"sample {index} of {self._length}")
        return self._samples[index % _NUM_DIFFERENT]


def _images(size: int, num_classes: int, length: int = LENGTH, *, dense: bool = False) -> Repeated:
    target = (size, size) if dense else ()
    return Repeated(
        lambda g: (torch.rand(3, size, size, generator=g), torch.randint(0, num_classes, target, generator=g)), length
    )


def _tokens(num_tokens: int, num_classes: int, length: int = LENGTH) -> Repeated:
    def make(generator: torch.Generator) -> Sample:
        text = torch.randint(0, num_classes, (num_tokens + 1,), generator=generator)
        return text[:-1].clone(), text[1:].clone()  # each token's target is the next one

    return Repeated(make, length)


def images() -> Repeated:
    return _images(224, 1000)


def masks() -> Repeated:
    return _images(256, 21, dense=True)


def tokens() -> Repeated:
    return _tokens(256, 32_000)


def fake_images() -> Dataset[Sample]:
    """What `loadtune run --dataset FakeData` makes for a model of 224 pixels."""
    return _fake(224, 1000)


def small_fake_images() -> Dataset[Sample]:
    return _fake(32, 5)


def _fake(size: int, num_classes: int) -> Dataset[Sample]:
    transform = torchvision.transforms.ToTensor()
    return torchvision.datasets.FakeData(LENGTH, (3, size, size), num_classes, transform)


def small_images() -> Repeated:
    return _images(16, 5, 4007)


def small_masks() -> Repeated:
    return _images(16, 3, 4007, dense=True)


def small_tokens() -> Repeated:
    return _tokens(8, 11, 4007)


def resnet50() -> nn.Module:
    return torchvision.models.resnet50()


def vit_b_16() -> nn.Module:
    return torchvision.models.vit_b_16()


def mobilenet_v3_large() -> nn.Module:
    return torchvision.models.mobilenet_v3_large()


def densenet121() -> nn.Module:
    return torchvision.models.densenet121()


def convnext_tiny() -> nn.Module:
    return torchvision.models.convnext_tiny()


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Down by halves and up again, with skips; (B, 3, H, W) → (B, K, H, W)."""

    def __init__(self, width: int, num_levels: int, num_classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(num_levels)]
        self.down = nn.ModuleList(_block(i, o) for i, o in zip([3, *widths], widths, strict=False))
        self.middle = _block(widths[-1], 2 * widths[-1])
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths))
        self.up = nn.ModuleList(_block(2 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for rise, block in zip(self.rise, self.up, strict=True):
            x = block(torch.cat([rise(x), skips.pop()], 1))
        return self.head(x)


class LanguageModel(nn.Module):
    """A causal transformer; tokens (B, T) → (B, T, K)."""

    def __init__(self, num_classes: int, width: int, num_layers: int, num_heads: int, num_tokens: int) -> None:
        super().__init__()
        self.token = nn.Embedding(num_classes, width)
        self.position = nn.Embedding(num_tokens, width)
        layer = nn.TransformerEncoderLayer(width, num_heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, num_classes, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=x.device)
        embedded = self.token(x) + self.position(torch.arange(length, device=x.device))
        return self.head(self.layers(embedded, mask=mask, is_causal=True))


def unet() -> nn.Module:
    return UNet(32, 4, 21)


def small_lm() -> nn.Module:
    return LanguageModel(32_000, 512, 8, 8, 256)


class Limited(nn.Module):
    """Fails above a batch size as CUDA's allocator does: a known ceiling for a rehearsal without a GPU."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > TINY_CEILING:
            torch.empty(1 << 55)  # refused by PyTorch itself, as a real one is
        return self.model(x)


def tiny_images() -> nn.Module:
    return Limited(nn.Sequential(_block(3, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)))


def tiny_unet() -> nn.Module:
    return Limited(UNet(4, 2, 3))


def tiny_lm() -> nn.Module:
    return Limited(LanguageModel(11, 8, 1, 2, 8))
