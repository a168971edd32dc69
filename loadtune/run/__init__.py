"""A run: what it has found (`state`), its time (`budget`), what is said and kept (`journal`), and how it times
(`measure`). `Run` is all of it, for the stages; a rule is given the values that it judges.
"""

from collections.abc import Callable
from pathlib import Path

from loadtune.records.facts import HostFacts
from loadtune.run.budget import Budget
from loadtune.run.journal import Journal
from loadtune.run.measure import Measuring
from loadtune.run.state import State
from loadtune.seams import Clock, Listener, Sensor, Training


class Run:
    """What a stage works with. The time budget is counted from now on."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        training: Training,
        sensor: Sensor,
        folder: Path,
        host_now: Callable[[], HostFacts],
        listener: Listener | None = None,
    ) -> None:
        """``host_now`` reads the machine anew: its memory changes while a run goes on."""
        self.state, self.training, self.host_now = state, training, host_now
        self.budget = Budget(clock, state.config.time_budget_s, clock.now(), len(state.config.tune))
        self.journal = Journal(state, self.budget, folder, listener)
        self.measuring = Measuring(training, sensor, self.journal)
