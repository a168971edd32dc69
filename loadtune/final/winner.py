"""Who won, and by how much: means of repeated runs with their intervals, ratios with theirs. Pure.

The search's own figures choose who is measured again and are in no mean: the best of many noisy figures is too good to
be true (simulated: it overclaims by 6% at 5% noise).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtune.records.answer import finalist_of
from loadtune.records.config import TrialConfig
from loadtune.records.measurement import Measurement, TrialFailure
from loadtune.records.result import Finalist, Trial, UnconfirmedReason, Winner
from loadtune.search.search import MIN_RUNS
from loadtune.search.space import size
from loadtune.statistics.interval import Interval, around_ratio, spread_between, t

LOOKS = (3, 5, 8)
"""Rounds after which the figures are looked at; the last is the end."""

ERROR = 0.01
"""Probability of calling equal configurations different in one confirmation, over all its looks."""

FEWEST_DEGREES = 4
"""Of freedom, for a spread around rounds: three configurations in three rounds have as many, two in three rounds two,
with which the interval of one look is 29 standard errors wide."""

TIE = 0.98
"""Means within 2% of the best count as equal; the smallest of them wins."""

MARGIN = 0.03
"""Differences that lie within 3% are none: "no difference" is then the answer."""

PRECISE = 0.04
"""Half width of the winner's 95% interval at which its rate is known well enough."""

Outcome = tuple[TrialConfig, Measurement | TrialFailure]


def finalists(outcomes: Sequence[Outcome], trials: Sequence[Trial] = ()) -> tuple[Finalist, ...]:
    """Runs put together by configuration, each mean with its interval; configurations that never ran are left out.

    ``trials``: those of the search. They tell how far runs of one configuration differ, as two rounds of the final
    alone hardly do: 345 and 509 samples/s of one and 4,539 and 4,626 of another were no proof of a gain (H200).
    """
    runs: dict[TrialConfig, list[Measurement]] = {}
    for config, outcome in outcomes:
        if isinstance(outcome, Measurement):
            runs.setdefault(config, []).append(outcome)
    twice = any(len(own) >= MIN_RUNS for own in runs.values())
    tried = {trial.config: trial.measurement for trial in trials if twice}
    found = [
        Finalist(
            config=config,
            runs=tuple(own),
            tried=tried.get(config),
            failures=tuple(each for other, each in outcomes if other == config and isinstance(each, TrialFailure)),
        )
        for config, own in runs.items()
    ]

    def half_width(each: Finalist) -> float | None:
        """From its own spread where it ran often enough to have one; configurations differ in how steady they are."""
        among = [replace(each, tried=None)] if len(each.runs) > FEWEST_DEGREES else found
        return each.mean_among(among).half_width_fraction(len(found))

    return tuple(replace(each, half_width_fraction=half_width(each)) for each in found)


def difference(one: Finalist, other: Finalist, finalists: Sequence[Finalist], num_comparisons: int) -> Interval:
    """Ratio of their scores, and its interval at the level of one look (`ERROR` over `LOOKS` and comparisons, as many
    as one of them was picked from).

    Rounds are blocks: what a round is faster by, all in it share. Only rounds that both ran in count, so that a verdict
    stays what it was at the look after which one of them was out. Where these leave too few degrees of freedom, the
    plain spread between runs is used, with those of the search. No interval: nothing ran twice.
    """
    scores = [[run.score for run in each.runs] for each in finalists]
    logs = [math.log(a.score / b.score) for a, b in zip(one.runs, other.runs, strict=False)]
    most, ratio = max(map(len, scores)), math.exp(statistics.fmean(logs))
    num_rounds = len(logs) if len(logs) >= LOOKS[0] else most
    spread = spread_between([own[:num_rounds] for own in scores if len(own) >= num_rounds], in_rounds=True)
    if spread is None or spread.degrees_of_freedom < FEWEST_DEGREES:
        tried = [[each.tried.score] if each.tried else [] for each in finalists]
        spread = spread_between([[*own[:num_rounds], *seen] for own, seen in zip(scores, tried, strict=True)])
    if spread is None:
        return Interval(value=ratio)
    num_looks = len(LOOKS) if num_rounds >= LOOKS[0] else 1  # time ended it before the first planned one
    sd = spread.sd * math.sqrt(2 / len(logs))
    return around_ratio(ratio, t(spread.degrees_of_freedom, ERROR / num_looks, num_comparisons) * sd)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the figures of a final say. `batch_size` leaves only its own to choose from; None: any."""

    finalists: tuple[Finalist, ...]
    yours: TrialConfig | None
    """The baseline, the user's settings. None: there is none."""
    keeps_precision: bool = False
    """Whether the user named a precision. Another one then has to be proven faster than the best with theirs."""

    def winner(self, batch_size: int | None = None) -> Winner | None:
        """The smallest of those within 2% of the best that is proven better than the baseline.

        Where nothing is, the baseline itself: a rival has to gain for sure, the user's settings do not. The best of all
        where the baseline has no rate, or does not train. None: nothing ran, or something rules out all that did
        (`ruled_out`). A configuration that was run once wins only where no rival of the baseline ran twice. What is
        proven at a batch size is proven among all. Changes of the code are judged apart.
        """
        able = self._able()
        eligible = [f for f in able if batch_size in (None, f.config.batch_size)]
        num_rivals = sum(f.config != self.yours for f in able)  # who was run once was there to pick from as well
        if any(len(f.runs) >= MIN_RUNS for f in eligible if f.config != self.yours):
            eligible = [f for f in eligible if len(f.runs) >= MIN_RUNS]
        own = self._own("above_compute_only", "failed")  # one that crashed now and then trained at its rate, too
        if own is not None and own == self._own("above_compute_only") and batch_size in (None, own.config.batch_size):
            eligible = [f for f in eligible if (self._ratio(f, own, num_rivals).low or 0.0) > 1.0] or [own]
        if not eligible:
            return None
        best = _smallest(eligible)
        same = [f for f in eligible if self.yours is not None and f.config.precision == self.yours.precision]
        if self.keeps_precision and same and best not in same:
            kept = _smallest(same)
            best = best if self._ratio(best, kept, num_rivals).holds(1.0) is False else kept
        all_rivals = self._able("above_compute_only")  # one of whose two rates is wrong, and it may not be this one
        rivals = [f for f in all_rivals if best is own is not f and batch_size in (None, f.config.batch_size)]
        gains = [self._ratio(f, best, num_rivals) for f in rivals]
        return Winner(
            config=best.config,
            samples_per_s=best.samples_per_s,
            half_width_fraction=best.half_width_fraction,
            speedup=None if own is None else self._ratio(best, own, num_rivals),
            rival_gain=max(gains, key=lambda gain: gain.high or math.inf, default=None),
        )

    def undecided(self, batch_size: int | None = None) -> tuple[TrialConfig, ...]:
        """Who has to be run again: the winner, and all whose ratio to it may be 1.

        Nobody, if the winner's throughput is known to within `PRECISE`, and whether it differs from the baseline's:
        the interval of their ratio excludes 1, or lies within `MARGIN` of 1. If the baseline is the winner, its best
        rival takes the baseline's place. A baseline that failed twice is not waited for.
        """
        best = finalist_of(self.finalists, self.winner(batch_size))
        if best is None:
            return ()
        able, own = [f for f in self._able() if f.config != self.yours], self._own()
        rivals = sorted((f for f in able if batch_size in (None, f.config.batch_size)), key=lambda f: -f.score)
        others = [f for f in (*rivals, own) if f is not None and f is not best]
        ratios = {f.config: self._ratio(best, f, len(able)) for f in others}
        against = own if best.config != self.yours else next(iter(rivals), None)
        half = best.half_width_fraction
        if (against is None or _is_told(ratios[against.config])) and half is not None and half <= PRECISE:
            return ()
        return (best.config, *(config for config, ratio in ratios.items() if ratio.holds(1.0) is not False))

    def undecided_change(self) -> tuple[TrialConfig, ...]:
        """The winner and the contestant with changes of the code, while it is not known whether these gain."""
        best = finalist_of(self.finalists, self.winner())
        changed = next((f for f in self.finalists if f.config.remedies and not f.unconfirmed), None)
        if best is None or changed is None or _is_told(self._ratio(changed, best, 1)):
            return ()
        return (best.config, changed.config)

    def is_confirmed(self, batch_size: int | None = None) -> bool:
        """Whether a final that was ended in its midst has an answer: the winner, the baseline and another configuration
        were run twice each."""
        best = finalist_of(self.finalists, self.winner(batch_size))
        twice = [f for f in self.finalists if len(f.runs) >= MIN_RUNS]
        rivals = [f for f in twice if f.config != self.yours and not f.config.remedies]
        return (
            best in twice
            and all(f in twice for f in self.finalists if f.config == self.yours)
            and any(batch_size in (None, f.config.batch_size) for f in rivals)
        )

    def _able(self, *doubts: UnconfirmedReason) -> list[Finalist]:
        """Without changes of the code, and unless something else than these rules them out."""
        able = [f for f in self.finalists if not f.unconfirmed or f.unconfirmed.reason in doubts]
        return [f for f in able if not f.config.remedies]

    def _own(self, *doubts: UnconfirmedReason) -> Finalist | None:
        return next((f for f in self._able(*doubts) if f.config == self.yours), None)

    def _ratio(self, one: Finalist, other: Finalist, num_comparisons: int) -> Interval:
        if one is other:
            return Interval(value=1.0, low=1.0, high=1.0)
        return difference(one, other, self.finalists, num_comparisons)


def _smallest(among: Sequence[Finalist]) -> Finalist:
    """Of those within 2% of the best."""
    top = max(f.score for f in among)
    return min((f for f in among if f.score >= TIE * top), key=lambda f: size(f.config))


def _is_told(ratio: Interval) -> bool:
    """Whether the two differ, or are equal to within `MARGIN`."""
    low, high = ratio.low or 0.0, ratio.high or math.inf
    return ratio.holds(1.0) is False or (low >= 1 / (1 + MARGIN) and high <= 1 + MARGIN)
