"""After the confirmation, in the time that is left: changes outside of DataLoader's arguments, tried on the winner.

The most promising is tried first, in turn with the best configuration. One that very probably gains is kept, and the
others are tried on top of it. At the end all that were kept are measured together, in turn with the best configuration.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from loadtune.records import (
    Examined,
    Finalist,
    LeftOut,
    Ratio,
    Remedies,
    TrialConfig,
    TrialFailure,
    TriedRemedy,
    WorkloadFacts,
)
from loadtune.records.confirmed import compute_fraction
from loadtune.remedies import REMEDIES, Situation
from loadtune.report.run_file import Remedied
from loadtune.report.wording import FAILURE_TEXT
from loadtune.stages.in_turn import Pair
from loadtune.stages.remedy_offers import Offers, Time
from loadtune.stages.run import Run
from loadtune.study.confirm import rate_spread
from loadtune.study.remedies import (
    WORTH_KEEPING,
    Offer,
    combined,
    gain_of,
    is_known,
    is_promising,
    is_worth_keeping,
)
from loadtune.study.space import SearchSpace

FEWEST_ROUNDS, MOST_ROUNDS = 2, 9
"""Runs with a remedy and without it, in turn: as many as show whether it gains."""

LOOKS = 4
"""By how much the error of each gain is divided, because it is looked at after every round. Simulated with eight
looks that end at the first sure gain: of changes that bring nothing 2.0 to 2.7% are called a gain, 2.5% are meant."""

OF_LEFT = 0.95
"""Share of the time left that remedies may take."""


def remedies(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> None:
    """Nothing is tried without a winner, or with ``--remedies none``. What was confirmed stands in any case."""
    found = run.found
    winner = next((f for f in found.finalists if found.best is not None and f.config == found.best.config), None)
    if winner is None or found.config.remedies == "none":
        return
    before = found.remedied
    if before is not None and (before.winner, before.mode) == (winner.config, found.config.remedies):
        found.remedies = before.remedies
        if before.is_complete:
            return
    with found.stage("remedies"):
        earlier = found.remedies
        trying = _Trying(run, facts, searched, winner, Offers(run, facts, searched, winner))
        try:
            trying.run_all()
        except BaseException:
            trying.is_complete = False
            raise
        finally:
            found.remedies = trying.outcome()
            if earlier is not None and earlier.config is not None and found.remedies.config is None:
                found.remedies = earlier  # this time nothing was found to gain, or the time was over before
            found.remedied = Remedied(
                winner=winner.config,
                remedies=found.remedies,
                mode=found.config.remedies,
                is_complete=trying.is_complete,
            )
            run.save()


@dataclass(slots=True)
class _Trying:
    run: Run
    facts: WorkloadFacts
    searched: SearchSpace
    winner: Finalist
    offers: Offers
    tried: list[TriedRemedy] = field(default_factory=list)
    seen: dict[str, Examined] = field(default_factory=dict)
    until_s: float = 0.0
    is_complete: bool = True
    lacked_time: bool = False
    together: Pair | None = None
    """The best configuration, and all that was kept on top of it."""

    def __post_init__(self) -> None:
        self.until_s = self.run.until(OF_LEFT)

    @property
    def config(self) -> TrialConfig:
        """The best so far."""
        return next((each.config for each in reversed(self.tried) if each.kept), self.winner.config)

    def run_all(self) -> None:
        offers = self._offered()
        while offers:
            best = offers.pop(0)
            if self._is_left_out(best):
                continue
            outcome = self._try(best)
            if outcome is None:
                break
            self.tried.append(outcome)
            if outcome.kept:
                self.offers.learn(best, outcome.runs)
                offers = self._offered()
        self._measure_together()

    def _offered(self) -> list[Offer]:
        time = Time(lambda: self._left_s, self._needed_s(FEWEST_ROUNDS))
        found = self.offers.on_top_of(self._situation(), {each.name for each in self.tried}, time)
        if self.offers.lacked_time:
            self._lacks_time()
        self.is_complete &= not self.offers.crashed
        return found

    def outcome(self) -> Remedies:
        """Only as many of those that were kept as gain for sure together."""
        self.tried = [replace(each, gain=self._gain_of(each)) for each in self.tried]
        kept = self._kept()
        while kept and not is_worth_keeping(self._gain_together(kept)):
            kept.pop()
        names = {each.name for each in kept}
        tried = [replace(each, kept=each.name in names) for each in self.tried]
        if not kept:
            return Remedies(tried=tuple(tried), left_out=self._left_out())
        last = kept[-1]
        pair = self._pair_of(kept)
        runs, base_runs = (last.runs, last.base_runs) if pair is None else (tuple(pair.runs), tuple(pair.base_runs))
        rate = sum(run.samples_per_s for run in runs) / len(runs)
        spread = rate_spread([runs, base_runs, self.winner.runs])
        points = (*self.run.found.compute_points, *self.offers.points.values())
        return Remedies(
            tried=tuple(self._final(each, last.config) for each in tried),
            left_out=self._left_out(),
            config=last.config,
            samples_per_s=rate,
            half_width_fraction=None if spread is None else spread.half_width(1 / len(runs), 1),
            gain=self._gain_together(kept),
            runs=() if pair is None else runs,
            base_runs=() if pair is None else base_runs,
            compute_fraction=compute_fraction(points, last.config, rate),
        )

    def _kept(self) -> list[TriedRemedy]:
        return [each for each in self.tried if each.kept]

    def _pair_of(self, kept: Sequence[TriedRemedy]) -> Pair | None:
        """In which all of these were measured together. None: they were not, or there is only one."""
        pair = self.together
        return pair if pair is not None and pair.runs and len(kept) > 1 and pair.config == kept[-1].config else None

    def _gain_together(self, kept: Sequence[TriedRemedy]) -> Ratio:
        pair = self._pair_of(kept)
        if pair is not None:
            return self._gain(pair, LOOKS)
        return combined([gain for each in kept if (gain := self._gain_of(each)) is not None])

    def _gain_of(self, each: TriedRemedy) -> Ratio | None:
        if not each.runs:
            return None
        pair = Pair(each.base, each.config, list(each.base_runs), list(each.runs))
        return self._gain(pair, self._num_looks)

    @property
    def _num_looks(self) -> int:
        """Of all gains together: one that is found among several has to be surer."""
        return LOOKS * max(1, sum(len(each.runs) > 0 for each in self.tried))

    def _left_out(self) -> tuple[LeftOut, ...]:
        tried = {each.name for each in self.tried}
        return tuple(each for name, each in self.offers.left_out.items() if name not in tried)

    def _final(self, each: TriedRemedy, config: TrialConfig) -> TriedRemedy:
        """With the lines to paste for the settings that all together ended with."""
        if not each.kept:
            return each
        code = REMEDIES[each.name].code(replace(self._situation(), config=config), self.seen[each.name])
        return replace(each, code=code)

    @property
    def _wait_fraction(self) -> float:
        runs = next((each.runs for each in reversed(self.tried) if each.kept), self.winner.runs)
        return sum(run.wait_fraction for run in runs) / len(runs)

    def _situation(self) -> Situation:
        found = self.run.found
        return Situation(
            config=self.config,
            spec=found.config.workload,
            facts=self.facts,
            device=found.device,
            num_cores=found.host.num_usable_cores,
            ram_bytes=found.host.ram_available_bytes,
            bottleneck=found.bottleneck,
            precisions=tuple(self.searched.recipes),
            most_workers=max(self.searched.num_workers),
            workers_are_bounded=found.config.max_workers is not None
            or found.config.fixed("num_workers") is not None
            or self.facts.max_workers is not None,
            wait_fraction=self._wait_fraction,
        )

    def _lacks_time(self) -> None:
        if not self.lacked_time:
            self.lacked_time, self.is_complete = True, False
            self.run.found.note(
                "Too little of the time budget was left to try all changes of the code, or to be sure of their gains. "
                "Raise --time-budget for that."
            )

    def _is_left_out(self, each: Offer) -> bool:
        """Whether it is not tried; then it is kept as predicted only."""
        reason = None
        if each.remedy.only_predicted and self.run.found.config.remedies != "all":
            reason = "predicted only; --remedies all tries it"
        elif self._needed_s(FEWEST_ROUNDS) > self._left_s:
            reason = "no time was left to try it"
            self._lacks_time()
        if reason is not None:
            self.tried.append(self._tried(each, reason=reason))
        return reason is not None

    @property
    def _left_s(self) -> float:
        """Apart from what measuring all together will take."""
        is_later = self.together is None and any(each.kept for each in self.tried)
        return self.until_s - self.run.clock.now() - (self._needed_s(FEWEST_ROUNDS) if is_later else 0.0)

    def _needed_s(self, num_rounds: int) -> float:
        """As long as the slowest of what is in use: a run with a remedy may last longer than one without."""
        ran = [self.winner.runs, *(each.runs for each in self._kept())]
        return 2 * num_rounds * max(statistics.median(run.seconds for run in runs) for runs in ran)

    def _try(self, each: Offer) -> TriedRemedy | None:
        """None: it is the best configuration that failed."""
        pair = Pair(self.config, each.config)
        known = each.predicted if self.run.found.config.objective == "samples-per-s" else None
        num_looks = LOOKS if known is None else 1  # with a prediction, that it has to agree with guards against luck

        def is_decided() -> bool:
            gain = self._gain(pair, num_looks)
            return gain.ratio < WORTH_KEEPING or is_promising(gain, known)

        failed = self._measure(pair, each.remedy.title, is_decided)
        if failed is not None and pair.base_failed:
            return None
        if failed is not None:
            return self._tried(each, reason=_failure_text(failed))
        return replace(
            self._tried(each),
            runs=tuple(pair.runs),
            base_runs=tuple(pair.base_runs),
            gain=self._gain(pair, LOOKS),
            kept=is_promising(self._gain(pair, num_looks), known),
        )

    def _measure_together(self) -> None:
        """All that were kept beside the best configuration, until their gain is known well, or no time is left. The
        last one is taken away while that fails, or shows no gain. Of a single one, more of its own rounds."""
        while kept := self._kept():
            last = kept[-1]
            if len(kept) == 1 and is_known(self._gain_together(kept)):
                return
            if self._needed_s(1 if len(kept) == 1 else FEWEST_ROUNDS) > self.until_s - self.run.clock.now():
                if not is_worth_keeping(self._gain_together(kept)):
                    self._lacks_time()
                return
            pair = self.together = Pair(self.winner.config, last.config)
            if len(kept) == 1:
                pair.base_runs, pair.runs = list(last.base_runs), list(last.runs)
            num_looks = self._num_looks if len(kept) == 1 else LOOKS
            what = "code changes that gain, together" if len(kept) > 1 else REMEDIES[last.name].title

            def is_enough(pair: Pair = pair, num_looks: int = num_looks) -> bool:
                return is_known(self._gain(pair, num_looks))

            failed = self._measure(pair, what, is_enough)
            if len(kept) == 1:
                self._change(replace(last, runs=tuple(pair.runs), base_runs=tuple(pair.base_runs)))
            if failed is not None and pair.base_failed:
                return
            if failed is not None:
                self._take_away(last, _failure_text(failed))
            elif len(kept) == 1 or is_worth_keeping(self._gain(pair, num_looks)):
                return
            else:
                self._change(replace(last, kept=False))

    def _change(self, to: TriedRemedy) -> None:
        self.tried = [to if each.name == to.name else each for each in self.tried]

    def _take_away(self, each: TriedRemedy, reason: str) -> None:
        """It failed after it was kept: what it gained before counts for nothing."""
        self._change(replace(each, kept=False, gain=None, runs=(), base_runs=(), reason=reason))

    def _measure(self, pair: Pair, title: str, is_decided: Callable[[], bool]) -> TrialFailure | None:
        """Round after round, until it is decided or no time is left. None: nothing failed."""
        num_looks = LOOKS if pair is self.together and len(self._kept()) > 1 else self._num_looks

        def is_enough() -> bool:
            num = len(pair.runs)
            if num < FEWEST_ROUNDS:
                return False
            if num >= MOST_ROUNDS or is_decided():
                return True
            if self._needed_s(1) > self._left_s:
                if not is_worth_keeping(self._gain(pair, num_looks)):
                    self._lacks_time()
                return True
            return False

        failed = pair.run_until(is_enough, self.run, title)
        if failed is not None and pair.base_failed:
            self.is_complete = False
            what = "the best configuration" if pair.base == self.winner.config else "it with the changes kept so far"
            self.run.found.note(f"Changes of the code were no longer tried, because {what} failed: {failed.message}")
            if pair.base != self.winner.config:
                self._take_away(self._kept()[-1], _failure_text(failed))
        return failed

    def _gain(self, pair: Pair, num_comparisons: int) -> Ratio:
        """Its interval is of 95% for so many gains together."""
        measured = {
            (each.base, each.config): (each.base_runs, each.runs) for each in (*self.tried, self.together, pair) if each
        }
        own = measured.pop((pair.base, pair.config))
        objective = self.run.found.config.objective
        return gain_of(own, list(measured.values()), self.winner.runs, objective, num_comparisons)

    def _tried(self, each: Offer, reason: str | None = None) -> TriedRemedy:
        remedy, situation = each.remedy, self._situation()
        self.seen[remedy.name] = each.seen
        changes = [remedy.changes] if remedy.changes != "nothing" or each.seen.difference is None else []
        changes += [] if each.seen.difference is None else [each.seen.difference]
        if each.config.precision != self.config.precision:
            changes.append(f"{each.config.precision} instead of {self.config.precision}")
        if each.config.batch_size != self.config.batch_size:
            changes.append(
                f"batch size {each.config.batch_size} instead of {self.config.batch_size}: tune the learning rate"
            )
        at = replace(situation, config=each.config)
        return TriedRemedy(
            name=remedy.name,
            title=remedy.title,
            changes="; ".join(changes),
            code=remedy.code(at, each.seen),
            base=self.config,
            config=each.config,
            predicted=each.predicted if self.run.found.config.objective == "samples-per-s" else None,
            reason=reason,
        )


def _failure_text(failed: TrialFailure) -> str:
    return f"{FAILURE_TEXT[failed.kind]}: {failed.message}"
