"""Who is run next in a confirmation, from what its runs scored and took so far. Pure, and no clock.

Apart from `confirm`, which runs them: this is where the time goes that makes the answer sure.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtune.records import TrialConfig

MIN_RUNS = 2
"""Of whoever is named the winner, where time allows: one run has no interval, and the fastest of several was lucky."""

CONTENDER = 0.87
"""A configuration this close to the leader may really be as fast: two runs of one configuration with fresh loaders,
each some 7% off, differ by 10%, and the leader of a dozen is mostly a lucky one."""


@dataclass(slots=True)
class Rounds:
    """The finalists, those that matter most first, and how their runs went."""

    configs: Sequence[TrialConfig]
    yours: TrialConfig | None = None
    at_your_batch: bool = False
    """A second winner is wanted, at the user's batch size."""
    took_s: dict[TrialConfig, float] = field(default_factory=dict)
    """By the last run."""
    scores: dict[TrialConfig, list[float]] = field(default_factory=dict)
    """Of each that never failed."""

    def add(self, config: TrialConfig, score: float | None, took_s: float) -> None:
        """A run has ended; None: it failed, and is not tried again: it cannot win, and a hang costs minutes."""
        self.took_s[config] = took_s
        if score is None:
            self.scores.pop(config, None)
        else:
            self.scores.setdefault(config, []).append(score)

    @property
    def needed(self) -> list[TrialConfig]:
        """What the answer is made of: the best rival so far, the user's own, and the best rival at its batch size."""
        ranked = self._ranked
        rivals = [config for config in ranked if config != self.yours]
        at_batch = [config for config in rivals if self.yours and config.batch_size == self.yours.batch_size]
        own = [config for config in ranked if config == self.yours]
        return list(dict.fromkeys([*rivals[:1], *own, *at_batch[: 1 if self.at_your_batch else 0]]))

    def first(self) -> list[TrialConfig]:
        """The first round: everybody that was not run yet, what the answer is made of before the others."""
        ordered = dict.fromkeys([*self.needed, *self.configs])
        return [config for config in ordered if config not in self.took_s]

    def further(self, number: int, left_s: float, late_s: float) -> list[TrialConfig]:
        """A later round, the order turned by one each so that drift is shared: everybody, or whom there is time for.

        Where time is short second runs go first: of the best rival, the user's own, and who may be as fast and cannot
        win without one. Then come the first two, then all by rank. The first two narrow the interval of their ratio
        most: each second run adds a degree of freedom to the spread that all share, and theirs halve its variance as
        well. From two runs each on, the best rival is run again alone if need be: of three finalists it takes a fifth
        off the interval. Second runs of what the answer is made of may end `late_s` late, and are not begun unless both
        of the first two can be.
        """
        needed, shift = self.needed, number % len(self.configs)
        once = [config for config in needed if len(self.scores[config]) < MIN_RUNS]
        fitting = self._fitting(number, once, left_s, late_s)
        if not all(config in fitting for config in once if config in needed[:2]):
            return []
        turned = [*self.configs[shift:], *self.configs[:shift]]
        return [config for config in turned if config in fitting]

    def _fitting(self, number: int, once: list[TrialConfig], left_s: float, late_s: float) -> set[TrialConfig]:
        """Who did not run in this round yet and can; where a long run does not fit, a shorter one may."""
        fitting, spent_s = set(), 0.0
        for config in dict.fromkeys([*once, *self.ran_once, *self.needed, *self._ranked]):
            ends_s = spent_s + self.took_s[config]
            if len(self.scores[config]) <= number and ends_s <= left_s + (late_s if config in once else 0.0):
                fitting.add(config)
                spent_s = ends_s
        return fitting

    @property
    def ran_once(self) -> list[TrialConfig]:
        """Rivals that may be as fast as the best, and of which one run is all there is."""
        ranked = [config for config in self._ranked if config != self.yours]
        near = CONTENDER * max((statistics.fmean(self.scores[config]) for config in ranked), default=0.0)
        return [c for c in ranked if len(self.scores[c]) < MIN_RUNS and self.scores[c][0] >= near]

    @property
    def _ranked(self) -> list[TrialConfig]:
        """By score, the best first; before anything ran as they were given."""
        if not self.took_s:
            return list(self.configs)
        return sorted(self.scores, key=lambda config: -statistics.fmean(self.scores[config]))
