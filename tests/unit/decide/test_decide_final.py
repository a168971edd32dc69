"""The confirmation: who is measured again, in which order, and what the spread between runs allows to be said."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import fake_host
from study_rig import measured, trial

from loadtune.decide.final import LOOKS, Verdict
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig, TuneConfig, YourSettings
from loadtune.records.facts import Device
from loadtune.records.measurement import TrialFailure
from loadtune.records.result import Attempt
from loadtune.records.statistics import Interval
from loadtune.run.confirmation import contestants
from loadtune.run.state import Resumable

CPU = Device(kind="cpu", name="CPU")


def config(batch_size: int = 64, num_workers: int = 4) -> TrialConfig:
    return TrialConfig(loader=LoaderConfig(batch_size=batch_size, num_workers=num_workers), recipe=Recipe())


LEADER, YOURS, AT_YOURS, SECOND, SMALL = (config(*what) for what in ((512, 16), (64, 0), (64, 8), (384, 16), (256, 12)))


def judged(rates: Iterable[tuple[TrialConfig, float]], *failed: Attempt, **given: Any) -> Verdict:
    ran = [Attempt(config=what, measurement=measured(rate)) for what, rate in rates]
    return Verdict(ran=[*ran, *failed], **given)


def of_workers(rates: dict[int, tuple[float, ...]], **given: Any) -> Verdict:
    """By number of workers."""
    return judged([(config(64, workers), rate) for workers, own in rates.items() for rate in own], **given)


def second_to_first(verdict: Verdict, num_comparisons: int = 1) -> Interval:
    return verdict.ratio(verdict.finalists[1], verdict.finalists[0], num_comparisons)


def picked_in(
    time_s: float,
    small: TrialConfig | None = None,
    ranked: Sequence[TrialConfig] = (LEADER, SECOND, AT_YOURS),
    at_your_batch: Sequence[TrialConfig] = (),
    kept: Sequence[Attempt] = (),
    left_s: float = math.inf,
    leader_s: float = 10.0,
) -> tuple[TrialConfig, ...]:
    """Of what a search found. Each takes 10 s, if nothing else is given. In any case: the leader, yours."""
    search: Any = SimpleNamespace(ranked=lambda: ranked, best_at=lambda size: at_your_batch)
    search.changed = search.highest = lambda: None
    search.roomiest = lambda *than: None if than else small
    search.feasible, search.space, search.yours = list, SimpleNamespace(recipes={}), YOURS
    search.lasts_s = lambda config: leader_s if config == LEADER else 10.0
    options, confirmed = TuneConfig(yours=YourSettings(batch_size=64)), [*kept]
    trials = [trial(number, 100.0) for number in range(2)]
    state = Resumable(options, fake_host(), CPU, "", yours=YOURS, trials=trials, confirmed=confirmed)
    return tuple(contestants(state, search, time_s, time_s, left_s))


@pytest.mark.parametrize(
    ("time_s", "finalists"),
    [
        (80.0, (LEADER, YOURS, SECOND, SMALL)),
        (79.0, (LEADER, YOURS, SECOND)),
        (0.0, (LEADER, YOURS)),
    ],
)
def test_as_many_finalists_as_can_be_measured_twice(time_s: float, finalists: tuple[TrialConfig, ...]) -> None:
    assert picked_in(time_s, SMALL) == finalists


def test_two_at_your_batch_and_what_was_measured_before_are_finalists_however_little_time_there_is() -> None:
    at_batch = [YOURS, AT_YOURS, config(64, 3), config(64, 2)]
    picked = picked_in(0.0, at_your_batch=at_batch, kept=[Attempt(config=SMALL), Attempt(config=LEADER)])
    assert picked == (LEADER, YOURS, AT_YOURS, config(64, 3), SMALL)


@pytest.mark.parametrize(("left_s", "best"), [(80.0, LEADER), (79.0, SECOND), (39.0, LEADER)])
def test_a_leader_that_cannot_be_run_twice_gives_way_to_one_that_can(left_s: float, best: TrialConfig) -> None:
    """As 213 workers that took 57 s for a run, with 66 s left; where none can, it stays."""
    assert picked_in(0.0, left_s=left_s, leader_s=30.0) == (best, YOURS)


def test_what_ran_once_before_an_interruption_needs_one_run_more() -> None:
    assert picked_in(0.0, left_s=40.0, leader_s=30.0, kept=judged([(LEADER, 100.0), (YOURS, 50.0)]).ran) == (
        LEADER,
        YOURS,
    )


def test_where_yours_leads_a_rival_is_measured_beside_it_however_little_time_there_is() -> None:
    assert picked_in(0.0, ranked=[YOURS, SECOND]) == (YOURS, SECOND)


def test_the_search_tells_how_far_runs_differ_and_not_how_fast_they_are() -> None:
    """As it was on an H200."""
    once = [(SECOND, 3885.0), (SMALL, 5701.0), (AT_YOURS, 2066.0)]
    twice = [(YOURS, 345.0), (LEADER, 4539.0), (LEADER, 4626.0), (YOURS, 509.0)]
    trials = [trial(0, 3846.0, LEADER), trial(1, 3704.0, SECOND), trial(2, 5663.0, SMALL), trial(3, None, AT_YOURS)]
    alone, beside = (judged([*once, *twice], yours=YOURS, trials=each) for each in ((), trials))
    assert [each.samples_per_s for each in beside.finalists] == [each.samples_per_s for each in alone.finalists]
    assert alone.winner().config == YOURS, "two rounds of two were no proof of ten times"
    assert beside.winner().config == LEADER
    assert judged(once, trials=trials).finalists[0].half_width_fraction is None, "nothing ran twice in the final"


def test_a_loss_that_is_not_finite_rules_out_its_precision_and_in_fp32_every_one() -> None:
    fp16 = TrialConfig(loader=LoaderConfig(batch_size=32), recipe=Recipe(precision="fp16"))
    runs = [(what, rate) for what in (YOURS, fp16) for rate in (100.0, 101.0)]
    bad = TrialFailure(kind="non_finite_loss", phase="training", message="NaN")
    for failed, ruled in ((replace(fp16, remedies=("a",)), [False, True]), (LEADER, [True, True])):
        found = judged(runs, trials=[Attempt(config=failed, failure=bad)]).finalists
        assert [each.unconfirmed is not None for each in found] == ruled


def test_who_was_run_once_does_not_win_beside_who_was_run_again() -> None:
    """Neither for being faster nor for being smaller; yours, run again by itself, is nobody to be picked from."""
    twice, once, small, yours = config(384, 16), config(512, 16), config(256, 8), config(64, 0)
    runs = [(twice, 1000.0), (once, 1010.0), (small, 995.0), (yours, 100.0), (yours, 101.0)]
    alone, again = (judged(each, yours=yours).winner() for each in (runs, [*runs, (twice, 1001.0)]))
    assert alone.config == small
    assert again.config == twice


@pytest.mark.parametrize(
    ("rate", "keeps", "wins"), [(1040.0, True, "fp32"), (1040.0, False, "fp16"), (1500.0, True, "fp16")]
)
def test_another_precision_than_the_named_one_is_proven_faster(rate: float, keeps: bool, wins: str) -> None:
    half = replace(config(512, 16), recipe=Recipe(precision="fp16"))
    rates = {half: (rate, 1.02 * rate), config(512, 16): (1000.0, 1030.0), YOURS: (300.0, 305.0)}
    verdict = judged([(what, each) for what, own in rates.items() for each in own], yours=YOURS, keeps_precision=keeps)
    assert verdict.winner().config.precision == wins


FP32, BF16 = config(256, 16), replace(config(256, 15), recipe=Recipe(precision="bf16"))
ALONE = {FP32: 2670.0, BF16: 3700.0}  # compute-only rates of an H200, which fp32 kept busy to 95%


@pytest.mark.parametrize(
    ("fp32", "bf16", "alone", "wins"),
    [
        (2537.0, 2494.0, ALONE, BF16),
        (2537.0, 2594.0, {}, FP32),  # on a CPU
        (1000.0, 1020.0, ALONE, FP32),  # either leaves more than a change has ever used
        (2537.0, 2094.0, ALONE, FP32),  # not proven slower, and nowhere near
    ],
)
def test_of_equals_that_with_more_headroom_stands(fp32: float, bf16: float, alone: Any, wins: TrialConfig) -> None:
    ran = [(FP32, fp32), (BF16, bf16), (YOURS, 100.0), (FP32, 1.12 * fp32), (BF16, 1.12 * bf16), (YOURS, 90.0)]
    verdict = judged(ran, yours=YOURS, keeps_precision=True, compute_per_s=alone)
    assert verdict.ratio(*verdict.finalists[:2]).holds(1.0)
    assert verdict.winner().config == wins
    own = replace(wins, loader=replace(wins.loader, batch_size=128))
    given = judged([*ran, (own, fp32), (own, 1.12 * fp32)], yours=YOURS, batch_size=128, compute_per_s=alone)
    assert given.winner().config == own, "another batch size needs retuning"


def test_a_baseline_that_is_kept_comes_with_the_largest_gain_that_is_not_excluded() -> None:
    for scale, inconclusive in ((1.0, True), (0.01, False)):
        own = {8: (0, 200, 100), 4: (-300, -200, -250), 0: (0, 150, 50)}
        rates = {w: tuple(1000.0 + scale * each for each in rates) for w, rates in own.items()}
        verdict = of_workers(rates, yours=config(64, 0))
        winner = verdict.winner()
        assert (winner.config, winner.inconclusive) == (config(64, 0), inconclusive)
        assert winner.rival_gain == verdict.ratio(verdict.finalists[0], verdict.finalists[2], 2)


@pytest.mark.parametrize(
    ("rates", "decided"),
    [
        ({8: (1000.0, 1010.0, 1005.0), 0: (100.0, 101.0, 102.0)}, True),
        ({8: (1000.0, 1010.0, 1005.0), 0: (999.0, 1008.0, 1006.0)}, True),  # no difference
        ({8: (1000.0, 1010.0, 1005.0), 0: (970.0, 985.0, 965.0)}, False),
        ({8: (1000.0, 1200.0, 1100.0), 0: (100.0, 120.0, 110.0)}, False),  # told apart, and the rate is not known
        ({8: (1000.0,), 0: (100.0,)}, False),
        ({0: (100.0, 103.0)}, False),
    ],
)
def test_the_answer_is_decided_where_the_rate_is_known_and_the_baseline_is_told_from_it_or_alike(
    rates: dict[int, tuple[float, ...]], decided: bool
) -> None:
    verdict = of_workers(rates, yours=config(64, 0))
    assert (verdict.undecided() == set()) is decided
    assert (verdict.undecided_at(64) == set()) is decided
    assert of_workers(rates, yours=config(32, 0)).undecided_at(32) == set()  # nothing of that size ran


def test_after_a_look_those_go_on_that_may_still_be_the_answer() -> None:
    """The winner's rate is not known well enough yet; the baseline is told from it, and so is one rival."""
    rates = {
        8: (1000.0, 1100.0, 1050.0),
        6: (1010.0, 1080.0, 1040.0),
        2: (500.0, 530.0, 510.0),
        0: (98.0, 110.0, 107.0),
    }
    assert of_workers(rates, yours=config(64, 0)).undecided() == {config(64, 8), config(64, 6)}


def test_a_baseline_that_failed_twice_is_not_waited_for() -> None:
    steady = [(config(64, 8), rate) for rate in (1000.0, 1001.0, 999.0)]
    beside = [(config(64, 4), rate) for rate in (600.0, 601.0, 599.0)]
    own = config(64, 0)
    failed = Attempt(config=own, failure=TrialFailure(kind="crash", phase="training", message=""))
    assert judged([*steady, *beside, (own, 950.0)], failed, failed, yours=own).undecided() == set()
    waiting = [*steady, *beside, *((own, rate) for rate in (985.0, 1015.0, 990.0))]
    assert judged(waiting, yours=own).undecided() == {config(64, 8), own}


def test_who_is_out_after_a_look_stays_told_apart_as_it_was() -> None:
    """Whatever the spread of the rounds that it was not in."""
    early = {8: (1000.0, 1010.0, 1005.0), 4: (990.0, 985.0, 1001.0), 0: (900.0, 902.0, 899.0)}
    later = {8: (*early[8], 700.0, 1300.0), 4: (*early[4], 1250.0, 800.0), 0: early[0]}
    told = []
    for rates in (early, later):
        verdict = of_workers(rates)
        told.append(verdict.ratio(verdict.finalists[0], verdict.finalists[2], 2))
    assert told[0] == told[1]


def test_who_ran_often_enough_has_an_interval_from_its_own_spread() -> None:
    steady, unsteady = (1000.0, 1010.0, 990.0, 1005.0, 995.0), (100.0, 140.0, 80.0)
    alone, _ = of_workers({8: steady, 0: unsteady}).finalists
    three = of_workers({8: steady[:3], 0: unsteady}).finalists
    assert alone.half_width_fraction < 0.02
    assert three[0].half_width_fraction > 0.2, "three runs say too little of their own spread"


def test_what_a_round_is_faster_by_is_no_difference_and_hides_none() -> None:
    """The machine slows down by 40% from the first round to the fifth; the second is 2% faster in each."""
    rounds = [1000.0, 900.0, 800.0, 700.0, 600.0]
    jitter = {1: [1.0, 1.001, 0.999, 1.0, 1.0], 2: [1.021, 1.019, 1.02, 1.02, 1.02]}
    rates = {w: tuple(rate * part for rate, part in zip(rounds, own, strict=True)) for w, own in jitter.items()}
    ratio = second_to_first(of_workers(rates))
    assert ratio.value == pytest.approx(1.02, abs=0.001)
    assert 1.0 < ratio.low < ratio.high < 1.04


def test_equal_configurations_are_seldom_called_different_however_often_one_looks() -> None:
    """Of 600 confirmations with looks after 3, 5 and 8 rounds, and 2.5% between segments."""
    wrong = 0
    for seed in range(600):
        outcomes = list(draws(seed, [1000.0, 1000.0], 8, 0.025))
        for look in LOOKS:
            if second_to_first(judged(each for at, each in enumerate(outcomes) if at % 8 < look)).holds(1.0) is False:
                wrong += 1
                break
    assert wrong <= 12


def draws(seed: int, rates: list[float], runs: int, noise: float) -> Iterator[tuple[TrialConfig, float]]:
    source = random.Random(seed)
    for index, rate in enumerate(rates):
        for _ in range(runs):
            yield config(64, index + 1), rate * source.gauss(1.0, noise)


@pytest.mark.parametrize(("runs", "truth"), [(2, 1.0), (4, 2.0)])
def test_the_interval_of_the_speedup_holds_its_level(runs: int, truth: float) -> None:
    """Over 1,000 confirmations at 3% between-run noise the 99% interval holds the true ratio in at least 985."""
    held = 0
    for seed in range(1000):
        verdict = judged(draws(seed, [1000.0, truth * 1000.0, 800.0], runs, 0.03))
        held += second_to_first(verdict).holds(truth) is True
    assert held >= 985


def test_the_more_there_was_to_pick_from_the_wider_the_interval() -> None:
    """A configuration that was picked for being fast needs a larger lead than one that was asked about."""
    found = judged(draws(1, [1000.0, 1100.0, 1000.0, 1000.0], 3, 0.03))
    alone, picked = (second_to_first(found, num_rivals) for num_rivals in (1, 3))
    assert alone.value == picked.value
    assert picked.low < alone.low < alone.high < picked.high
