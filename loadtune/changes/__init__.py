"""Changes of the user's code, outside of DataLoader's arguments. A new one is a class in `remedies`, and a line below.

Needs no torch: methods that run in the training process import it when they are called.
"""

from collections.abc import Sequence

from loadtune.changes.base import FEWEST_EXAMINED, NotApplicableError, Remedy, Situation, num_examined
from loadtune.changes.remedies import BatchedFetch, DraftDecoding, FusedOptimizer, OpencvThreads, Uint8Transfer

REMEDIES: dict[str, Remedy] = {
    remedy.name: remedy
    for remedy in (DraftDecoding(), Uint8Transfer(), BatchedFetch(), FusedOptimizer(), OpencvThreads())
}
"""By name, in the order in which they are applied where several are combined."""


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """These names in the order in which they are applied."""
    return tuple(name for name in REMEDIES if name in names)
