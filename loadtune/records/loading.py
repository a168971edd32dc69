"""The steps of loading: what workers spend their time on, in the words of the user's code. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtune.units import percent_text, plain

KEPT_STEPS = 8
"""Of a loader, the largest."""
_SHOWN, _LEAST, _WAITING, _WIDTH = 3, 0.01, 0.2, 70


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingStep:
    """A step that the dataset or the collate function takes, as seen by looking at the stacks of those that load."""

    name: str
    """A line of the user's code with the library function that it calls, ``train.py:90 row.drop("label")
    [DataFrame.drop]``; or the object of a library, ``RandomResizedCrop``. At most 200 characters."""
    share: float
    """Of the time that loading takes, 0 to 1, of all workers together."""
    waits: float | None
    """Share of the step's own time in which it waits, as for a file, a network or a lock, 0 to 1. None: the system does
    not say."""

    @property
    def text(self) -> str:
        """The name in one line that is not too long."""
        name = plain(self.name)
        return name if len(name) <= _WIDTH else f"{name[: _WIDTH - 1]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedChange:
    """A change of the user's code that was tried on samples of the user's beside a running training, and is cheaper."""

    name: str
    """``tensor_decoding``."""
    title: str
    """What to do, in a few words: ``decode with torchvision``."""
    before_cpu_s: float
    """CPU seconds in which one process makes a sample with the changes before this one, collating included."""
    after_cpu_s: float
    """With this one, too."""
    cheaper: float
    """CPU seconds of a sample without this change ÷ those with it; at least 1.1."""
    num_samples: int
    """On which the values were compared. 0: they were not."""
    values: str
    """How the values differ: ``values are equal to the last bit``. Empty: they were not compared."""
    code: str
    """Lines to paste."""


def changes_text(changes: Sequence[TriedChange], gain: float) -> str:
    """Of one change at least. ``gain``: predicted of all together: times as fast."""
    each = [
        f"{one.title} ({one.cheaper:.2g} times less CPU time a sample{one.values and f'; {one.values}'})"
        for one in changes
    ]
    return f"training would be about {gain:.2g} times as fast with changes of your code: {', then '.join(each)}"


def steps_text(steps: Sequence[LoadingStep]) -> str:
    """``52% of its time in RandomResizedCrop, 27% in train.py:31 Image.open(path) (80% of that waiting),
    8% in ToTensor``: the largest. There is one at least."""
    named = list[str]()
    for step in [each for each in steps[:_SHOWN] if each is steps[0] or each.share >= _LEAST]:
        waits = f" ({percent_text(step.waits)} of that waiting)" if (step.waits or 0.0) > _WAITING else ""
        named.append(f"{percent_text(step.share)}{'' if named else ' of its time'} in {step.text}{waits}")
    return ", ".join(named)
