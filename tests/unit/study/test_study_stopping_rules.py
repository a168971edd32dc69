"""Each rule alone, with constants."""

import pytest

from loadtune.study.stopping_rules import (
    SETTLED_LOOKS,
    Delivered,
    Hopeless,
    NoiseSettled,
    Precise,
    Rule,
    Standing,
    Steady,
    TimeUp,
    WarmUp,
)


def after(rule: Rule, **numbers: object) -> bool:
    """Whether the rule is done after this one standing."""
    rule.start()
    rule.add(Standing(**numbers))  # type: ignore[arg-type]
    return rule.done


@pytest.mark.parametrize(
    ("num_workers", "num_steps", "seconds", "warm"),
    [
        (8, 7, 0.7, False),
        (8, 8, 0.8, True),
        (8, 1, 0.2, False),  # 1.4 s to go, of 3 s allowed
        (8, 1, 0.3, True),  # 2.1 s to go: too many
    ],
)
def test_a_round_is_warm_up_where_there_is_time_for_it(
    num_workers: int, num_steps: int, seconds: float, warm: bool
) -> None:
    assert after(WarmUp(num_workers, max_s=3.0), num_steps=num_steps, seconds=seconds) is warm


@pytest.mark.parametrize(("batch_s", "seconds", "warm"), [(1.0, 1.0, True), (1.0, 0.9, False), (9.0, 3.0, True)])
def test_it_warms_up_for_as_long_as_a_batch_takes_a_worker(batch_s: float, seconds: float, warm: bool) -> None:
    assert after(WarmUp(8, max_s=3.0, batch_s=batch_s), num_steps=8, seconds=seconds) is warm


def test_without_workers_nothing_is_warm_up() -> None:
    rule = WarmUp(num_workers=0, max_s=3.0)
    rule.start()
    assert rule.done


@pytest.mark.parametrize(
    ("num_windows", "num_steps", "seconds", "done"),
    [
        (3, 8, 3.0, True),
        (2, 8, 3.0, False),  # too few windows
        (3, 4, 3.0, False),  # one round
        (3, 10, 3.0, False),  # within a round
        (3, 10, 4.5, True),  # which has been waited for long enough
    ],
)
def test_every_worker_is_heard_twice_in_whole_rounds(
    num_windows: int, num_steps: int, seconds: float, done: bool
) -> None:
    rule = Delivered(num_workers=4, max_s=3.0)
    assert after(rule, num_windows=num_windows, num_steps=num_steps, seconds=seconds) is done


@pytest.mark.parametrize(("seconds", "done"), [(2.9, False), (3.0, True)])
def test_time_is_up(seconds: float, done: bool) -> None:
    assert after(TimeUp(3.0), seconds=seconds) is done


@pytest.mark.parametrize("agree", [True, False])
def test_a_run_whose_halves_agree_is_steady(agree: bool) -> None:
    assert after(Steady(), halves_agree=agree) is agree


@pytest.mark.parametrize(
    ("num_windows", "width", "done"), [(6, 0.02, True), (6, 0.021, False), (5, 0.001, False), (6, None, False)]
)
def test_a_narrow_interval_of_enough_windows_is_precise(num_windows: int, width: float | None, done: bool) -> None:
    assert after(Precise(0.02), num_windows=num_windows, half_width_fraction=width) is done


def test_noise_that_stays_the_same_has_settled() -> None:
    rule = NoiseSettled()
    rule.start()
    for look in range(SETTLED_LOOKS):
        assert not rule.done
        rule.add(Standing(relative_sd=0.10 + 0.009 * (look % 2)))
    assert rule.done
    rule.add(Standing(relative_sd=0.12))  # 20% more than what it was
    assert not rule.done
    rule.start()
    rule.add(Standing(relative_sd=0.10))
    assert not rule.done, "a new run has settled nothing"


@pytest.mark.parametrize(
    ("best", "rate", "width", "num_windows", "done"),
    [
        (1000.0, 700.0, 0.1, 3, True),
        (1000.0, 700.0, 0.2, 3, False),  # the interval reaches up to 840
        (1000.0, 850.0, 0.0, 3, False),  # below, and within what fresh loaders differ by
        (1000.0, 100.0, 0.0, 2, False),  # two windows say nothing yet
        (1000.0, 100.0, None, 3, False),
        (None, 100.0, 0.0, 3, False),
    ],
)
def test_only_what_lies_clearly_below_the_incumbent_is_hopeless(
    best: float | None, rate: float, width: float | None, num_windows: int, done: bool
) -> None:
    rule = Hopeless(best)
    assert after(rule, samples_per_s=rate, half_width_fraction=width, num_windows=num_windows) is done
