"""The steps of loading: what workers spend their time on, in the words of the user's code. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtune.records.statistics import Interval
from loadtune.units import percent_text, plain, ratio_text

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
class Loading:
    """What one process with one thread needs to make a sample in a batch, collating included."""

    sample_s: float
    """Wall seconds."""
    sample_cpu_s: float
    """CPU seconds of that."""
    sample_bytes: float
    """Bytes of a sample in a batch, as a worker sends it."""
    prepare_s: float = 0.0
    """Seconds on the device, before the batch is trained on: to make floats of bytes, say."""


FARTHEST = 0.02
"""Mean difference of values, as a share of their standard deviation, up to which a change keeps the samples. Pillow and
torchvision differ by 0.001 where they resize, and by 0.005 where they change colours."""


class NotApplicableError(Exception):
    """A change cannot be used for this job; the message says why, as a clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """How the values that are trained on differ with a change, under equal random states."""

    num_samples: int
    most: float
    """Largest difference of two values."""
    mean: float
    """Mean difference."""
    spread: float
    """Standard deviation of the values without the change."""

    @property
    def text(self) -> str:
        if not self.most:
            return f"values of {self.num_samples} samples are equal to the last bit"
        spread = f"; their standard deviation is {self.spread:.2g}" if self.spread else ""
        differ = f"differ by at most {self.most:.2g}, on average by {self.mean:.2g}{spread}"
        return f"values of {self.num_samples} samples {differ}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What loading some samples with a change and without it told, before it was tried in training."""

    name: str
    title: str = ""
    """What to do, in a few words: ``decode with torchvision``."""
    refused: str | None = None
    """Why the change cannot be used for this job. None: it can."""
    before: Loading | None = None
    """Without the change, timed in turn with `after`. None: it does not change what is loaded."""
    after: Loading | None = None
    cheaper: Interval | None = None
    """CPU seconds of loading without it ÷ with it. None: it does not change what is loaded."""
    values: Values | None = None
    """None: they were not compared."""
    code: str = ""
    """Lines to paste, where they depend on the job. Empty: the change's own lines."""


def changes_text(changes: Sequence[Examined], gain: float) -> str:
    """Of one change at least. ``gain``: predicted of all together: times as fast."""
    each = list[str]()
    for one in changes:
        found = [] if one.cheaper is None else [f"{percent_text(1 - 1 / one.cheaper.value)} less CPU time a sample"]
        found += [one.values.text] if one.values is not None else []
        each.append(f"{one.title} ({'; '.join(found)})")
    return f"changes of your code are predicted to gain {ratio_text(gain)}: {', then '.join(each)}"


def steps_text(steps: Sequence[LoadingStep]) -> str:
    """``52% of its time in RandomResizedCrop, 27% in train.py:31 Image.open(path) (80% of that waiting),
    8% in ToTensor``: the largest. There is one at least."""
    named = list[str]()
    for step in [each for each in steps[:_SHOWN] if each is steps[0] or each.share >= _LEAST]:
        waits = f" ({percent_text(step.waits)} of that waiting)" if (step.waits or 0.0) > _WAITING else ""
        named.append(f"{percent_text(step.share)}{'' if named else ' of its time'} in {step.text}{waits}")
    return ", ".join(named)
