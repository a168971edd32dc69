"""Who is run next: every contestant in every round, in balanced order, with three planned looks.

Looking after every round would find a difference in 7 to 19% of comparisons of a configuration with itself (simulated):
see `statistics.looks`.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from loadtune.final.winner import Verdict
from loadtune.records.config import TrialConfig
from loadtune.records.measurement import Measurement, TrialFailure
from loadtune.records.result import Attempt
from loadtune.search.search import LOOKS, MIN_RUNS


@dataclass(slots=True)
class Final:
    """Measure each that `rounds` names, and tell the outcome to `saw`.

    Rounds, in each of them what matters most first. Who fails is run once more at the end of the round, and is out with
    a second failure. Those whom the answer needs are run once whatever the time. Where a round does not fit into the
    time left, one of the needed alone may. Beyond `MIN_RUNS` rounds it has to fit though one run lasts twice as long.
    Who misses a round is not run any more, so that each n-th figure is of the n-th round.
    """

    configs: Sequence[TrialConfig]
    verdict: Verdict
    """Of all runs until now. One of before an interruption stands in place of a run."""
    left_s: Callable[[], float]
    """Seconds in which runs may be made."""
    seed: int = 0
    _took_s: dict[TrialConfig, float] = field(init=False)

    def saw(self, config: TrialConfig, outcome: Measurement | TrialFailure) -> None:
        self.verdict = replace(self.verdict, ran=(*self.verdict.ran, Attempt.of(config, outcome)))

    def rounds(self) -> Iterator[TrialConfig]:
        """Whom to measure, in balanced order, after a look those alone that are undecided."""
        self._took_s = {each.config: each.measurement.seconds if each.measurement else 0.0 for each in self.verdict.ran}
        order, turn, chance = list(self.configs), list(self.configs), random.Random(self.seed)
        for number in range(LOOKS[-1]):
            before = replace(self.verdict, num_rounds=number)
            if number in LOOKS:
                going_on = before.undecided()
                order = [config for config in order if config in going_on]
            if number > 0:
                order = order[::-1] if number % 2 else chance.sample(order, len(order))
            turn = self._fitting(number, [config for config in order if config in turn], before)
            yield from self._round(number, turn)

    def _fitting(self, number: int, order: Sequence[TrialConfig], before: Verdict) -> list[TrialConfig]:
        """The whole round, or of it those that the answer needs, or nobody. The first is whole, with these ahead."""
        num_ran = self._num_ran
        turn = [config for config in order if num_ran[config] >= number and config not in before.barred]
        if max(num_ran.values(), default=0) > number + 1:
            return [config for config in turn if num_ran[config] > number]  # it was over before an interruption
        first = before.needed(turn)
        if number == 0:
            return sorted(turn, key=lambda config: config not in first)
        alone, spared_s = [config for config in turn if config in first], max(self._took_s.values(), default=0.0)
        left_s = max(0.0, self.left_s() - (spared_s if number >= MIN_RUNS else 0.0))
        lasting = ((who, sum(self._took_s[each] for each in who if num_ran[each] == number)) for who in (turn, alone))
        return next((who for who, seconds in lasting if seconds <= left_s), [])

    def _round(self, number: int, turn: Sequence[TrialConfig]) -> Iterator[TrialConfig]:
        """Those of it that have not run, and once more who failed."""
        last, num_ran = {each.config: each.failure for each in self.verdict.ran}, self._num_ran
        waiting = [config for config in turn if num_ran[config] == number]
        waiting.sort(key=lambda config: last.get(config) is not None)
        for config in waiting:  # whoever fails is appended
            left_s, longest_s = self.left_s(), max(self._took_s.values(), default=0.0)
            may_skip = last.get(config) if number else config not in self.verdict.needed(self.configs)
            if may_skip and longest_s > left_s:
                continue
            yield config
            ran = self.verdict.ran[-1]
            last[config] = ran.failure
            # A segment that was repeated took longer than the next will.
            self._took_s[config] = ran.measurement.seconds if ran.measurement else left_s - self.left_s()
            if ran.failure is not None and config not in self.verdict.barred:
                waiting.append(config)

    @property
    def _num_ran(self) -> Counter[TrialConfig]:
        return Counter(each.config for each in self.verdict.ran if each.measurement)
