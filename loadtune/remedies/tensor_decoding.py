"""Decode images by torchvision instead of Pillow: straight to a tensor, without the steps between."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadtune.records import TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation

if TYPE_CHECKING:
    import torch

    from loadtune.workload import Workload

CODE = """\
from torchvision.io import ImageReadMode, decode_image

def read(path):
    return decode_image(path, mode=ImageReadMode.RGB)
"""


class TensorDecoding(Remedy):
    title = "decode by torchvision, not Pillow"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        return situation.config if len(situation.facts.input_shape) == 3 else None

    def apply(self, workload: "Workload") -> "Workload":
        from loadtune.remedies.leaves import small_batch
        from loadtune.remedies.transforms import check_reads_files, set_steps, steps_of, with_owner

        check_reads_files(workload.dataset)
        steps = [ToFloats() if _is_to_tensor(step) else step for step in steps_of(workload.dataset)]

        def change(dataset: Any) -> None:
            dataset.loader = read
            set_steps(dataset, steps)

        changed = with_owner(workload, change)
        try:
            small_batch(changed)
        except Exception as error:
            raise NotApplicableError("the dataset's transform does not take tensors") from error
        return changed

    def own_code(self, workload: "Workload") -> str:
        from loadtune.remedies.transforms import path_of, steps_of, transform_lines

        steps, path = steps_of(workload.dataset), path_of(workload.dataset)
        lines = [CODE, f"{path}.loader = read  # of an ImageFolder"]
        at = next((at for at, step in enumerate(steps) if _is_to_tensor(step)), None)
        if at is None:
            return "\n".join(lines)
        made = ["ConvertImageDtype(torch.float32)"]
        made = [f"*{path}.transform.transforms[:{at}]", *made] if at else made
        made += [f"*{path}.transform.transforms[{at + 1}:]"] if at + 1 < len(steps) else []
        return "\n".join(
            [
                "from torchvision.transforms import Compose, ConvertImageDtype",
                *lines,
                "# the transform gets tensors now: another step in place of ToTensor()",
                *transform_lines(workload.dataset, f"Compose([{', '.join(made)}])"),
            ]
        )


def read(path: str) -> "torch.Tensor":
    """The image as a uint8 tensor (3, H, W)."""
    from torchvision.io import ImageReadMode, decode_image

    return decode_image(path, mode=ImageReadMode.RGB)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ToFloats:
    """What ToTensor does, for tensors."""

    makes_tensors: bool = True

    def __call__(self, image: Any) -> "torch.Tensor":
        import torch
        from torchvision.transforms.functional import convert_image_dtype, to_tensor

        return convert_image_dtype(image) if isinstance(image, torch.Tensor) else to_tensor(image)  # type: ignore[no-any-return]


def _is_to_tensor(step: Any) -> bool:
    from torchvision import transforms as v1

    return isinstance(step, v1.ToTensor)
