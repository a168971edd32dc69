"""When a window ends: told times and steps, no clock."""

import pytest

from loadtune.bench.windows import WindowRule


def steps_until_end(window_s, num_workers, step_s):
    rule = WindowRule(window_s, num_workers)
    steps = 0
    while not rule.ends(steps * step_s, steps):
        steps += 1
    return steps


@pytest.mark.parametrize(
    ("window_s", "num_workers", "step_s", "steps"),
    [
        (1.0, 0, 0.125, 8),
        (1.0, 1, 0.3, 4),
        (1.0, 4, 0.125, 8),
        (1.0, 6, 0.125, 12),  # the next whole round
        (1.0, 16, 0.125, 16),
        (1.0, 16, 0.25, 16),  # four windows' worth: just affordable
        (1.0, 16, 0.5, 2),  # a round would take 8 s: not affordable, so it ends when it is long enough
        (1.0, 16, 3.0, 1),
        (0.0, 0, 1.0, 1),  # one step at the least
    ],
)
def test_a_window_spans_whole_rounds_where_that_is_affordable(window_s, num_workers, step_s, steps):
    assert steps_until_end(window_s, num_workers, step_s) == steps


def test_a_round_that_slows_down_is_given_up():
    rule = WindowRule(1.0, 8)
    assert not rule.ends(1.1, 5)
    assert rule.ends(5.0, 7)
