"""In which order finalists are run, and when a confirmation ends."""

from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

import pytest
from fakes import FakeClock
from study_rig import RUN_S, measured

from loadtune.decide.final import LOOKS, Final, Verdict
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.measurement import TrialFailure
from loadtune.records.result import Attempt

A, B, C = (TrialConfig(loader=LoaderConfig(batch_size=size), recipe=Recipe()) for size in (1, 2, 3))
FAILURE = TrialFailure(kind="crash", phase="training", message="")
RUN = measured(100.0)


def ran(
    until_s=1e9, *, fails=(), undecided=lambda seen: (A, B, C), known=(), needed=(A, B), lasts=MappingProxyType({})
):
    class Told(Verdict):
        seen = property(lambda self: [run for each in self.finalists for run in each.runs])

        def needed(self, among):
            return needed

        def undecided(self):
            return undecided(self.seen)

    clock = FakeClock(0.0)
    final = Final((A, B, C), Told(ran=tuple(known)), lambda: until_s - clock())
    for config in final.rounds():
        clock.spend(lasts.get(config, RUN_S))
        final.saw(config, FAILURE if config in fails else replace(RUN, seconds=lasts.get(config, RUN_S)))
    return [each.config for each in final.verdict.ran]


def test_everybody_runs_in_every_round_and_every_second_round_goes_backwards():
    order = ran()
    rounds = [order[at : at + 3] for at in range(0, len(order), 3)]
    assert len(rounds) == LOOKS[-1]
    assert all(sorted(each, key=[A, B, C].index) == [A, B, C] for each in rounds)
    assert rounds[0] == [A, B, C]
    assert all(later == earlier[::-1] for earlier, later in list(pairwise(rounds))[::2])


def test_one_looks_after_planned_rounds_alone_and_a_decided_answer_ends_it():
    looks = []
    ran(undecided=lambda seen: looks.append(len(seen)) or (A, B, C))
    assert looks == [3 * number for number in LOOKS[:-1]]
    assert len(ran(undecided=lambda seen: ())) == 3 * LOOKS[0], "a decided answer ends it"


def test_who_is_decided_after_a_look_is_out():
    order = ran(undecided=lambda seen: (A, B) if len(seen) == 3 * LOOKS[0] else (A,))
    assert [order.count(each) for each in (A, B, C)] == [LOOKS[2], LOOKS[1], LOOKS[0]]


@pytest.mark.parametrize("num_known", [2, 4, 9, 10, 11, 12, 13])
def test_after_an_interruption_runs_and_looks_go_on_as_they_would_have(num_known):
    """Whoever was out stays out, also where the interruption came within the next round."""

    def undecided(seen):
        return (A, B) if len(seen) == 9 else (A,)

    whole = ran(undecided=undecided)
    known = [Attempt(config=config, measurement=RUN) for config in whole[:num_known]]
    again = ran(undecided=undecided, known=known)
    assert again == whole


def test_who_failed_is_run_once_more_after_the_others_and_then_not_again():
    order = ran(fails=[B])
    assert order[:4] == [A, B, C, B]
    assert order.count(B) == 2
    assert order.count(A) == order.count(C) == LOOKS[-1]
    assert ran(35.0, fails=[C]) == [A, B, C], "there is no time for it"


@pytest.mark.parametrize(("until_s", "expected"), [(0.0, [A, B]), (25.0, [A, B]), (35.0, [A, B, C])])
def test_the_needed_run_whatever_the_time_and_the_others_while_it_lasts(until_s, expected):
    assert ran(until_s) == expected


def test_a_round_is_whole_or_of_the_needed_alone_where_that_is_too_long():
    assert ran(65.0) == [A, B, C, C, B, A]
    assert ran(55.0) == [A, B, C, B, A]
    assert ran(55.0, needed=(A, B, C)) == [A, B, C, B, A], "of the needed as many as fit"
    assert ran(55.0, needed=(A, B, C), lasts={B: 20.0}) == [A, B, C], "there are 15 s, and two take 20"
    assert ran(65.0, needed=(A, B, C), lasts={B: 20.0}) == [A, B, C, C, A], "the second is too long, and the third fits"
    assert ran(45.0) == [A, B, C]
    assert ran(35.0) == [A, B, C]
    assert ran(25.0) == [A, B]


def test_what_failed_once_before_an_interruption_is_asked_again():
    known = [Attempt(config=A, measurement=RUN), Attempt(config=B, failure=FAILURE)]
    assert ran(known=known).count(B) == 1 + LOOKS[-1]
    assert ran(known=[*known, known[-1]]).count(B) == 2
