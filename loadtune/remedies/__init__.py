"""Changes outside of DataLoader's arguments. A new one is one file here, and one line below.

Needs no torch: methods that run in the training process import it when they are called.
"""

from collections.abc import Sequence

from loadtune.remedies.base import FEWEST_EXAMINED, NotApplicableError, Remedy, Situation, num_examined
from loadtune.remedies.batched_fetch import BatchedFetch
from loadtune.remedies.cached import Cached
from loadtune.remedies.compiled import Compiled
from loadtune.remedies.copy_ahead import CopyAhead
from loadtune.remedies.draft_decoding import DraftDecoding
from loadtune.remedies.fused_optimizer import FusedOptimizer
from loadtune.remedies.gpu_decoding import GpuDecoding
from loadtune.remedies.half_transfer import HalfTransfer
from loadtune.remedies.opencv_threads import OpencvThreads
from loadtune.remedies.start_method import StartMethod
from loadtune.remedies.tensor_decoding import TensorDecoding
from loadtune.remedies.uint8_transfer import Uint8Transfer
from loadtune.remedies.unordered import Unordered
from loadtune.remedies.worker_threads import WorkerThreads

_ALL: Sequence[Remedy] = (
    DraftDecoding(),
    TensorDecoding(),
    GpuDecoding(),
    Uint8Transfer(),
    HalfTransfer(),
    BatchedFetch(),
    CopyAhead(),
    FusedOptimizer(),
    Compiled(),
    Unordered(),
    StartMethod(),
    WorkerThreads(),
    OpencvThreads(),
    Cached(),
)
REMEDIES: dict[str, Remedy] = {remedy.name: remedy for remedy in _ALL}
"""By name, in the order in which they are applied where several are combined."""


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """These names in the order in which they are applied."""
    return tuple(name for name in REMEDIES if name in names)


__all__ = [
    "FEWEST_EXAMINED",
    "REMEDIES",
    "NotApplicableError",
    "Remedy",
    "Situation",
    "in_order",
    "num_examined",
]
