"""What of a segment is left out, and when it has seen enough."""

from loadtune.records.config import LoaderConfig
from loadtune.records.measurement import Window
from loadtune.search.segment import Segment

IN_PROCESS, EIGHT = LoaderConfig(batch_size=10), LoaderConfig(batch_size=10, num_workers=8)


def window(num_steps=10, seconds=0.4, **changed):
    return Window(start_s=0.0, seconds=seconds, num_steps=num_steps, num_samples=10 * num_steps, **changed)


def feed(segment, windows):
    """How many of them it takes."""
    for number, each in enumerate(windows, 1):
        if not segment.add(each):
            return number
    return None


def test_the_first_round_of_the_workers_is_left_out():
    segment = Segment(EIGHT, 4.0)
    feed(segment, [window(num_steps=8)] * 4)
    assert len(segment.kept) == 3
    assert segment.settled
    segment = Segment(EIGHT, 4.0)
    feed(segment, [window(num_steps=2)] * 5)
    assert len(segment.kept) == 1, "its windows may be shorter"


def test_without_workers_nothing_is_left_out_but_what_settles():
    segment = Segment(IN_PROCESS, 4.0)
    feed(segment, [window()] * 4)
    assert len(segment.kept) == 4
    segment = Segment(IN_PROCESS, 4.0)
    feed(segment, [window(num_skipped_steps=1), *[window()] * 3])
    assert len(segment.kept) == 2, "the window after it shows that it is over"


def test_it_lasts_half_of_its_time_where_the_workers_have_delivered_often_enough():
    assert feed(Segment(IN_PROCESS, 4.0), [window(num_steps=100)] * 30) == 5


def test_it_goes_on_until_the_workers_have_delivered_fifteen_times_and_no_longer_than_its_time():
    assert feed(Segment(EIGHT, 8.0), [window(num_steps=8, seconds=0.5)] * 90) == 1 + 15
    assert feed(Segment(EIGHT, 4.0), [window(num_steps=8, seconds=0.5)] * 90) == 1 + 8


def test_pages_that_are_locked_are_no_part_of_the_rate_nor_is_what_came_before():
    locking = window(page_lock_s=0.3)
    segment = Segment(IN_PROCESS, 4.0)
    feed(segment, [window(), locking, window(), window(), locking, window(), window()])
    assert len(segment.kept) == 1


def test_what_never_settles_is_measured_as_it_is_and_says_so():
    skipping = window(num_skipped_steps=1)
    segment = Segment(IN_PROCESS, 4.0)
    assert feed(segment, [skipping] * 90) is not None
    assert not segment.settled
    assert 0 < len(segment.kept) <= 11


def test_a_segment_whose_queue_is_not_turned_over_in_time_gives_up():
    segment = Segment(EIGHT, 4.0, limit_s=20.0)
    assert feed(segment, [window(num_steps=1, seconds=2.0)] * 90) == 11
    assert segment.gave_up
    segment = Segment(EIGHT, 4.0, limit_s=20.0)
    assert feed(segment, [window(num_steps=8, seconds=2.0)] * 90) is not None
    assert not segment.gave_up
