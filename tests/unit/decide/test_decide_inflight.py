"""Every decision about the workers of a loop in flight, one row each."""

import math
from dataclasses import replace

import pytest

from loadtune.decide.inflight import Bound, Job, Reading, State, after_epoch, decide, delivers, told
from loadtune.model.workers import MOST, Work
from loadtune.records.statistics import LOOKS


def reading(num_workers=1, total_s=0.1, waiting=0.9, **other):
    """Of a loop that waits for this share of its time. Blocks vary by 1%."""
    num = other.pop("num_blocks", LOOKS[0])
    blocks = tuple(total_s * (1 + 0.01 * (-1) ** at) for at in range(num))
    times = {"blocked_s": waiting * total_s, "step_s": (1 - waiting) * total_s, "sustained_s": total_s}
    return Reading(
        **{"num_workers": num_workers, "num_steps": 24, "total_s": total_s, "blocks": blocks} | times | other
    )


def epoch(num_workers, seconds, num_whole=1):
    """A whole one, of 10 batches."""
    blocks = (seconds / 10,) * num_whole
    means = {"total_s": seconds / 10, "blocked_s": 0.0, "step_s": 0.0, "epoch_s": seconds}
    return Reading(num_workers=num_workers, num_steps=10, blocks=blocks, **means)


SLEEPS = Work(load_s=0.1, cpu_s=0.01, cores_busy=0.2)
CROWDED = replace(SLEEPS, queued_s=0.0125)
COMPUTES = Work(load_s=0.1, cpu_s=0.1, cores_busy=0.55)
ROOM = replace(COMPUTES, cores_busy=0.5)
BOUND = Bound(most=64, reason="RAM", cores=4.0, start_cpu_s=0.02)
WATCHING = State(job=Job(own=1))
CHANGED = replace(
    WATCHING,
    stage="judging",
    target=4,
    was=1,
    before=reading(),
    first=reading(num_blocks=8),
    tried=(4,),
    predicted_s=0.03,
)
RESTING = replace(WATCHING, stage="resting", decided_s=0.1, decided_cores=4.0, limit="workers")
KEPT = replace(
    CHANGED, stage="resting", phases=((0.03,) * 8,), decided_s=0.03, decided_cores=4.0, rested_s=8.0 - 24 * 0.08
)
SLOW = replace(KEPT, first=reading(total_s=0.5))
FAST = {"num_workers": 4, "total_s": 0.03, "waiting": 0.0}


def of(state, **job):
    return replace(state, job=replace(state.job, **job))


def then(state, reading, work=SLEEPS, bound=BOUND):
    """What is done, with how many workers; what limits, why, where that was decided; and the stage that follows."""
    action = decide(state, reading, work, bound)
    is_open = action.do in ("nothing", "switch", "compare")
    why = (None, None) if is_open else (action.state.limit, action.state.reason)
    return action.do, action.num_workers, *why, action.state.stage


def at(target, *tried):
    return replace(WATCHING, target=target, tried=tried)


def to(num_workers):
    return "switch", num_workers, None, None, "starting"


def rest(limit, reason=None):
    return "rest", None, limit, reason, "resting"


NOTHING, LAST, RANK = ("nothing", None, None, None), LOOKS[-1], {"several_ranks": True}
WATCHES, JUDGES, RESTS = ((*NOTHING, stage) for stage in ("watching", "judging", "resting"))
KEEPS = ("keep", None, "workers", None, "watching")
TAKEN_BACK = ("take back", 1, "handing batches over", "gained nothing", "resting")
TABLE = {
    "waits": (WATCHING, reading(), SLEEPS, {}, to(11)),
    "memory bounds workers": (WATCHING, reading(), SLEEPS, {"most": 3}, to(3)),
    "waits with all workers that are allowed": (WATCHING, reading(), SLEEPS, {"most": 1}, rest("RAM")),
    "does not wait": (WATCHING, reading(waiting=0.02), SLEEPS, {}, rest("the step")),
    "waits as long as it takes to take a ready batch": (
        WATCHING, reading(waiting=0.1, handover_s=0.01), SLEEPS, {}, rest("the step"),
    ),
    "waits less than handing over takes": (WATCHING, reading(total_s=0.001, waiting=0.4), SLEEPS, {}, rest("the step")),
    "workers that compute get the cores": (WATCHING, reading(), ROOM, {}, to(4)),
    "cores that are busy have no time": (
        WATCHING, reading(total_s=1.0, waiting=0.025), COMPUTES, {"cores": 1.0}, rest("cores"),
    ),
    "cores that were not seen busy are tried": (
        WATCHING, reading(), replace(COMPUTES, cores_busy=None), {"cores": 1.0}, to(2),
    ),
    "one worker more where cores have time": (
        WATCHING, reading(waiting=0.1, left=400, length=400), ROOM, {"cores": 1.0}, to(2),
    ),
    "one more than there are cores": (at(4), reading(4, starved=0.5), ROOM, {}, to(5)),
    "a third more of many": (
        at(10), reading(10, 0.011, 0.9, left=4000), replace(ROOM, load_s=0.11, cpu_s=0.11), {"cores": 10.0}, to(13),
    ),
    "not for a short wait that the model cannot end": (
        WATCHING, reading(waiting=0.08), Work(load_s=0.01, cpu_s=0.01, cores_busy=0.5, step_cpu_s=0.1),
        {"cores": 1.0}, rest("workers"),
    ),
    "not where batches stand ready": (
        WATCHING, reading(starved=0.4), replace(ROOM, step_cpu_s=0.1), {"cores": 1.0},
        ("rest", None, "handing batches over", None, "resting"),
    ),
    "rows in memory gain nothing by a worker": (
        of(WATCHING, own=0), reading(0, 0.0058, 0.25), Work(load_s=0.0014, cpu_s=0.0014, cores_busy=0.5), {},
        rest("handing batches over"),
    ),
    "rows that take longer do": (
        of(WATCHING, own=0), reading(0, 0.0058, 0.28), Work(load_s=0.0016, cpu_s=0.0016, cores_busy=0.5), {}, to(1),
    ),
    "too many workers for the cores": (
        of(at(32), own=32), reading(32, 0.1, 0.9), replace(COMPUTES, cpu_s=0.1), {}, to(4),
    ),
    "the rest of the epoch is too short, the next is not": (
        WATCHING, reading(left=2, length=400), SLEEPS, {"start_cpu_s": 1.0}, to(8),
    ),
    "every epoch is too short": (
        of(WATCHING, own=0), reading(0, left=0, length=4), SLEEPS, {"start_cpu_s": 1.0}, rest("workers", "short epoch"),
    ),
    "every epoch is too short for more than there are": (
        at(4), reading(4, left=14, length=14), SLEEPS, {"start_cpu_s": 1.0}, rest("workers", "short epoch"),
    ),
    "persistent workers do not begin with an epoch": (
        of(WATCHING, persistent=True), reading(left=2, length=400), SLEEPS, {"start_cpu_s": 1.0},
        rest("workers", "short epoch"),
    ),
    "workers that start slowly are few in a short epoch": (
        WATCHING, reading(left=400, length=400), SLEEPS, {"start_cpu_s": 6.0}, to(5),
    ),
    "as many as start in time": (
        WATCHING, reading(total_s=0.05, left=53, length=400), replace(SLEEPS, load_s=0.05), {"start_cpu_s": 0.0}, to(6),
    ),
    "a rank that loads nothing": (WATCHING, reading(), None, {}, WATCHES),
    "another loader is being changed": (WATCHING, reading(), SLEEPS, {"is_taken": True}, WATCHES),
    "peers wait": (WATCHING, reading(waiting=0.0, step_s=0.0, peers_wait=True), ROOM, RANK, to(4)),
    "a peer's word is missing": (WATCHING, reading(waiting=0.0, peers_wait=None), SLEEPS, RANK, WATCHES),
    "a rank tries once": (at(1, 4), reading(step_s=0.0), SLEEPS, RANK | {"most": 1}, rest("RAM")),
    "corrected once": (at(1, 13), reading(), SLEEPS, {}, to(11)),
    "not twice": (at(1, 4, 8), reading(), SLEEPS, {}, rest("workers")),
    "not by a number like one that was tried": (at(1, 7), reading(), SLEEPS, {"most": 8}, rest("workers")),
    "corrected to fewer where these idle": (
        at(20, 20), reading(20, 0.1, 0.0), replace(SLEEPS, load_s=1.15), {}, to(13),
    ),
    "not where few of them idle": (at(7, 7), reading(7, 0.1, 0.0), replace(SLEEPS, load_s=0.45), {}, rest("the step")),
    "two are few": (at(2, 2), reading(2, 0.1, 0.0), replace(SLEEPS, load_s=0.01), {}, rest("the step")),
    "an IterableDataset and a dry run": (
        of(WATCHING, only_advises=True), reading(), SLEEPS, {}, ("advise", 11, "workers", None, "resting"),
    ),
    "exact, and whatever else refuses": (
        WATCHING, reading(), SLEEPS, {"refusal": "random"}, ("leave", None, None, "random", "left alone"),
    ),
    "refused, and nothing to gain": (WATCHING, reading(), COMPUTES, {"cores": 1.0, "refusal": "random"}, rest("cores")),
    "left alone": (replace(WATCHING, stage="left alone"), reading(), SLEEPS, {}, (*NOTHING, "left alone")),
    "starting": (replace(CHANGED, stage="starting"), reading(), SLEEPS, {}, (*NOTHING, "starting")),
    "the wanted ones do not deliver yet": (at(4), reading(1), SLEEPS, {}, WATCHES),
    "not by others that deliver": (CHANGED, reading(1, num_blocks=LAST), SLEEPS, {}, JUDGES),
    "judged better": (CHANGED, reading(**FAST), SLEEPS, {}, ("keep", None, "the step", None, "watching")),
    "judged better, and waits": (CHANGED, reading(**FAST | {"waiting": 0.5}), SLEEPS, {}, KEEPS),
    "judged worse": (CHANGED, reading(4, 0.2), SLEEPS, {}, TAKEN_BACK),
    "judged equal, more steps may tell": (CHANGED, reading(4, 0.1), SLEEPS, {}, JUDGES),
    "judged equal at the last look": (CHANGED, reading(4, 0.1 / 1.018, num_blocks=LAST), SLEEPS, {}, TAKEN_BACK),
    "judged a little better at the last look": (
        replace(CHANGED, before=reading(total_s=0.51)), reading(4, 0.5, num_blocks=LAST), SLEEPS, {}, KEEPS,
    ),
    "fewer need not gain": (replace(CHANGED, was=8), reading(4, 0.1 / 0.972, num_blocks=LAST), SLEEPS, {}, KEEPS),
    "a rank need not gain": (CHANGED, reading(4, 0.1, num_blocks=LAST), SLEEPS, RANK, KEEPS),
    "a rank may not lose": (
        CHANGED, reading(4, 0.1 / 0.965, num_blocks=LAST), SLEEPS, RANK, TAKEN_BACK,
    ),
    "not between two looks": (CHANGED, reading(**FAST, num_blocks=LOOKS[0] - 1), SLEEPS, {}, JUDGES),
    "not the same look twice": (
        replace(CHANGED, seen=LOOKS[0]), reading(**FAST, num_blocks=LOOKS[0] + 1), SLEEPS, {}, JUDGES,
    ),
    "not by blocks that are too short": (CHANGED, reading(**FAST, is_rough=True), SLEEPS, {}, JUDGES),
    "a correction is taken back to what was kept": (
        replace(CHANGED, was=3), reading(4, 0.2), SLEEPS, {},
        ("take back", 3, "handing batches over", "gained nothing", "watching"),
    ),
    "not by steps where epochs tell": (replace(CHANGED, is_for_next=True), reading(**FAST), SLEEPS, {}, JUDGES),
    "rests": (RESTING, reading(total_s=0.118, num_blocks=8), SLEEPS, {}, RESTS),
    "pace changes": (
        replace(RESTING, num_relooks=3), reading(total_s=0.125, num_blocks=8), replace(SLEEPS, load_s=0.125), {},
        to(11),
    ),
    "cores change": (RESTING, reading(num_blocks=8), SLEEPS, {"cores": 8.0}, to(11)),
    "pace changes, and it does not wait": (RESTING, reading(total_s=0.2, waiting=0.0, num_blocks=8), SLEEPS, {}, RESTS),
    "pace changes again and again": (
        replace(RESTING, num_relooks=4), reading(total_s=0.2, num_blocks=8), SLEEPS, {}, RESTS,
    ),
    "not proven: the user's workers again": (
        KEPT, reading(4, 0.08, 0.0, num_blocks=8), CROWDED, {}, ("compare", 1, None, None, "comparing"),
    ),
    "not on short blocks": (KEPT, reading(4, 0.08, 0.0, num_blocks=7), CROWDED, {}, RESTS),
    "not before it lasted": (replace(KEPT, rested_s=5.0), reading(4, 0.08, 0.0, num_blocks=8), CROWDED, {}, RESTS),
    "not where workers start slowly": (
        of(KEPT, may_compare=False), reading(4, 0.08, 0.0, num_blocks=8), CROWDED, {}, RESTS,
    ),
    "not where ranks step together": (KEPT, reading(4, 0.08, 0.0, num_blocks=8), CROWDED, RANK, RESTS),
    "a large gain as predicted": (KEPT, reading(**FAST, num_blocks=8, num_steps=99), CROWDED, {}, RESTS),
    "the new workers again": (
        replace(KEPT, stage="comparing", target=None, was=4), reading(1, num_blocks=8), SLEEPS, {},
        ("compare", 4, None, None, "comparing"),
    ),
    "compared: kept": (
        replace(KEPT, stage="comparing", phases=((0.5, 0.5), (0.51, 0.51))), reading(4, 0.5, num_blocks=8), SLEEPS,
        {}, ("rest", None, None, None, "resting"),
    ),
    "compared: fewer, a little slower": (
        replace(of(KEPT, own=8), stage="comparing", phases=((0.102, 0.102), (0.1, 0.1))),
        reading(4, 0.102, num_blocks=8), SLEEPS, {}, ("rest", None, None, None, "resting"),
    ),
    "compared: fewer, slower": (
        replace(of(KEPT, own=8), stage="comparing", phases=((0.104, 0.104), (0.1, 0.1))),
        reading(4, 0.104, num_blocks=8), SLEEPS, {}, ("take back", 8, *TAKEN_BACK[2:]),
    ),
    "compared: gained nothing": (
        replace(KEPT, stage="comparing", phases=((0.1, 0.101), (0.1, 0.101))), reading(4, 0.1, num_blocks=8),
        SLEEPS, {}, TAKEN_BACK,
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE)
def test_each_decision(row):
    state, seen, work, bound, expected = TABLE[row]
    assert then(state, seen, work, replace(BOUND, **bound)) == expected


def test_a_change_waits_for_the_next_epoch():
    seen = reading(left=2, length=400)
    action = decide(WATCHING, seen, SLEEPS, replace(BOUND, start_cpu_s=1.0))
    assert action.state.is_for_next
    assert action.state.first is seen
    assert not action.state.was_crowded
    assert decide(WATCHING, reading(), CROWDED, BOUND).state.was_crowded
    assert not decide(WATCHING, reading(), SLEEPS, BOUND).state.is_for_next


@pytest.mark.parametrize("other", [{"decided_s": 0.05}, {"decided_cores": 8.0}])
def test_what_was_taken_back_is_not_tried_again(other):
    tried = decide(replace(RESTING, **other), reading(num_blocks=8), SLEEPS, BOUND).state
    back = decide(delivers(tried, 11), reading(11, 0.2), SLEEPS, BOUND).state
    assert then(back, reading(num_blocks=8)) == RESTS


def test_a_reason_ends_with_the_next_change():
    back = decide(CHANGED, reading(4, 0.2), SLEEPS, BOUND).state
    assert back.reason == "gained nothing"
    again = decide(replace(back, stage="watching", tried=()), reading(), SLEEPS, BOUND).state
    kept = after_epoch(delivers(again, 11), epoch(11, 0.5), 3)
    assert (kept.do, kept.state.reason) == ("keep", None)


def test_who_delivers_is_judged():
    starting = decide(WATCHING, reading(), SLEEPS, BOUND).state
    assert delivers(starting, 1).stage == "starting"
    assert delivers(starting, 11).stage == "judging"
    assert delivers(RESTING, 1).stage == "resting"


@pytest.mark.parametrize(
    ("other", "seconds", "num_whole", "num_blocks", "do"),
    [
        ({"before": reading(epoch_s=10.0)}, 9.0, 1, 3, "keep"),
        ({"before": reading(epoch_s=10.0), "is_for_next": True}, 9.0, 1, 3, "keep"),
        ({"before": reading(epoch_s=10.0)}, 9.5, 1, 3, "nothing"),
        ({"before": reading(epoch_s=10.0), "was": 8}, 10.29, 1, 3, "keep"),
        ({"before": reading(epoch_s=10.0), "was": 8}, 10.31, 1, 3, "take back"),
        ({"before": reading(epoch_s=10.0), "was": 8, "stage": "resting"}, 10.29, 1, 3, "nothing"),
        ({"before": reading(epoch_s=10.0)}, 9.6, 1, 3, "take back"),
        ({"before": reading(epoch_s=10.0)}, 9.6, 2, 3, "nothing"),
        ({"before": reading(epoch_s=10.0), "stage": "resting"}, 10.0, 1, 3, "nothing"),
        ({"before": reading(epoch_s=10.0), "stage": "resting"}, 10.1, 1, 3, "take back"),
        ({}, 0.88, 1, 3, "keep"),  # 10 batches of 0.1 s before
        ({}, 0.9, 1, 3, "nothing"),
        ({}, 0.85, 1, LOOKS[0], "nothing"),  # blocks of steps tell
        ({"target": 1}, 0.5, 1, 3, "nothing"),
        ({"before": None}, 0.5, 1, 3, "nothing"),
    ],
)
def test_a_whole_epoch_judges_where_steps_cannot(other, seconds, num_whole, num_blocks, do):
    state = replace(CHANGED, **other)
    assert after_epoch(state, epoch(4, seconds, num_whole), num_blocks).do == do


def test_a_rank_keeps_what_its_peers_make_no_faster():
    state = replace(CHANGED, before=reading(epoch_s=10.0))
    assert after_epoch(state, epoch(4, 10.2), 3, several_ranks=True).do == "keep"


def test_a_change_that_waits_is_judged_by_the_epoch_before_it():
    waiting = replace(CHANGED, stage="starting", is_for_next=True)
    assert after_epoch(waiting, epoch(1, 12.0), 3).state.before.epoch_s == 12.0
    assert after_epoch(replace(waiting, is_for_next=False), epoch(1, 12.0), 3).state.before.epoch_s is None


@pytest.mark.parametrize(
    ("state", "seen", "work", "value", "has_limits"),
    [
        (KEPT, reading(**FAST), CROWDED, 10 / 3, True),  # large, and as predicted
        (replace(KEPT, was_crowded=True), reading(**FAST), SLEEPS, 10 / 3, False),  # a load may have ended
        (replace(SLOW, predicted_s=0.375), reading(4, 0.25, 0.0), CROWDED, 2.0, True),  # as much more, and
        (replace(SLOW, predicted_s=0.5 / 3), reading(4, 0.25, 0.0), CROWDED, 2.0, True),  # as much less as may be
        (replace(KEPT, predicted_s=0.09), reading(**FAST), CROWDED, 10 / 3, False),  # more than predicted
        (replace(KEPT, predicted_s=0.005), reading(**FAST), CROWDED, 10 / 3, False),  # less
        (replace(KEPT, predicted_s=0.005, first=reading(step_s=0.0)), reading(**FAST), CROWDED, 10 / 3, True),  # ranks
        (replace(KEPT, predicted_s=0.005), reading(**FAST, step_s=0.0), CROWDED, 10 / 3, True),
        (KEPT, reading(4, 0.08), replace(SLEEPS, load_s=0.9, queued_s=0.1), 1.25, True),  # narrow
        (replace(KEPT, predicted_s=0.08), reading(4, 0.08), CROWDED, 1.25, False),  # a loaded machine
        (KEPT, reading(4, 0.08), None, 1.25, False),
        (KEPT, reading(4, 0.08, is_rough=True), SLEEPS, 1.25, False),
        (replace(KEPT, first=reading(is_rough=True)), reading(4, 0.08), SLEEPS, 1.25, False),
        (KEPT, replace(reading(4, 0.08), blocks=(0.075, 0.085) * 4), SLEEPS, 1.25, False),  # wide
        (replace(KEPT, phases=((0.08, 0.081), (0.1, 0.101), (0.09, 0.091))), reading(4, 0.09), None, 1.18, True),
    ],
)
def test_what_is_told_of_a_gain(state, seen, work, value, has_limits):
    gain = told(state, seen, work)
    assert gain.value == pytest.approx(value, rel=0.01)
    assert (gain.low is not None) is has_limits


def test_a_load_that_changed_lies_in_the_interval():
    gain = told(replace(KEPT, phases=((0.05, 0.051), (0.1, 0.101), (0.1, 0.101))), reading(**FAST), SLEEPS)
    assert gain.low < 1.0 < 1.9 < gain.high


@pytest.mark.parametrize(
    "state", [WATCHING, replace(CHANGED, phases=((0.03, 0.03),)), replace(KEPT, target=None), replace(KEPT, first=None)]
)
def test_nothing_is_told_of_what_was_not_kept(state):
    assert told(state, reading(**FAST), SLEEPS) is None


def test_what_is_told_begins_anew_where_workers_are_taken_back_or_settle():
    for was, target in ((1, None), (3, 3)):
        back = decide(replace(CHANGED, was=was), reading(4, 0.2), SLEEPS, BOUND).state
        assert back.target == target
        assert (told(back, reading(was), SLEEPS) is None) is (was == 1), "the user's own gained nothing"
    seen = reading(**FAST)
    assert decide(replace(KEPT, stage="watching"), seen, SLEEPS, BOUND).state.phases == (seen.blocks,)
    assert decide(WATCHING, reading(waiting=0.0), SLEEPS, BOUND).state.phases == ()


def test_an_advice_promises_no_more_than_the_wait_allows():
    action = decide(of(WATCHING, only_advises=True), reading(waiting=0.5, step_s=0.0), SLEEPS, BOUND)
    assert action.gain == pytest.approx(2.0)
    assert MOST >= action.num_workers > 1
    assert not math.isinf(action.gain)
