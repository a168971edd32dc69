"""What is trained in the benchmarks of memory and of other tools, and its plain training step.

A cell is one model under one recipe. Its factories of models and datasets are called by the training
(``cells:resnet50``)
and by plain processes: both train the very same. The step is the one a probe tries: gradients set to None at its start,
autocast around forward and loss, SGD with momentum 0.9 or AdamW at 1e-3.

Shapes: B batch, K classes, H and W pixels, T tokens. Images (B, 3, H, W) with targets (B,) or (B, H, W); tokens (B, T)
with targets (B, T). Models return (B, K), (B, K, H, W) or (B, T, K).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torchvision
import workloads
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

Sample = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model under one recipe; names of factories in this module, or of a model of torchvision."""

    name: str
    model: str
    dataset: str
    num_classes: int
    """Labels are below this number; so are tokens, where the inputs are tokens."""
    precision: Literal["fp32", "bf16"]
    optimizer: Literal["sgd", "adamw"]
    channels_last: bool = True
    fused: bool = True
    """Whether the optimizer runs as one kernel; PyTorch does so only where a script asks for it."""
    normalized: bool = False
    """Whether images are normalized as ImageNet's are."""
    cap: int | None = None
    """Largest batch the probe may try. None: only the dataset's length bounds it."""

    @property
    def memory_format(self) -> Literal["channels_last", "contiguous"]:
        return "channels_last" if self.channels_last else "contiguous"

    def make_model(self) -> nn.Module:
        return globals()[self.model]() if self.model in globals() else torchvision.models.get_model(self.model)

    @property
    def model_path(self) -> str:
        """As a workload names it."""
        return f"cells:{self.model}" if self.model in globals() else self.model

    def make_dataset(self) -> Dataset[Sample]:
        return globals()[self.dataset]()


def _imagenet(name: str, model: str, precision: Any, optimizer: Any) -> Cell:
    return Cell(name=name, model=model, dataset="images", num_classes=1000, precision=precision, optimizer=optimizer)


CELLS = (
    _imagenet("resnet50-fp32-sgd", "resnet50", "fp32", "sgd"),
    _imagenet("resnet50-fp32-adamw", "resnet50", "fp32", "adamw"),
    _imagenet("resnet50-bf16-sgd", "resnet50", "bf16", "sgd"),
    _imagenet("resnet50-bf16-adamw", "resnet50", "bf16", "adamw"),
    _imagenet("vit-b16-bf16-adamw", "vit_b_16", "bf16", "adamw"),
    replace(_imagenet("unet-bf16-sgd", "unet", "bf16", "sgd"), dataset="masks", num_classes=21),
    _imagenet("mobilenet-v3-bf16-sgd", "mobilenet_v3_large", "bf16", "sgd"),
    replace(
        _imagenet("lm-bf16-adamw", "small_lm", "bf16", "adamw"),
        dataset="tokens",
        num_classes=32_000,
        channels_last=False,
    ),
)

UNSEEN = (
    _imagenet("densenet121-fp32-sgd", "densenet121", "fp32", "sgd"),
    _imagenet("convnext-tiny-bf16-adamw", "convnext_tiny", "bf16", "adamw"),
)
"""Models that were not looked at while the probe was built: what it does elsewhere. Asked for by name."""

FAKE = replace(
    _imagenet("fake-resnet50-fp32-sgd", "resnet50", "fp32", "sgd"),
    dataset="fake_images",
    channels_last=False,
    fused=False,
)
"""What the README's command trains, in a script that asks for nothing: the plain recipe on torchvision's FakeData."""

JPEG = replace(FAKE, name="jpeg-resnet50-fp32-sgd", dataset="jpegs", normalized=True)
"""The same on JPEG files of 500 pixels, augmented as ImageNet's are."""

HELD = (("resnet50-bf16-sgd", 0.25), ("vit-b16-bf16-adamw", 0.50))
"""Cells that are measured once more while another process holds that share of the device."""

_TINY = Cell(
    name="tiny-fp32-sgd",
    model="tiny_images",
    dataset="small_images",
    num_classes=5,
    precision="fp32",
    optimizer="sgd",
    cap=512,
)

SMOKE_CELLS = (
    _TINY,
    replace(_TINY, name="tiny-bf16-adamw", precision="bf16", optimizer="adamw"),
    replace(_TINY, name="tiny-unet", model="tiny_unet", dataset="small_masks", num_classes=3),
    replace(_TINY, name="tiny-lm", model="tiny_lm", dataset="small_tokens", num_classes=11, channels_last=False),
)
"""For a rehearsal without a GPU: their models fail above a batch of `TINY_CEILING`, as CUDA would."""

SMOKE_FAKE = replace(_TINY, name="tiny-fake-fp32-sgd", dataset="small_fake_images", channels_last=False, fused=False)

SMOKE_HELD = (("tiny-fp32-sgd", 0.25),)


def cell_named(name: str) -> Cell:
    """Raises KeyError with the names there are."""
    by_name = {cell.name: cell for cell in (*CELLS, *UNSEEN, FAKE, JPEG, *SMOKE_CELLS, SMOKE_FAKE)}
    if name not in by_name:
        raise KeyError(f"there is no cell {name!r}; there are {', '.join(by_name)}")
    return by_name[name]


LENGTH = 1_281_167
"""As many as ImageNet's training set: no batch meets its end, and what is left over is no round number."""

NUM_DIFFERENT = 64
"""Enough that labels and pixels differ; made once, so that reading a sample costs what copying it costs."""

TINY_CEILING = 490
"""Largest batch the tiny models accept."""


class Repeated(Dataset[Sample]):
    """A few random samples again and again: what is measured is memory, not reading."""

    def __init__(self, make: Callable[[torch.Generator], Sample], length: int = LENGTH) -> None:
        self._length = length
        self._samples = [make(torch.Generator().manual_seed(seed)) for seed in range(NUM_DIFFERENT)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        if index >= self._length:
            raise IndexError(f"sample {index} of {self._length}")
        return self._samples[index % NUM_DIFFERENT]


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


images = partial(_images, 224, 1000)
masks = partial(_images, 256, 21, dense=True)
tokens = partial(_tokens, 256, 32_000)
small_images = partial(_images, 16, 5, 4007)
small_masks = partial(_images, 16, 3, 4007, dense=True)
small_tokens = partial(_tokens, 8, 11, 4007)


def fake_images(size: int = 224, num_classes: int = 1000) -> Dataset[Sample]:
    """What `loadtune run --dataset FakeData` makes for a model of 224 pixels."""
    transform = torchvision.transforms.ToTensor()
    return torchvision.datasets.FakeData(LENGTH, (3, size, size), num_classes, transform)


def jpegs() -> Dataset[Sample]:
    """Of the folder that `workloads.spec_of` made."""
    return workloads.jpegs()


small_fake_images = partial(fake_images, 32, 5)


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


class Training:
    """A model on the device with its optimizer, from the initial weights."""

    def __init__(self, cell: Cell, device: torch.device) -> None:
        torch.manual_seed(0)
        self.cell, self.device = cell, device
        self.dataset = cell.make_dataset()
        self.format = torch.channels_last if cell.channels_last else torch.contiguous_format
        self.model = cell.make_model().to(device, memory_format=self.format).train()
        self.optimizer = make_optimizer(cell, self.model)
        self._dtype = torch.bfloat16 if cell.precision == "bf16" else None

    def make_batch(self, batch_size: int) -> Sample:
        """Random inputs and targets of the dataset's shapes, made on the device."""
        x, y = self.dataset[0]
        inputs = torch.empty((batch_size, *x.shape), dtype=x.dtype, device=self.device, memory_format=self.format)
        inputs = inputs.normal_() if x.is_floating_point() else inputs.random_(0, self.cell.num_classes)
        return inputs, torch.randint(
            0, self.cell.num_classes, (batch_size, *torch.as_tensor(y).shape), device=self.device
        )

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, dtype=self._dtype, enabled=self._dtype is not None):
            return loss_of(self.model(inputs), targets)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(inputs, targets).backward()
        self.optimizer.step()

    def evaluate(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.model.eval()
        with torch.no_grad():
            self.loss(inputs, targets)
        self.model.train()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def figures(self) -> dict[str, int]:
        """The allocator's, since the process began; none on a CPU."""
        if self.device.type != "cuda":
            return {}
        return {
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(self.device),
            "num_retries": int(torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0)),
        }


def make_optimizer(cell: Cell, model: nn.Module) -> torch.optim.Optimizer:
    if cell.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=cell.fused)
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=cell.fused)


def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of (B, K), (B, K, H, W) or (B, T, K) logits."""
    if output.dim() == 3:
        return cross_entropy(output.flatten(0, 1), targets.flatten())
    return cross_entropy(output, targets)


def device_of(order: dict[str, Any]) -> torch.device:
    """The only device that is visible, or the CPU in a rehearsal."""
    if order.get("device") == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    return torch.device("cuda", 0)
