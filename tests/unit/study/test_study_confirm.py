"""The confirmation: who is measured again, in which order, and what the spread between runs allows to be said."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from loadtune.records import LoaderConfig, Measurement, Recipe, Telemetry, Trial, TrialConfig, TrialFailure, Window
from loadtune.study.confirm import confirm, finalists, pick_finalists
from loadtune.study.winner import not_told_apart, pick_winner, speedup
from loadtune.testing import FakeClock


def config(batch_size: int = 64, num_workers: int = 4) -> TrialConfig:
    return TrialConfig(loader=LoaderConfig(batch_size=batch_size, num_workers=num_workers), recipe=Recipe())


def measured(rate: float) -> Measurement:
    windows = (Window(start_s=0.0, seconds=1000.0, num_steps=10, num_samples=round(rate * 1000)),)
    return Measurement(windows=windows, first_batch_s=0.1, seconds=1.0)


def trial(number: int, rate: float | None, what: TrialConfig) -> Trial:
    failure = None if rate else TrialFailure(kind="crash", phase="training", message="")
    measurement = measured(rate) if rate else None
    return Trial(number=number, config=what, origin="search", measurement=measurement, failure=failure)


def test_the_top_two_the_smallest_contender_and_yours() -> None:
    rates = {(64, 16): 100.0, (128, 16): 99.0, (256, 12): 96.0, (32, 2): 94.0, (32, 1): 50.0}
    trials = [trial(i, rate, config(*what)) for i, (what, rate) in enumerate(rates.items())]
    yours = config(64, 0)
    picked = pick_finalists(trials, yours)
    assert picked == (config(64, 16), config(128, 16), config(32, 2), yours)


def test_the_best_at_your_batch_is_a_finalist_where_it_was_given() -> None:
    trials = [trial(0, 100.0, config(256, 16)), trial(1, 40.0, config(64, 3)), trial(2, 30.0, config(64, 2))]
    assert config(64, 3) in pick_finalists(trials, config(64, 0), at_your_batch=True)
    assert config(64, 3) not in pick_finalists(trials, config(64, 0))


def test_failed_trials_are_no_finalists() -> None:
    assert pick_finalists([trial(0, None, config())], None) == ()


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


def test_an_answer_that_was_kept_took_its_time_all_the_same() -> None:
    """A resumed confirmation answers its first round from the journal, at once; a second round takes 10 s a run."""
    clock = FakeClock()
    configs = [config(1), config(2)]
    kept = {config(1): 20.0, config(2): 10.0}

    def run(what: TrialConfig) -> Measurement:
        rate = kept.pop(what, None)
        clock.spend(10.0 if rate is None else 0.0)
        return replace(measured(rate or 10.0), seconds=10.0)

    assert len(list(confirm(configs, run, clock, clock.now() + 9.0, yours=config(2)))) == 2
    kept.update({config(1): 20.0, config(2): 10.0})
    assert len(list(confirm(configs, run, clock, clock.now() + 25.0, yours=config(2)))) == 4


def test_what_failed_once_is_not_run_again() -> None:
    clock, ran = FakeClock(), []

    def run(what: TrialConfig) -> Measurement | TrialFailure:
        ran.append(what)
        clock.spend(1.0)
        return TrialFailure(kind="hang", phase="training", message="") if what == config(1) else measured(100.0)

    list(confirm([config(1), config(2)], run, clock, clock.now() + 100.0))
    assert ran == [config(1), config(2), config(2), config(2)]


def test_a_winner_never_failed_unless_all_did() -> None:
    failure = TrialFailure(kind="crash", phase="training", message="")
    fast, slow = config(64, 8), config(64, 4)
    outcomes = [(fast, measured(1000.0)), (fast, failure), (slow, measured(500.0))]
    winner = pick_winner(finalists(outcomes), None)
    assert winner is not None
    assert winner.config == slow
    all_failed = pick_winner(finalists([*outcomes, (slow, failure)]), None)
    assert all_failed is not None
    assert all_failed.config == fast


def test_at_a_batch_size_the_interval_is_from_all_finalists() -> None:
    found = finalists([*draws(1, [1000.0, 700.0], 3, 0.03), (config(32, 1), measured(400.0))])
    at_32 = pick_winner(found, found[0].config, batch_size=32)
    assert at_32 is not None
    assert at_32.config.batch_size == 32
    assert at_32.speedup_low is not None
    assert pick_winner(found, None, batch_size=7) is None


def draws(seed: int, rates: list[float], runs: int, noise: float) -> Iterator[tuple[TrialConfig, Measurement]]:
    source = random.Random(seed)
    for index, rate in enumerate(rates):
        for _ in range(runs):
            yield config(64, index + 1), measured(rate * source.gauss(1.0, noise))


@pytest.mark.parametrize("runs", [2, 3, 4])
@pytest.mark.parametrize("truth", [1.0, 2.0])
def test_the_interval_of_the_speedup_holds_its_level(runs: int, truth: float) -> None:
    """Over 1,000 confirmations at 3% between-run noise the 95% interval holds the true ratio in at least 930."""
    held = 0
    for seed in range(1000):
        found = finalists(list(draws(seed, [1000.0, truth * 1000.0, 800.0], runs, 0.03)))
        _, low, high = speedup(found[1], found[0], found, 1)
        assert low is not None
        assert high is not None
        held += low <= truth <= high
    assert held >= 930


def test_the_more_there_was_to_pick_from_the_wider_the_interval() -> None:
    """A configuration that was picked for being fast needs a larger lead than one that was asked about."""
    found = finalists(list(draws(1, [1000.0, 1100.0, 1000.0, 1000.0], 3, 0.03)))
    alone, picked = (speedup(found[1], found[0], found, num_rivals) for num_rivals in (1, 3))
    assert alone[0] == picked[0]
    assert picked[1] < alone[1] < alone[2] < picked[2]


def test_at_a_batch_size_only_what_has_it_was_there_to_pick_from() -> None:
    outcomes = [(config(64, 0), 400.0), (config(64, 1), 700.0), (config(32, 1), 650.0), (config(32, 2), 600.0)]
    found = finalists([(what, measured(rate * luck)) for what, rate in outcomes for luck in (0.97, 1.03)])
    at_64, any_size = (pick_winner(found, found[0].config, batch_size=size) for size in (64, None))
    assert at_64 is not None
    assert any_size is not None
    assert at_64.config == any_size.config
    assert any_size.speedup_low < at_64.speedup_low


def test_ties_go_to_the_smallest() -> None:
    found = finalists([(config(64, 8), measured(1000.0)), (config(64, 4), measured(985.0))])
    winner = pick_winner(found, None)
    assert winner is not None
    assert winner.config.loader.num_workers == 4
    assert winner.speedup is None


def test_a_real_difference_is_told() -> None:
    found = finalists(list(draws(1, [1000.0, 2000.0], 3, 0.03)))
    winner = pick_winner(found, found[0].config)
    assert winner is not None
    assert winner.config == found[1].config
    assert winner.different is True


def test_one_run_each_gives_no_interval() -> None:
    found = finalists([(config(64, 8), measured(1000.0)), (config(64, 0), measured(500.0))])
    winner = pick_winner(found, config(64, 0))
    assert winner is not None
    assert winner.speedup == pytest.approx(2.0)
    assert winner.different is None


def test_a_finalist_that_never_ran_is_left_out() -> None:
    failure = TrialFailure(kind="crash", phase="training", message="")
    found = finalists([(config(64, 8), failure), (config(64, 0), measured(500.0))])
    assert [f.config for f in found] == [config(64, 0)]


def test_finalists_that_may_be_as_fast_are_named() -> None:
    rates = {8: (1000.0, 1030.0), 4: (960.0, 990.0), 1: (500.0, 505.0)}
    found = finalists([(config(64, workers), measured(rate)) for workers, own in rates.items() for rate in own])
    winner = pick_winner(found, None)
    assert winner is not None
    assert winner.config.loader.num_workers == 8
    assert [f.config.loader.num_workers for f in not_told_apart(winner, found)] == [4]


def test_samples_per_joule_have_an_interval_of_their_own_where_every_run_read_its_energy() -> None:
    def at_power(rate: float, power_w: float | None) -> Measurement:
        energy_j = None if power_w is None else 10 * power_w
        return replace(measured(rate), telemetry=Telemetry(seconds=10.0, num_readings=9, gpu_energy_j=energy_j))

    steady, swinging = [(A, at_power(100.0, power_w)) for power_w in (50.0, 50.0)], [(B, at_power(80.0, 30.0))] * 2
    swinging[1] = (B, at_power(80.0, 40.0))
    found = finalists([*steady, *swinging])
    assert {finalist.half_width_fraction for finalist in found} == {0.0}
    assert all((finalist.efficiency_half_width_fraction or 0.0) > 0.1 for finalist in found)
    best = pick_winner(found, None, objective="samples-per-joule")
    assert best is not None
    assert best.picked_by == found[1].scored("samples-per-joule")
    unread = finalists([*steady, (B, at_power(80.0, None))])
    assert {finalist.efficiency_half_width_fraction for finalist in unread} == {None}
