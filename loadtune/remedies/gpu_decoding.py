"""Decode JPEG files on the GPU, and transform them there: workers only read bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loadtune.records import TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation

if TYPE_CHECKING:
    import torch

    from loadtune.workload import Workload

DECODING = {"draft_decoding", "tensor_decoding", "uint8_transfer", "half_transfer"}
"""Remedies that it takes the place of."""


CODE = """\
from torchvision.io import ImageReadMode, decode_jpeg

def read(path):
    with open(path, "rb") as file:
        return file.read()

transform = {path}.transform  # runs on the GPU now
{path}.loader, {path}.transform = read, None

def collate(samples):
    files, targets = zip(*samples)
    return files, torch.tensor(targets)

# DataLoader(..., collate_fn=collate); in the training loop, for a batch (files, targets)
encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
images = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=device)
images = torch.stack([transform(image) for image in images])"""


class GpuDecoding(Remedy):
    title = "decode and transform JPEG on the GPU"
    changes = "the order of random augmentation; torchvision deprecates its decoders from version 0.29 on"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        able = situation.on_gpu and len(situation.facts.input_shape) == 3
        return situation.config if able and not DECODING & set(situation.config.remedies) else None

    def apply(self, workload: "Workload") -> "Workload":
        import torch
        from torch.utils.data import default_collate

        from loadtune.remedies.transforms import as_tensor_steps, check_reads_files, set_steps, steps_of, with_owner

        check_reads_files(workload.dataset)
        if workload.loader.collate_fn not in (None, default_collate):
            raise NotApplicableError("its loader has a collate function of its own")
        if not torch.cuda.is_available():
            raise NotApplicableError("CUDA is not available")
        steps = as_tensor_steps(steps_of(workload.dataset))

        def change(dataset: Any) -> None:
            dataset.loader = read_bytes
            set_steps(dataset, [])

        changed = with_owner(workload, change)
        loader = replace(changed.loader, collate_fn=collate_bytes)
        return replace(changed, loader=loader, on_device=(*workload.on_device, Decoded(steps)))

    def own_code(self, workload: "Workload") -> str:
        from loadtune.remedies.transforms import copy_lines, path_of, takes_tensors_lines

        dataset = workload.dataset
        lines = CODE.format(path=path_of(dataset)).splitlines()
        return "\n".join([*copy_lines(dataset), *takes_tensors_lines(dataset), *lines])


@dataclass(slots=True)
class Files:
    """The bytes of one JPEG file a sample."""

    files: Sequence[bytes]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.files),)


def read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def collate_bytes(samples: list[Any]) -> Any:
    from torch.utils.data import default_collate

    return [Files([file for file, _ in samples]), default_collate([target for _, target in samples])]


class Decoded:
    """A batch (files, targets) as (images, targets), on the device of the targets."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self.steps = steps

    def __call__(self, batch: Any) -> Any:
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg

        files, targets = batch
        encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files.files]
        images = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=targets.device)
        return [torch.stack([self._transformed(image) for image in images]), targets]

    def _transformed(self, image: "torch.Tensor") -> "torch.Tensor":
        for step in self.steps:
            image = step(image)
        return image
