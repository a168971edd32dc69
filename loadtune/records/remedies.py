"""Remedies: changes outside of DataLoader's arguments, tried after the confirmation."""

from dataclasses import dataclass
from typing import Literal, get_args

from loadtune.records.bottleneck import Estimate
from loadtune.records.configs import TrialConfig
from loadtune.records.score import Ratio
from loadtune.records.timing import Measurement

RemedyMode = Literal["none", "auto", "all"]
"""Which remedies are tried: ``none``; ``auto``, those whose expected gain is 3% or more; ``all`` that apply."""
REMEDY_MODES: tuple[RemedyMode, ...] = get_args(RemedyMode)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What the training process found out about one remedy before it was tried."""

    name: str
    refused: str | None = None
    """Why the remedy cannot be used for this job. None: it can."""
    before: Loading | None = None
    """Without the remedy, timed in turn with `after`. None: the remedy does not change what is loaded."""
    after: Loading | None = None
    difference: str | None = None
    """How the samples differ, as measured: ``equal to the last bit``. None: they were not compared."""
    code: str = ""
    """Lines to paste, where they depend on the job. Empty: the remedy's own lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRemedy:
    """One remedy: what was predicted of it, what was measured, and what to write."""

    name: str
    """As in ``loadtune.changes.REMEDIES``: ``uint8_transfer``."""
    title: str
    """What to do, in a few words: ``send uint8 images``."""
    changes: str
    """What changes for training: pixels, order, memory."""
    code: str
    """Lines of Python to paste."""
    base: TrialConfig
    """What it was compared with: the best configuration, with the remedies that were kept before."""
    config: TrialConfig
    """With the remedy."""
    predicted: Estimate | None = None
    """Throughput with it ÷ without it. None: the model does not know."""
    gain: Ratio | None = None
    """Measured throughput with it ÷ without it, with its interval: of 95% for all remedies together. None: it was not
    tried, or it failed."""
    runs: tuple[Measurement, ...] = ()
    """With it; empty: it was not tried, or it failed."""
    base_runs: tuple[Measurement, ...] = ()
    """Without it, in turn with `runs`."""
    kept: bool = False
    """Whether it is among those that gain for sure together."""
    reason: str | None = None
    """Why it was not tried, or how it failed. None: it was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One remedy that was not worth trying."""

    name: str
    reason: str | None
    """As a clause: ``the dataset has __getitems__``. None: the expected gain is too small."""
    predicted: Estimate | None = None
    """Throughput with it ÷ without it. None: it does not apply, or the model does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """Of the best configuration."""

    tried: tuple[TriedRemedy, ...] = ()
    """Those that were tried, in order, then those that were only predicted."""
    left_out: tuple[LeftOut, ...] = ()
    """The others, on top of what was kept."""
    config: TrialConfig | None = None
    """The best configuration with all remedies that were kept. None: none was."""
    samples_per_s: float | None = None
    half_width_fraction: float | None = None
    """Of the 95% interval of `samples_per_s`, as a share of it."""
    gain: Ratio | None = None
    """Of all that were kept, over the best configuration without any."""
    runs: tuple[Measurement, ...] = ()
    """With all that were kept. Empty: there is only one, which has its own, or no time was left, and `gain` is the
    product of theirs."""
    base_runs: tuple[Measurement, ...] = ()
    """Of the best configuration, in turn with `runs`."""
    compute_fraction: float | None = None
    """Share of the compute-only rate at this batch size and recipe. None: that rate was not timed."""
