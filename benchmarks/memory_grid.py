"""The cells of the memory benchmark: what is trained in each, by name. Needs no torch."""

from dataclasses import dataclass, replace
from typing import Literal

Precision = Literal["fp32", "bf16"]
Optimizer = Literal["sgd", "adamw"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model under one recipe; model and data are names of factories in `memory_cells`."""

    name: str
    model: str
    dataset: str
    num_classes: int
    """Labels are below this number; so are tokens, where the inputs are tokens."""
    precision: Precision
    optimizer: Optimizer
    channels_last: bool = True
    fused: bool = True
    """Whether the optimizer runs as one kernel; PyTorch does so only where a script asks for it."""
    peers: bool = False
    """Whether other tools are asked for this cell's batch size as well."""
    cap: int | None = None
    """Largest batch the probe may try. None: only the dataset's length bounds it."""

    @property
    def memory_format(self) -> Literal["channels_last", "contiguous"]:
        return "channels_last" if self.channels_last else "contiguous"


def _imagenet(name: str, model: str, precision: Precision, optimizer: Optimizer, *, peers: bool = False) -> Cell:
    return Cell(
        name=name,
        model=model,
        dataset="images",
        num_classes=1000,
        precision=precision,
        optimizer=optimizer,
        peers=peers,
    )


CELLS = (
    _imagenet("resnet50-fp32-sgd", "resnet50", "fp32", "sgd", peers=True),
    _imagenet("resnet50-fp32-adamw", "resnet50", "fp32", "adamw"),
    _imagenet("resnet50-bf16-sgd", "resnet50", "bf16", "sgd", peers=True),
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

FAKE = Cell(
    name="fake-resnet50-fp32-sgd",
    model="resnet50",
    dataset="fake_images",
    num_classes=1000,
    precision="fp32",
    optimizer="sgd",
    channels_last=False,
    fused=False,
)
"""What the README's command trains, in a script that asks for nothing: the plain recipe on torchvision's FakeData."""

HELD = (("resnet50-bf16-sgd", 0.25), ("vit-b16-bf16-adamw", 0.50))
"""Cells that are measured once more while another process holds that share of the device."""

CLEAN = ("resnet50-bf16-sgd",)
"""Cells whose probe must leave the device as it was."""

_TINY = Cell(
    name="tiny-fp32-sgd",
    model="tiny_images",
    dataset="small_images",
    num_classes=5,
    precision="fp32",
    optimizer="sgd",
    peers=True,
    cap=512,
)

SMOKE_CELLS = (
    _TINY,
    replace(_TINY, name="tiny-bf16-adamw", precision="bf16", optimizer="adamw"),
    replace(_TINY, name="tiny-unet", model="tiny_unet", dataset="small_masks", num_classes=3, peers=False),
    replace(
        _TINY, name="tiny-lm", model="tiny_lm", dataset="small_tokens", num_classes=11, channels_last=False, peers=False
    ),
)
"""For a rehearsal without a GPU: their models fail above a batch of `memory_cells.TINY_CEILING`, as CUDA would."""

SMOKE_FAKE = replace(
    _TINY, name="tiny-fake-fp32-sgd", dataset="small_fake_images", channels_last=False, fused=False, peers=False
)

SMOKE_HELD = (("tiny-fp32-sgd", 0.25),)
SMOKE_CLEAN = ("tiny-fp32-sgd",)


def cell_named(name: str) -> Cell:
    """Raises KeyError with the names there are."""
    by_name = {cell.name: cell for cell in (*CELLS, *UNSEEN, FAKE, *SMOKE_CELLS, SMOKE_FAKE)}
    if name not in by_name:
        raise KeyError(f"there is no cell {name!r}; there are {', '.join(by_name)}")
    return by_name[name]
