"""The stopping rule, with constants and no clock."""

from dataclasses import replace

from loadtune.records import TuneConfig, Window, half_width_fraction, samples_per_s
from loadtune.stages.run import TRIAL_SHARE
from loadtune.study.stopping import StoppingRule
from loadtune.study.trial import WINDOW_S


def window(rate: float = 100.0, seconds: float = 0.5, num_steps: int = 4) -> Window:
    return Window(start_s=0.0, seconds=seconds, num_steps=num_steps, num_samples=round(rate * seconds))


def feed(rule: StoppingRule, windows: list[Window]) -> int:
    """How many windows it took to be satisfied."""
    for count, each in enumerate(windows, 1):
        if not rule.add(each):
            return count
    raise AssertionError("it wanted more")


def test_a_round_of_workers_is_warm_up() -> None:
    rule = StoppingRule(num_workers=8, max_s=2.0)
    for _ in range(4):
        rule.add(window(num_steps=4))
    assert len(rule.kept) == 2


def test_a_steady_rate_ends_early() -> None:
    rule = StoppingRule(num_workers=0, max_s=4.0)
    assert feed(rule, [window()] * 20) == 6  # of the 8 there is time for
    assert not rule.noisy


def test_the_default_budget_has_time_for_a_steady_run_to_be_known() -> None:
    rule = StoppingRule(num_workers=0, max_s=TRIAL_SHARE * TuneConfig().time_budget_s)
    feed(rule, [window(seconds=WINDOW_S, rate=1000.0)] * 20)
    assert rule.verdict == "precise"
    assert not rule.noisy


def test_a_noisy_rate_takes_all_its_time_and_is_called_noisy() -> None:
    rule = StoppingRule(num_workers=0, max_s=4.0)
    assert feed(rule, [window(100 if i % 2 else 160) for i in range(20)]) == 8
    assert rule.noisy


def test_a_steady_rate_of_few_pinned_batches_takes_all_its_time_and_is_called_noisy() -> None:
    """Steps as steady as can be, but 24 pinned batches tell no more than one in 24."""
    rule = StoppingRule(num_workers=0, max_s=4.0)
    pinning = replace(window(), queue_start=8.0, queue_end=8.0, num_pinned=3, least_unpinned=1)
    assert feed(rule, [pinning] * 20) == 8
    assert rule.noisy


def test_it_ends_on_whole_rounds_of_the_workers() -> None:
    rule = StoppingRule(num_workers=3, max_s=2.0)
    feed(rule, [window(num_steps=2)] * 20)
    assert sum(w.num_steps for w in rule.kept) % 3 == 0


def settling(rate: float, num_windows: int, lock_s: float) -> list[Window]:
    """While memory is page-locked the rate rises: the fewer blocks are still missing, the less steps wait."""
    slowed = [window(rate * (0.5 + 0.4 * i / num_windows)) for i in range(num_windows)]
    return [replace(each, page_lock_s=lock_s) for each in slowed]


def test_page_locking_is_no_part_of_the_rate() -> None:
    rule = StoppingRule(num_workers=4, max_s=4.0)
    feed(rule, [window(1.0), *settling(1000.0, 5, lock_s=0.05), *[replace(window(1000.0), page_lock_s=0.0)] * 20])
    assert samples_per_s(rule.kept) == 1000.0
    assert not rule.noisy


def test_a_window_in_which_labels_alone_were_locked_counts() -> None:
    rule = StoppingRule(num_workers=0, max_s=4.0)
    assert feed(rule, [replace(window(), page_lock_s=0.001)] * 20) == 6


def test_what_is_kept_is_one_stretch_after_the_last_locking() -> None:
    """A lock is booked where it ends: the window before, in which it may have begun, does not count either."""
    rule = StoppingRule(num_workers=0, max_s=4.0)
    late = replace(window(500.0), page_lock_s=0.2)
    feed(rule, [window(1000.0), window(600.0), late, *[window(1000.0)] * 20])
    assert samples_per_s(rule.kept) == 1000.0
    assert not rule.noisy


def test_page_locking_without_end_is_measured_as_it_is() -> None:
    """At most eight windows, or twice the time allowed, are left out: whichever is less."""
    for seconds, left_out in ((0.5, 8), (2.0, 4)):
        rule = StoppingRule(num_workers=0, max_s=4.0)
        locking = replace(window(seconds=seconds), page_lock_s=0.1)
        seen = feed(rule, [locking] * 40)
        assert seen - len(rule.kept) == left_out
        assert rule.noisy


def test_the_verdict_names_what_ended_a_run() -> None:
    steady, noisy = [window()] * 20, [window(100 if i % 2 else 160) for i in range(200)]
    ended = {}
    for rule, windows in [
        (StoppingRule(num_workers=0, max_s=4.0), steady),
        (StoppingRule(num_workers=0, max_s=4.0), noisy),
        (StoppingRule(num_workers=0, max_s=60.0), noisy),
        (StoppingRule(num_workers=0, max_s=60.0, best=1000.0), steady),
        (StoppingRule(num_workers=64, max_s=1.0), [window(num_steps=64), *steady]),  # a round it cannot wait for
    ]:
        assert rule.verdict is None
        feed(rule, windows)
        ended[rule.verdict] = rule.noisy
    assert ended == {"precise": False, "time up": True, "noise settled": True, "hopeless": True}


def test_a_rate_that_changes_is_not_steady() -> None:
    """Its interval is narrow, but its halves disagree: it goes on until the time is up, and is called noisy."""
    rule = StoppingRule(num_workers=0, max_s=6.0)
    assert feed(rule, [window(1000 + 2 * i) for i in range(20)]) == 12
    assert (half_width_fraction(rule.kept) or 1.0) < 0.02
    assert rule.verdict == "time up"
    assert rule.noisy


def test_a_rule_that_is_started_again_remembers_nothing() -> None:
    rule = StoppingRule(num_workers=8, max_s=4.0)
    feed(rule, [window()] * 20)
    rule.start()
    assert rule.verdict is None
    assert rule.add(window())
    assert rule.kept == [], "a round of workers is warm-up again"


def test_a_hopeless_run_ends_after_three_windows() -> None:
    rule = StoppingRule(num_workers=0, max_s=60.0, best=1000.0)
    assert feed(rule, [window(100 + i) for i in range(20)]) == 3


def test_a_run_close_to_the_best_is_heard_out() -> None:
    rule = StoppingRule(num_workers=0, max_s=4.0, best=105.0)
    assert feed(rule, [window(100 + 8 * (i % 2)) for i in range(20)]) > 4


def test_steps_longer_than_the_time_allowed_are_still_timed_twice() -> None:
    rule = StoppingRule(num_workers=8, max_s=3.0)
    assert feed(rule, [window(rate=4, seconds=6.0, num_steps=1)] * 20) == 1 + 2


def test_a_queue_that_only_ran_down_is_no_rate_yet() -> None:
    """Until something is delivered there is nothing to stop at, however long it takes."""
    rule = StoppingRule(num_workers=0, max_s=1.0)
    drained = [
        Window(start_s=0.0, seconds=5.0, num_steps=4, num_samples=32, queue_start=8.0 - 4 * i, queue_end=4.0 - 4 * i)
        for i in range(2)
    ]
    assert all(rule.add(each) for each in drained)
    fresh = Window(start_s=0.0, seconds=5.0, num_steps=2, num_samples=16, queue_start=0.0, queue_end=0.0)
    assert not rule.add(fresh)
