"""Who won, and by how much. Pure, over confirmed figures only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtune.final.ruled_out import may_be_kept
from loadtune.final.statistics import difference
from loadtune.records.config import Objective, TrialConfig
from loadtune.records.interval import Interval
from loadtune.records.result import Finalist, Winner
from loadtune.search.search import MIN_RUNS
from loadtune.search.space import size

TIE = 0.98
"""Means within 2% of the best count as equal; the smallest of them wins."""

MARGIN = 0.03
"""Differences that lie within 3% are none: "no difference" is then the answer."""

PRECISE = 0.04
"""Half width of the winner's 95% interval at which its rate is known well enough."""

_Ends = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the figures of a final say. `batch_size` leaves only its own to choose from; None: any."""

    finalists: tuple[Finalist, ...]
    yours: TrialConfig | None
    """The baseline, the user's settings. None: there is none."""
    objective: Objective = "samples-per-s"

    def winner(self, batch_size: int | None = None) -> Winner | None:
        """The smallest of those within 2% of the best that is proven better than the baseline.

        Where nothing is, the baseline itself: a rival has to gain for sure, the user's settings do not. The best of all
        where the baseline has no rate, or may not be kept (`may_be_kept`). None: nothing ran, or something rules out
        all that did (`ruled_out`). A configuration that was run once wins only where no rival of the baseline ran
        twice. What is proven at a batch size is proven among all. Changes of the code are judged apart.
        """
        able = [f for f in self.finalists if not f.unconfirmed and not f.config.remedies]
        eligible = [f for f in able if batch_size in (None, f.config.batch_size)]
        num_rivals = sum(f.config != self.yours for f in able)  # who was run once was there to pick from as well
        if any(len(f.runs) >= MIN_RUNS for f in eligible if f.config != self.yours):
            eligible = [f for f in eligible if len(f.runs) >= MIN_RUNS]
        own = next((f for f in self.finalists if f.config == self.yours and _is_rate(f)), None)
        if own is not None and may_be_kept(own) and batch_size in (None, own.config.batch_size):
            gains = [(f, speedup(f, own, self.finalists, num_rivals, self.objective)) for f in eligible]
            eligible = [f for f, (_, low, _) in gains if low is not None and low > 1.0] or [own]
        if not eligible:
            return None
        top = max(f.score(self.objective) for f in eligible)
        near = [f for f in eligible if f.score(self.objective) >= TIE * top]
        best = min(near, key=lambda f: size(f.config))
        by_energy = self.objective == "samples-per-joule"
        gain = speedup(best, own, self.finalists, num_rivals)
        saved = speedup(best, own, self.finalists, num_rivals, self.objective)
        return Winner(
            config=best.config,
            samples_per_s=best.samples_per_s,
            half_width_fraction=best.half_width_fraction,
            speedup=_ratio(*gain),
            samples_per_joule=best.scored(self.objective) if by_energy else None,
            efficiency_gain=_ratio(*saved) if by_energy else None,
        )

    def not_told_apart(self, best: TrialConfig) -> tuple[Finalist, ...]:
        """Other finalists that may be as good as the winner: the interval of the ratio holds 1, or nothing ran twice.

        The winner was picked for scoring high, and a rival is called worse for scoring low: that is one of all pairs.
        """
        num_pairs, winner = math.comb(len(self.finalists), 2), next(f for f in self.finalists if f.config == best)
        rivals = (f for f in self.finalists if f is not winner and not f.config.remedies)
        return tuple(f for f in rivals if not _differ(self._interval(winner, f, num_pairs)))

    def undecided(self, batch_size: int | None = None) -> tuple[TrialConfig, ...]:
        """Who has to be run again: the winner, and all whose ratio to it may be 1.

        Nobody, if the winner's throughput or samples per joule is known to within `PRECISE`, and whether it differs
        from the baseline's: the interval of their ratio excludes 1, or lies within `MARGIN` of 1. If the baseline is
        the winner, its best rival takes the baseline's place. A baseline that failed twice is not waited for.
        """
        best = as_finalist(self.winner(batch_size), self.finalists)
        if best is None or best.unconfirmed:  # more runs may narrow what is too uncertain now
            wide = [f.config for f in self.finalists if f.unconfirmed and f.unconfirmed.reason == "wide_interval"]
            return tuple(config for config in wide if config == self.yours or batch_size in (None, config.batch_size))
        able = [f for f in self.finalists if not f.unconfirmed and f.config != self.yours and not f.config.remedies]
        rivals = [f for f in able if batch_size in (None, f.config.batch_size)]
        rivals.sort(key=lambda f: -f.score(self.objective))
        own = next((f for f in self.finalists if f.config == self.yours and may_be_kept(f)), None)
        others = [f for f in (*rivals, own) if f is not None and f is not best]
        ratios = {f.config: self._interval(best, f, len(able)) for f in others}
        against = own if best.config != self.yours else next(iter(rivals), None)
        is_told = against is None or _differ(ratios[against.config]) or _are_equal(ratios[against.config])
        half = best.half_width_fraction if self.objective == "samples-per-s" else best.efficiency_half_width_fraction
        if is_told and half is not None and half <= PRECISE:
            return ()
        return (best.config, *(config for config, interval in ratios.items() if not _differ(interval)))

    def undecided_change(self) -> tuple[TrialConfig, ...]:
        """The winner and the contestant with changes of the code, while it is not known whether these gain."""
        best = as_finalist(self.winner(), self.finalists)
        changed = next((f for f in self.finalists if f.config.remedies and not f.unconfirmed), None)
        if best is None or changed is None:
            return ()
        interval = self._interval(changed, best, 1)
        return () if _differ(interval) or _are_equal(interval) else (best.config, changed.config)

    def is_confirmed(self, batch_size: int | None = None) -> bool:
        """Whether a final that was ended in its midst has an answer: the winner, the baseline and another configuration
        were run twice each."""
        best = as_finalist(self.winner(batch_size), self.finalists)
        own = [f for f in self.finalists if f.config == self.yours]
        rivals = [f for f in self.finalists if f.config != self.yours and not f.config.remedies]
        twice = [f for f in rivals if len(f.runs) >= MIN_RUNS and batch_size in (None, f.config.batch_size)]
        return best is not None and bool(twice) and all(len(f.runs) >= MIN_RUNS for f in (best, *own))

    def _interval(self, one: Finalist, other: Finalist, num_comparisons: int) -> _Ends:
        return difference(one, other, self.finalists, num_comparisons, self.objective)[1:]


def speedup(
    best: Finalist,
    own: Finalist | None,
    finalists: Sequence[Finalist],
    num_rivals: int,
    objective: Objective = "samples-per-s",
) -> tuple[float | None, float | None, float | None]:
    """Ratio of the scores with its 99% interval (`difference`).

    `num_rivals` of `own` there were to pick `best` from: the interval allows for the luck of the fastest of them.
    """
    if own is None:
        return None, None, None
    if best.config == own.config:
        return 1.0, 1.0, 1.0
    return difference(best, own, finalists, num_rivals, objective)


def as_finalist(winner: Winner | None, finalists: Sequence[Finalist]) -> Finalist | None:
    """The winner's runs. None: there is no winner."""
    return next((f for f in finalists if winner is not None and f.config == winner.config), None)


def _ratio(value: float | None, low: float | None, high: float | None) -> Interval | None:
    return None if value is None else Interval(value=value, low=low, high=high)


def _is_rate(baseline: Finalist) -> bool:
    """Whether something can be compared with what it read: one that crashed now and then still trained at its rate."""
    return baseline.unconfirmed is None or baseline.unconfirmed.reason in ("failed", "wide_interval")


def _differ(interval: _Ends) -> bool:
    low, high = interval
    return low is not None and high is not None and not low <= 1.0 <= high


def _are_equal(interval: _Ends) -> bool:
    low, high = interval
    return low is not None and high is not None and low >= 1 / (1 + MARGIN) and high <= 1 + MARGIN
