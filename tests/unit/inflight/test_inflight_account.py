"""What a loader's account tells people and loggers."""

from loadtune.inflight.account import Account, summary


def switched(**measured):
    rates = {"first_samples_per_s": 572.0, "samples_per_s": 3513.0}
    return Account(name="Images at train.py:3", own_workers=2, num_workers=15, **rates, **measured)


def test_the_share_of_time_blocked_is_that_since_the_present_workers_deliver():
    found = switched(blocked_s=46.0, total_s=100.0, earlier_blocked_s=45.0, earlier_total_s=50.0)
    assert found.numbers()["blocked_fraction"] == 0.02
    assert "blocked in next() 2% of the time since then" in summary([found])[0]


def test_without_a_step_of_the_present_workers_nothing_is_told():
    found = switched(blocked_s=45.0, total_s=50.0, earlier_blocked_s=45.0, earlier_total_s=50.0)
    assert "blocked_fraction" not in found.numbers()
