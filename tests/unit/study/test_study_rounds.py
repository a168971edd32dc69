"""The order of the confirmation: who is run again, by what the runs so far scored and took."""

from dataclasses import replace

import pytest

from loadtune.records import LoaderConfig, Measurement, Recipe, TrialConfig, TrialFailure, Window
from loadtune.study.confirm import Outcome, confirm, finalists
from loadtune.study.winner import pick_winner
from loadtune.testing import FakeClock


def config(batch_size: int = 64, num_workers: int = 4) -> TrialConfig:
    return TrialConfig(loader=LoaderConfig(batch_size=batch_size, num_workers=num_workers), recipe=Recipe())


def measured(rate: float) -> Measurement:
    windows = (Window(start_s=0.0, seconds=1000.0, num_steps=10, num_samples=round(rate * 1000)),)
    return Measurement(windows=windows, first_batch_s=0.1, seconds=1.0)


def failing() -> TrialFailure:
    return TrialFailure(kind="crash", phase="training", message="")


def run_confirm(
    rates: dict[TrialConfig, float], seconds: float, left_s: float, answer_s: float | None = None
) -> list[TrialConfig]:
    """Who is run, in order; each takes as long, the last is the user's own."""
    clock = FakeClock()

    def run(what: TrialConfig) -> Measurement:
        clock.spend(seconds)
        return measured(rates[what])

    configs = list(rates)
    by_s = None if answer_s is None else clock.now() + answer_s
    asked = confirm(configs, run, clock, clock.now() + left_s, yours=configs[-1], answer_by_s=by_s)
    return [what for what, _ in asked]


A, B, C = config(1), config(2), config(3)


def test_rounds_are_interleaved_and_turned() -> None:
    assert run_confirm({A: 2.0, B: 1.0}, 1.0, 4.5) == [A, B, B, A]


def test_short_of_a_whole_round_the_leader_and_yours_are_run_again() -> None:
    assert run_confirm({A: 1.0, B: 2.0, C: 1.0}, 10.0, 55.0) == [A, C, B, B, C]


def test_without_an_interval_the_leader_and_yours_may_take_what_is_left() -> None:
    """And no more than their second runs: a third round of what is told tells nobody anything."""
    assert run_confirm({A: 1.0, B: 2.0, C: 1.0}, 10.0, 40.0) == [A, C, B]
    assert run_confirm({A: 1.0, B: 2.0, C: 1.0}, 10.0, 40.0, answer_s=100.0) == [A, C, B, B, C]


def test_the_leader_and_yours_are_run_whatever_the_time() -> None:
    assert run_confirm({A: 2.0, B: 1.0, C: 1.0}, 10.0, 0.0) == [A, C]


def test_three_rounds_at_the_most() -> None:
    assert len(run_confirm({A: 2.0, B: 1.0}, 1.0, 1000.0)) == 6


def test_what_failed_once_is_not_run_again() -> None:
    clock, ran = FakeClock(), []

    def run(what: TrialConfig) -> Measurement | TrialFailure:
        ran.append(what)
        clock.spend(1.0)
        return TrialFailure(kind="hang", phase="training", message="") if what == config(1) else measured(100.0)

    list(confirm([config(1), config(2)], run, clock, clock.now() + 100.0))
    assert ran == [config(1), config(2), config(2), config(2)]


@pytest.mark.parametrize(("left_s", "num_run"), [(9.0, 0), (25.0, 2), (100.0, 4)])
def test_what_is_known_is_not_run_again_and_foretells_what_a_round_takes(left_s: float, num_run: int) -> None:
    """A resumed confirmation knows its first round; a run takes 10 s."""
    clock, ran = FakeClock(), []
    configs = [config(1), config(2)]
    known = [(config(1), replace(measured(20.0), seconds=10.0)), (config(2), replace(measured(10.0), seconds=10.0))]

    def run(what: TrialConfig) -> Measurement:
        ran.append(what)
        clock.spend(10.0)
        return replace(measured(10.0), seconds=10.0)

    outcomes = list(confirm(configs, run, clock, clock.now() + left_s, yours=config(2), known=known))
    assert outcomes[:2] == known
    assert len(ran) == num_run


def test_a_round_that_was_cut_off_is_ended_by_those_it_lacks() -> None:
    clock, ran = FakeClock(), []
    known = [(config(1), measured(20.0)), (config(2), measured(10.0)), (config(2), measured(10.0))]

    def run(what: TrialConfig) -> Measurement:
        ran.append(what)
        return measured(10.0)

    list(confirm([config(1), config(2)], run, clock, clock.now() + 100.0, yours=config(2), known=known))
    assert ran[0] == config(1)
    assert sorted(ran, key=str) == sorted([config(1), config(1), config(2)], key=str)


LEADER, YOURS, SECOND, SMALL, LEAN = (config(*what) for what in ((512, 16), (64, 0), (384, 16), (256, 16), (512, 7)))
RATES = {
    LEADER: [3300.0, 3350.0, 3320.0],
    YOURS: [314.0, 316.0, 315.0],
    SECOND: [3460.0, 3300.0, 3340.0],
    SMALL: [3315.0, 3290.0, 3300.0],
    LEAN: [2900.0, 2950.0, 2920.0],
}
"""A busy H200: in the first round the second leads, its second run falls behind, and the smallest was run once."""


def confirmed(
    rates: dict[TrialConfig, list[float | None]],
    seconds: float,
    left_s: float,
    answer_s: float,
    at_your_batch: bool = False,
) -> list[Outcome]:
    """Each run takes as long; what runs in turn reads these rates, None: it fails."""
    clock, left = FakeClock(), {what: list(own) for what, own in rates.items()}

    def run(what: TrialConfig) -> Measurement | TrialFailure:
        clock.spend(seconds)
        rate = left[what].pop(0)
        return failing() if rate is None else measured(rate)

    until_s, answer_by_s = clock.now() + left_s, clock.now() + answer_s
    return list(
        confirm(list(rates), run, clock, until_s, yours=YOURS, at_your_batch=at_your_batch, answer_by_s=answer_by_s)
    )


@pytest.mark.parametrize("num_finalists", [2, 3, 4, 5])
@pytest.mark.parametrize("seconds", [10.0, 12.0, 15.0, 18.0])
def test_a_winner_of_two_runs_at_least_with_a_narrow_interval(num_finalists: int, seconds: float) -> None:
    """90 s of a time budget in which 150 s are left; five finalists are more than was foretold to fit."""
    rates = dict(list(RATES.items())[:num_finalists])
    found = finalists(confirmed(rates, seconds, 90.0, 150.0))
    winner = pick_winner(found, YOURS)
    assert winner is not None
    assert len(next(f for f in found if f.config == winner.config).runs) >= 2
    assert winner.speedup_low is not None
    assert winner.speedup_high is not None
    assert 8.0 < winner.speedup_low < winner.speedup_high < 13.0


def test_from_two_runs_each_on_the_best_rival_is_run_again_alone() -> None:
    outcomes = confirmed({what: RATES[what] for what in (LEADER, YOURS, SECOND)}, 12.0, 90.0, 150.0)
    assert [what for what, _ in outcomes] == [LEADER, YOURS, SECOND, YOURS, SECOND, LEADER, SECOND]


@pytest.mark.parametrize(("rate", "last"), [(2768.0, LEADER), (2000.0, LEAN)])
def test_who_may_be_as_fast_has_a_second_run_before_the_best_has_its_third(rate: float, last: TrialConfig) -> None:
    """A busy H200: what led the search was 3% behind in its one run, and too long by half a second for a second."""
    clock = FakeClock()
    seconds = {LEADER: [11.0, 11.0], YOURS: [4.5, 4.0, 4.0], LEAN: [7.5, 7.0, 7.0]}
    rates = {LEADER: rate, YOURS: 300.0, LEAN: 2853.0}

    def run(what: TrialConfig) -> Measurement:
        clock.spend(seconds[what].pop(0))
        return measured(rates[what])

    ran = [what for what, _ in confirm(list(rates), run, clock, clock.now() + 45.5, yours=YOURS)]
    assert ran[:5] == [LEADER, YOURS, LEAN, YOURS, LEAN]
    assert ran[5] == last


def test_who_ran_once_is_run_again_though_the_answer_is_told() -> None:
    """A tie within 2% is told as it is; without a second run one of the two could not win it."""
    clock, ran = FakeClock(), []
    seconds = {LEADER: [11.0, 11.0], YOURS: [4.5, 4.0], LEAN: [7.5, 7.0]}
    rates = {LEADER: 2830.0, YOURS: 300.0, LEAN: 2853.0}

    def run(what: TrialConfig) -> Measurement:
        ran.append(what)
        clock.spend(seconds[what].pop(0))
        return measured(rates[what])

    list(confirm(list(rates), run, clock, clock.now() + 45.5, yours=YOURS, told=lambda found: True))
    assert ran == [LEADER, YOURS, LEAN, YOURS, LEAN, LEADER]


def test_a_short_run_follows_where_a_long_one_does_not_fit() -> None:
    clock = FakeClock()
    seconds = {LEADER: 4.0, SECOND: 12.0, YOURS: 2.0, SMALL: 3.0}
    rates = {LEADER: 1000.0, SECOND: 990.0, YOURS: 100.0, SMALL: 980.0}

    def run(what: TrialConfig) -> Measurement:
        clock.spend(seconds[what])
        return measured(rates[what])

    ran = [what for what, _ in confirm(list(rates), run, clock, clock.now() + 33.0, yours=YOURS)]
    assert ran.count(SMALL) == 2
    assert ran.count(SECOND) == 1


def test_a_rival_that_leads_after_the_second_runs_has_its_own_however_late() -> None:
    """And with it the answer is made: nothing else is late."""
    rates = {LEADER: [1000.0, 700.0], YOURS: [100.0, 100.0], SECOND: [900.0, 910.0]}
    ran = [what for what, _ in confirmed(rates, 10.0, 50.0, 100.0)]
    assert ran == [LEADER, YOURS, SECOND, YOURS, LEADER, SECOND]


def test_a_rival_that_fails_in_its_second_run_is_followed_by_the_next() -> None:
    rates: dict[TrialConfig, list[float | None]] = {
        LEADER: [1000.0, None],
        YOURS: [100.0, 100.0],
        SECOND: [900.0, 910.0],
    }
    ran = [what for what, _ in confirmed(rates, 10.0, 50.0, 100.0)]
    assert ran == [LEADER, YOURS, SECOND, YOURS, LEADER, SECOND]


def test_where_yours_leads_its_best_rival_is_run_again_beside_it() -> None:
    rates = {SMALL: [400.0], YOURS: [1000.0, 950.0], SECOND: [900.0, 990.0]}
    ran = [what for what, _ in confirmed(rates, 10.0, 50.0, 50.0)]
    assert ran == [SMALL, YOURS, SECOND, YOURS, SECOND]


def test_the_best_at_your_batch_is_part_of_the_answer_where_it_was_given() -> None:
    at_yours = config(64, 8)
    rates = {LEADER: [1000.0] * 3, YOURS: [100.0] * 3, SECOND: [990.0] * 3, at_yours: [500.0] * 3}
    asked, unasked = (
        [what for what, _ in confirmed(rates, 10.0, 0.0, 60.0, at_your_batch=given)] for given in (True, False)
    )
    assert asked == [LEADER, YOURS, at_yours, YOURS, at_yours, LEADER]
    assert unasked == [LEADER, YOURS, YOURS, LEADER]


def test_no_round_begins_once_the_answer_is_told() -> None:
    clock, seen = FakeClock(), []

    def run(what: TrialConfig) -> Measurement:
        clock.spend(1.0)
        return measured(100.0)

    def told(found) -> bool:
        seen.append([len(finalist.runs) for finalist in found])
        return True

    asked = confirm([LEADER, YOURS], run, clock, clock.now() + 100.0, yours=YOURS, told=told)
    assert len(list(asked)) == 4
    assert seen == [[2, 2]]
