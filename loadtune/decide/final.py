"""The final: who won, and by how much, by means of repeated runs and ratios with their intervals; and who is run next,
every contestant in every round, in balanced order, with three planned looks. Pure.

The search's own figures choose who is measured again and are in no mean: the best of many noisy figures is too good to
be true (simulated: it overclaims by 6% at 5% noise). Looking after every round would find a difference in 7 to 19% of
comparisons of a configuration with itself (simulated): see `records.statistics`.
"""

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from loadtune.records.config import TrialConfig
from loadtune.records.measurement import (
    GAIN,
    MISREAD,
    ComputePoint,
    Measurement,
    TrialFailure,
    compute_fraction,
    compute_rate,
    is_barred,
)
from loadtune.records.result import Attempt, Finalist, Unconfirmed, UnconfirmedReason, Winner, failures_of, measured_of
from loadtune.records.statistics import Interval, around_ratio, spread_between, t

LOOKS = (3, 5, 8)
"""Rounds of the final after which its figures are looked at; the last is the end."""

MIN_RUNS = 2
"""Of whoever is named the winner, where time allows: one run has no interval, and the fastest of several was lucky."""

ERROR = 0.01
"""Probability of calling equal configurations different in one confirmation, over all its looks."""

FEWEST_DEGREES = 4
"""Of freedom, for a spread around rounds: three configurations in three rounds have as many, two in three rounds two,
with which the interval of one look is 29 standard errors wide."""

TIE = 0.98
"""Means within 2% count as equal; the smallest of them wins."""

PRECISE = 0.04
"""Half width of the winner's 95% interval at which its rate is known well enough."""


def size(config: TrialConfig) -> tuple[int, int]:
    """What a configuration costs a user: workers first, then batch."""
    return config.loader.num_workers, config.batch_size


NEAR = 0.95
"""Rates within 5% are near each other: means of two segments of one setting differ by more (6%)."""


def roomiest(rates: Mapping[TrialConfig, float], compute_per_s: Mapping[TrialConfig, float]) -> list[TrialConfig]:
    """Of configurations with these throughputs those that leave the device the most headroom: their compute-only rates
    are the highest. All, where these are not known."""
    most = 2.0 * max(rates.values(), default=0.0)  # no change of the code was seen to gain more (1.95)
    rooms = {config: min(most, compute_per_s.get(config, 0.0)) for config in rates}
    least = NEAR * max(rooms.values(), default=0.0)
    return [config for config, room in rooms.items() if room >= least]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the runs of a final say. There are two answers where the user gave a batch size: at any, and at that."""

    ran: Sequence[Attempt]
    yours: TrialConfig | None = None
    """The baseline, the user's settings. None: there is none."""
    batch_size: int | None = None
    """That the user gave. None: none."""
    keeps_precision: bool = False
    """Whether the user named a precision. Another has to be proven faster, or to leave the device more headroom."""
    trials: Sequence[Attempt] = ()
    """Those of the search. They tell how far runs of one configuration differ, as two rounds of the final alone hardly
    do: 345 and 509 samples/s of one and 4,539 and 4,626 of another were no proof of a gain (H200)."""
    points: Sequence[ComputePoint] = ()
    """Compute-only rates that are to be reached by no finalist."""
    compute_per_s: Mapping[TrialConfig, float] = field(default_factory=dict)
    """Compute-only samples/s of contestants, as far as they are known: the headroom that they leave the device."""
    num_rounds: int = LOOKS[-1]
    """Those that count, from the first on."""

    @cached_property
    def _runs(self) -> dict[TrialConfig, list[Measurement]]:
        """Of each that ran, in rounds that count."""
        ran = measured_of(self.ran)
        runs = {config: [run for other, run in ran if other == config][: self.num_rounds] for config, _ in ran}
        return {config: own for config, own in runs.items() if own}

    @cached_property
    def finalists(self) -> tuple[Finalist, ...]:
        """Runs put together by configuration, each mean with its interval and with what rules it out, if anything does;
        configurations that never ran are left out."""
        found = [
            Finalist(
                config=config,
                runs=tuple(own),
                failures=tuple(failure for other, failure in failures_of(self.ran) if other == config),
            )
            for config, own in self._runs.items()
        ]

        def judged(each: Finalist) -> Finalist:
            seen = [(*other.runs, *self._tried(other.config)) for other in found]
            if len(each.runs) > FEWEST_DEGREES:  # its own spread; configurations differ in how steady they are
                seen = [each.runs]
            half_width, spread = None, spread_between([[run.samples_per_s for run in runs] for runs in seen])
            if spread is not None:
                sd = spread.sd / math.sqrt(len(each.runs))
                half_width = t(spread.degrees_of_freedom, num_intervals=len(found)) * sd
            known = replace(each, half_width_fraction=half_width)
            return replace(known, unconfirmed=self._ruled_out_by(known))

        return tuple(map(judged, found))

    @cached_property
    def _scores(self) -> dict[TrialConfig, list[float]]:
        """Of each finalist, by run."""
        return {config: [run.score for run in own] for config, own in self._runs.items()}

    def _tried(self, config: TrialConfig) -> list[Measurement]:
        """Its run in the search, which counts for the spread between runs alone: it was picked for what it read there.
        Empty: it was not tried, or nothing ran twice in the final."""
        is_twice = any(len(own) >= MIN_RUNS for own in self._runs.values())
        return [run for other, run in measured_of(self.trials) if other == config and is_twice]

    def _ruled_out_by(self, finalist: Finalist) -> Unconfirmed | None:
        """Why it is never the answer. None: nothing rules it out."""
        failed = failures_of((*self.trials, *self.ran))
        precisions = ("fp32", finalist.config.precision)  # what is not finite in fp32 is so in any
        bad = [each for each in failed if each[1].kind == "non_finite_loss" and each[0].precision in precisions]
        if bad:
            return Unconfirmed(reason="non_finite_loss", config=bad[0][0], failures=(bad[0][1],))
        own = [failure for config, failure in failed if config == finalist.config]
        if is_barred(own):
            return Unconfirmed(reason="failed", config=finalist.config, failures=tuple(own))
        rate, point = finalist.throughput, compute_rate(self.points, finalist.config)
        # By more than the interval of the one and the fastest window of the other explain.
        if point is not None and (rate.value if rate.low is None else rate.low) > MISREAD * point.quickest_per_s:
            compute_per_s = point.samples_per_s
            return Unconfirmed(reason="above_compute_only", config=finalist.config, compute_per_s=compute_per_s)
        return None

    def ratio(self, one: Finalist, other: Finalist, num_comparisons: int | None = None) -> Interval:
        """Of their scores, and its interval at the level of one look (`ERROR` over `LOOKS` and comparisons, as many as
        one of them was picked from; None: as there are rivals of the baseline, also those that ran once).

        Rounds are blocks: what a round is faster by, all in it share. Only rounds that both ran in count, so that a
        verdict stays what it was at the look after which one of them was out. Where these leave too few degrees of
        freedom, the plain spread between runs is used, with those of the search. No interval: nothing ran twice.
        """
        if one is other:
            return Interval(value=1.0, low=1.0, high=1.0)
        if num_comparisons is None:
            num_comparisons = sum(f.config != self.yours for f in self._able())
        scores = list(self._scores.values())
        logs = [math.log(a / b) for a, b in zip(self._scores[one.config], self._scores[other.config], strict=False)]
        most, ratio = max(map(len, scores)), math.exp(statistics.fmean(logs))
        num_rounds = len(logs) if len(logs) >= LOOKS[0] else most
        spread = spread_between([own[:num_rounds] for own in scores if len(own) >= num_rounds], in_rounds=True)
        if spread is None or spread.degrees_of_freedom < FEWEST_DEGREES:
            tried = [[run.score for run in self._tried(each.config)] for each in self.finalists]
            spread = spread_between([[*own[:num_rounds], *seen] for own, seen in zip(scores, tried, strict=True)])
        if spread is None:
            return Interval(value=ratio)
        num_looks = len(LOOKS) if num_rounds >= LOOKS[0] else 1  # time ended it before the first planned one
        sd = spread.sd * math.sqrt(2 / len(logs))
        return around_ratio(ratio, t(spread.degrees_of_freedom, ERROR / num_looks, num_comparisons) * sd)

    def best(self, batch_size: int | None = None) -> Finalist | None:
        """Of those that are proven better than the baseline and stand beside the best, see `_standing`. ``batch_size``
        leaves only its own to choose from; None: any.

        Where nothing is, the baseline itself: a rival has to gain for sure, the user's settings do not. The best of all
        where the baseline has no rate, or does not train. None: nothing ran, or something rules out all that did. A
        configuration that was run once wins only where no rival of the baseline ran twice. What is proven at a batch
        size is proven among all. Changes of the code are judged apart.
        """
        eligible, own = self._able(batch_size), self._own
        if any(len(f.runs) >= MIN_RUNS for f in eligible if f.config != self.yours):
            eligible = [f for f in eligible if len(f.runs) >= MIN_RUNS]
        if own is not None and own in self._able(batch_size, "above_compute_only"):
            eligible = [f for f in eligible if (self.ratio(f, own).low or 0.0) > 1.0] or [own]
        if not eligible:
            return None
        best = self._standing(eligible)
        same = [f for f in eligible if self.yours is not None and f.config.precision == self.yours.precision]
        if not self.keeps_precision or not same or best in same:
            return best
        kept = self._standing(same)
        is_roomier = kept.config not in roomiest({f.config: f.score for f in (best, kept)}, self.compute_per_s)
        return best if is_roomier or self.ratio(best, kept).holds(1.0) is False else kept

    def _standing(self, among: Sequence[Finalist]) -> Finalist:
        """Of those near the best that are not proven to differ from it: with the user's batch size, if any has it; then
        with the most headroom, which a change of the code can use; of these, the smallest within 2% of their best."""
        best = max(among, key=lambda f: f.score)
        near = [f for f in among if f.score >= NEAR * best.score and self.ratio(best, f).holds(1.0) is not False]
        near = [f for f in near if f.config.batch_size == self.batch_size] or near  # another one needs retuning
        most = roomiest({f.config: f.score for f in near}, self.compute_per_s)
        roomy = [f for f in near if f.config in most]
        return min((f for f in roomy if f.score >= TIE * max(f.score for f in roomy)), key=lambda f: size(f.config))

    def winner(self, batch_size: int | None = None) -> Winner | None:
        """The best, beside the baseline, and where that is the best beside its rivals."""
        best, own = self.best(batch_size), self._own
        if best is None:
            return None
        rivals = self._able(batch_size, "above_compute_only")  # of two rates one is wrong, and it may be the other
        gains = [self.ratio(f, best) for f in rivals if best is own is not f]
        return Winner(
            config=best.config,
            samples_per_s=best.samples_per_s,
            half_width_fraction=best.half_width_fraction,
            speedup=None if own is None else self.ratio(best, own),
            rival_gain=max(gains, key=lambda gain: gain.high or math.inf, default=None),
            compute_fraction=compute_fraction(self.points, best.config, best.samples_per_s),
        )

    def undecided(self) -> set[TrialConfig]:
        """Who has to be run again for the answers. And the winner and the contestant with changes of the code, while it
        is not known whether these gain."""
        found, best = self.undecided_at(None) | self.undecided_at(self.batch_size), self.best(None)
        changed = next((f for f in self.finalists if f.config.remedies and not f.unconfirmed), None)
        if best is None or changed is None or _is_told(self.ratio(changed, best, 1)):
            return found
        return found | {best.config, changed.config}

    def undecided_at(self, batch_size: int | None) -> set[TrialConfig]:
        """The winner, and all whose ratio to it may be 1.

        Nobody, if the winner's throughput is known to within `PRECISE`, and whether it differs from the baseline's:
        the interval of their ratio excludes 1, or lies within `GAIN` of 1. If the baseline is the winner, its best
        rival takes the baseline's place. A baseline that failed twice is not waited for.
        """
        best = self.best(batch_size)
        if best is None:
            return set()
        own = [f for f in self._able() if f.config == self.yours]
        rivals = sorted((f for f in self._able(batch_size) if f not in own), key=lambda f: -f.score)
        ratios = {f.config: self.ratio(best, f) for f in (*rivals, *own) if f is not best}
        against = rivals[:1] if best in own else own
        half = best.half_width_fraction
        if half is not None and half <= PRECISE and all(_is_told(ratios[f.config]) for f in against):
            return set()
        return {best.config, *(config for config, ratio in ratios.items() if ratio.holds(1.0) is not False)}

    @property
    def is_confirmed(self) -> bool:
        """Whether a final that was ended in its midst has its answers: each winner, the baseline and another
        configuration were run twice each."""
        twice = [f for f in self.finalists if len(f.runs) >= MIN_RUNS]
        rivals = [f.config for f in twice if f.config != self.yours and not f.config.remedies]
        sizes = {size for config in rivals for size in (None, config.batch_size)}
        is_known = all(f in twice for f in self.finalists if f.config == self.yours)
        return is_known and all(self.best(size) in twice and size in sizes for size in (None, self.batch_size))

    @cached_property
    def barred(self) -> set[TrialConfig]:
        """Those that failed too often to be run again."""
        failed = failures_of(self.ran)
        return {config for config, _ in failed if is_barred([each for other, each in failed if other == config])}

    def needed(self, among: Sequence[TrialConfig]) -> list[TrialConfig]:
        """What the answer is made of, what matters most first: the baseline, the best rival so far at its batch size,
        which is the headline, the best rival, and the second at that size."""
        scores = {each.config: each.score for each in self.finalists}
        ranked = sorted((c for c in among if c not in self.barred), key=lambda config: -scores.get(config, 0.0))
        rivals = [config for config in ranked if config != self.yours and not config.remedies]
        at_batch = [config for config in rivals if self.yours and config.batch_size == self.batch_size]
        own = [config for config in ranked if config == self.yours]
        return list(dict.fromkeys([*own, *at_batch[:1], *rivals[:1], *at_batch[1:2]]))

    @property
    def _own(self) -> Finalist | None:
        """The baseline: one that crashed now and then trained at its rate, too."""
        able = self._able(None, "above_compute_only", "failed")
        return next((f for f in able if f.config == self.yours), None)

    def _able(self, batch_size: int | None = None, *doubts: UnconfirmedReason) -> list[Finalist]:
        """With this batch size, without changes of the code, and unless something else than these rules them out."""
        able = [f for f in self.finalists if not f.unconfirmed or f.unconfirmed.reason in doubts]
        return [f for f in able if not f.config.remedies and batch_size in (None, f.config.batch_size)]


def _is_told(ratio: Interval) -> bool:
    """Whether the two differ, or are equal to within `GAIN`."""
    low, high = ratio.low or 0.0, ratio.high or math.inf
    return ratio.holds(1.0) is False or (low >= 1 / (1 + GAIN) and high <= 1 + GAIN)


# Who is run next


@dataclass(slots=True)
class Final:
    """Measure each that `rounds` names, and tell the outcome to `saw`.

    Rounds, in each of them what matters most first. Who fails is run once more at the end of the round, and is out with
    a second failure. Those whom the answer needs are run once whatever the time. Where a round does not fit into the
    time left, one of as many of them as fit may. Beyond `MIN_RUNS` rounds it has to fit though one run lasts twice as
    long. Who misses a round is not run any more, so that each n-th figure is of the n-th round.
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
        """The whole round, or of it those that the answer needs, or two of these at the least, or nobody. The first is
        whole, with these ahead."""
        num_ran = self._num_ran
        turn = [config for config in order if num_ran[config] >= number and config not in before.barred]
        if max(num_ran.values(), default=0) > number + 1:
            return [config for config in turn if num_ran[config] > number]  # it was over before an interruption
        first = before.needed(turn)
        if number == 0:
            return sorted(turn, key=lambda config: config not in first)
        spared_s = max(self._took_s.values(), default=0.0)
        left_s = max(0.0, self.left_s() - (spared_s if number >= MIN_RUNS else 0.0))
        fewer = (first[:num] for num in range(len(first), min(1, len(first) - 1), -1))
        pairs = ([first[0], other] for other in first[2:])
        alone = ([config for config in turn if config in some] for some in (turn, *fewer, *pairs))
        lasting = ((who, sum(self._took_s[each] for each in who if num_ran[each] == number)) for who in alone)
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
