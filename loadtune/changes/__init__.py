"""Changes of the user's code, outside of DataLoader's arguments. A new one is a class here, and one line below.

Needs no torch: methods that run in the training process import it when they are called.
"""

from collections.abc import Sequence

from loadtune.changes.base import FEWEST_EXAMINED, NotApplicableError, Remedy, Situation, num_examined
from loadtune.changes.decoding import DraftDecoding
from loadtune.changes.fetching import BatchedFetch, Cached
from loadtune.changes.recipe import FusedOptimizer
from loadtune.changes.transfer import Uint8Transfer
from loadtune.changes.workers import OpencvThreads

_ALL: tuple[Remedy, ...] = (
    DraftDecoding(),
    Uint8Transfer(),
    BatchedFetch(),
    FusedOptimizer(),
    OpencvThreads(),
    Cached(),
)
REMEDIES: dict[str, Remedy] = {remedy.name: remedy for remedy in _ALL}
"""By name, in the order in which they are applied where several are combined."""


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """These names in the order in which they are applied."""
    return tuple(name for name in REMEDIES if name in names)
