"""What every stage works with, and what share of the time budget each part of it may take."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtune.findings import Findings
from loadtune.probe.memory import verifying_seconds
from loadtune.records import HostFacts, MemoryCeiling, Trial
from loadtune.records.confirmed import is_barred
from loadtune.report.run_file import write_run
from loadtune.seams import Bench, Clock, Sensor

TRIAL_SHARE = 0.008
"""Of the time budget, for the measured part of one segment, where a queue is turned over in less: 2.4 s of the default
five minutes. Segments differ by more than the windows of one do, so more of them tell more than longer ones."""

STUDY_SHARE, STUDY_AT_LEAST = 0.5, 0.2
"""Of what is left of the aim, for the search; and of all time that is left, where a workload is slow to probe."""

AIM_SHARE = 0.48
"""Of the time budget: when a run is meant to be over by its clock, 144 s of the default five minutes. The rest is a
reserve for a workload that is slow to probe or to train."""

CONFIRM_AT_LEAST, CONFIRM_AT_MOST = 0.17, 0.25
"""Of the time budget, for the whole confirmation: three rounds of three finalists take about 50 s on an H200."""

VERIFY_AT_MOST = 0.1
"""Of the time budget, for verifying the memory ceiling of the precision about to win. One that is expected to take
longer stays predicted."""

LAST_SHARE = 0.04
"""Of the time budget, for what comes after the confirmation."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the stages work with."""

    bench: Bench
    sensor: Sensor
    clock: Clock
    found: Findings
    folder: Path
    host_now: Callable[[], HostFacts]
    """Reads the machine anew: its memory changes while a run goes on."""

    @property
    def standing(self) -> list[Trial]:
        """The trials without those that failed before the run was resumed, and once: they are asked again."""
        trials, num_before = self.found.trials, self.found.num_before

        def counts(number: int, trial: Trial) -> bool:
            failures = [each.failure for each in trials if each.config == trial.config and each.failure is not None]
            return trial.failure is None or number >= num_before or is_barred(failures)

        return [trial for number, trial in enumerate(trials) if counts(number, trial)]

    @property
    def is_as_it_was(self) -> bool:
        """Whether the run goes on and nothing was begun yet: what lies in its folder says more than `found`."""
        return self.found.is_resumed and self.found.stage_name == "start"

    @property
    def is_over(self) -> bool:
        """Whether the confirmation had ended before an interruption, and no more is asked for now."""
        found, asks = self.found, self.found.remedies is None and self.found.config.remedies != "none"
        ended_s = found.concluded_s if found.is_resumed and not asks else None
        return ended_s is not None and found.config.time_budget_s <= ended_s

    def save(self) -> None:
        """Store what was found until now."""
        if not self.found.trials:
            self.found.early_notes = tuple(self.found.notes)
        write_run(self.found, self.folder)

    @property
    def search_until_s(self) -> float:
        """No trial begins that would end later: half of what is left of the aim, or less where verifying, the
        confirmation and the last figures need more than the other half; or a share of all that is left."""
        verify_s = max(
            (s for c in self.found.ceilings if (s := verifying_seconds(c)) <= self._verify_most_s), default=0.0
        )
        kept_s = verify_s + (CONFIRM_AT_LEAST + LAST_SHARE) * self.found.config.time_budget_s
        aimed_s = min(STUDY_SHARE * self._aim_left_s, self._aim_left_s - kept_s)
        least = STUDY_SHARE if self.found.config.tune else STUDY_AT_LEAST  # more dimensions were asked for
        return max(self.until(least), self.clock.now() + aimed_s)

    def has_time_to_verify(self, ceiling: MemoryCeiling) -> bool:
        """Whether this ceiling can be verified, and enough is left for the confirmation and the last figures."""
        kept_s = (CONFIRM_AT_LEAST + LAST_SHARE) * self.found.config.time_budget_s
        return verifying_seconds(ceiling) <= min(self._verify_most_s, self.found.left_s - kept_s)

    @property
    def _verify_most_s(self) -> float:
        return VERIFY_AT_MOST * self.found.config.time_budget_s

    @property
    def confirm_until_s(self) -> float:
        """No run of the confirmation is repeated that would end later; a little is kept for the last figures."""
        budget_s = self.found.config.time_budget_s
        aimed_s = self._aim_left_s - LAST_SHARE * budget_s
        seconds = min(CONFIRM_AT_MOST * budget_s, max(CONFIRM_AT_LEAST * budget_s, aimed_s))
        return min(self.answer_until_s, self.clock.now() + seconds)

    @property
    def answer_until_s(self) -> float:
        """The same of the second run of those that the answer is made of."""
        return self.until(1 - LAST_SHARE)

    @property
    def _aim_left_s(self) -> float:
        """Until the run is meant to be over; below 0: it was."""
        return self.found.left_s - (1 - AIM_SHARE) * self.found.config.time_budget_s

    def until(self, share: float) -> float:
        """The moment at which this share of the time now left is spent."""
        return self.clock.now() + share * max(0.0, self.found.left_s)
