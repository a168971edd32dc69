"""What a listener is told while a run goes on."""

from dataclasses import dataclass

from loadtune.records.configs import TrialConfig
from loadtune.records.telemetry import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands. A new one comes with every step worth a line, and with every timed window."""

    stage: str
    """``start``, ``recipe``, ``memory``, ``compute``, ``study``, ``confirm``, ``bounds``, ``costs``."""
    message: str | None = None
    """One line that stays: something was found out. None: only the figures moved."""
    warning: bool = False
    """The message is something the user should know before trusting the answer."""
    trial_number: int | None = None
    num_trials: int | None = None
    config: TrialConfig | None = None
    """What is being measured."""
    current_samples_per_s: float | None = None
    best_samples_per_s: float | None = None
    best_samples_per_joule: float | None = None
    """None: it is not what the run looks for, as well as not measured."""
    best_config: TrialConfig | None = None
    reading: Reading | None = None
    has_gpu: bool = True
    """Whether it trains on one: else no figure of a GPU is looked for."""
    left_s: float
    """Of the time budget."""
