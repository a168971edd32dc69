"""Decode images by torchvision instead of Pillow: straight to a tensor, without the steps between."""

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

{path}.loader = read  # of an ImageFolder"""


class TensorDecoding(Remedy):
    title = "decode by torchvision, not Pillow"
    changes = "torchvision deprecates its decoders from version 0.29 on"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        taken = bool({"draft_decoding", "gpu_decoding"} & set(situation.config.remedies))
        return situation.config if len(situation.facts.input_shape) == 3 and not taken else None

    def apply(self, workload: "Workload") -> "Workload":
        from loadtune.remedies.leaves import small_batch
        from loadtune.remedies.transforms import as_tensor_steps, check_reads_files, set_steps, steps_of, with_owner

        check_reads_files(workload.dataset)
        steps = as_tensor_steps(steps_of(workload.dataset))

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
        from loadtune.remedies.transforms import copy_lines, path_of, takes_tensors_lines

        dataset = workload.dataset
        lines = CODE.format(path=path_of(dataset)).splitlines()
        return "\n".join([*copy_lines(dataset), *lines, *takes_tensors_lines(dataset)])


def read(path: str) -> "torch.Tensor":
    """The image as a uint8 tensor (3, H, W)."""
    from torchvision.io import ImageReadMode, decode_image

    return decode_image(path, mode=ImageReadMode.RGB)  # type: ignore[no-any-return]
