"""What several ranks say, put together."""

import pytest

from loadtune.errors import WorkloadError
from loadtune.records.measurement import TrialFailure, Window
from loadtune.script.bench import Hello
from loadtune.script.process import Rank, cause, next_message
from loadtune.training.process import Answer


def ranks_that_said(*said):
    """None: this rank ended and said nothing."""
    found = []
    for number, message in enumerate(said):
        rank = Rank(None, Hello(number, len(said), len(said)), has_ended=message is None)
        rank.heard.extend([] if message is None else [message])
        found.append(rank)
    return found


def failed(kind):
    return Answer(TrialFailure(kind=kind, phase="training", message=kind))


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ([failed("crash"), failed("oom")], 1),
        ([failed("user_error"), failed("host_oom")], 1),
        ([failed("crash"), failed("user_error")], 1),
        ([failed("oom"), None], 0),
        ([failed("crash"), None], None),  # its collective broke as the other one was killed
        ([None, None], None),
        ([failed("crash"), failed("crash")], 0),
    ],
)
def test_of_several_failures_the_one_is_told_that_caused_the_others(said, number):
    found = cause(ranks_that_said(*said))
    assert (found and found.value.message.partition(":")[0]) == (None if number is None else f"Rank {number}")
    assert found is None or not found.healthy, "the others are out of step"


def test_what_the_user_has_to_mend_is_told_as_it_is():
    error = WorkloadError("the sampler draws nothing")
    assert cause(ranks_that_said(failed("crash"), Answer(error))).value is error


def window(wait_s, grown):
    return Window(
        start_s=0.0, seconds=1.0, num_steps=4, num_samples=32, wait_s=wait_s, queue_start=8, queue_end=8 + grown
    )


def test_windows_wait_for_all_ranks_and_the_slowest_counts():
    first, second = ranks_that_said(window(0.1, -1), "training")
    assert next_message([first, second]) == "training", "a sign of life of any rank"
    assert next_message([first, second]) is None
    second.heard.append(window(0.3, -4))
    both = next_message([first, second])
    assert (both.wait_s, both.queue_end) == (0.3, 4)
    assert [rank.waited_s for rank in (first, second)] == [0.1, 0.3]
