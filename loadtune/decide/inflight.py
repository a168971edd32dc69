"""What to do about the workers of a loop that trains: one decision a look. Pure: no clock, no torch.

A change is kept where it more likely gains than not: being wrong costs little. What is *told* of it is another matter:
a gain with its interval (`told_gain`). Where the figures before and after a change alone cannot tell, the loop gets the
user's workers once more for a while, and then the new ones again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from loadtune.model.workers import HAND_COST_S, Loop, Work, batch_s, fewest, most_by_cores
from loadtune.records.statistics import LOOKS, Interval, bracket, ratio

ACT = 0.025
"""Share of the time that a loop waits from which on something is done, and that a change must be predicted to save."""
UNSURE_S = 1.4e-3
"""Seconds a batch that taking it from a worker may need, where the loop has none: `HAND_COST_S` and one standard
deviation of its prior. 0.4 to 1.5 ms were measured; a trial that gains nothing took 1.5 s of a loop of 6 s (H100)."""
STARVED = 0.5
"""Share of the steps that found no batch ready, below which more workers cannot end a wait."""
UNEXPLAINED = 0.08
"""Share of the time that a loop waits, and that the model does not explain, from which on more workers are tried."""
MORE = 1.3
"""Times as many are tried then: the least step whose gain stands out from the noise of one look."""
SAME = 0.15
"""Share by which numbers of workers differ that are worth a trial each."""
TRIES = 2
"""Changes, before the loop is left as it is: the first, and one correction."""
LEAST_GAIN = 0.02
"""Share by which a change must be faster to be kept: what more processes cost the rest of the machine."""
TIE = 0.03
"""Share by which fewer workers may be slower; and a rank's own, whose peers decide how fast it is."""
ROOM = 0.5
"""Cores that are idle ÷ what one more worker would use, below which the cores are said to be busy."""
CROWDED = 0.1
"""Share of a worker's time spent waiting for a core from which on the machine counts as loaded."""
WIDE = 1.1
"""Upper ÷ lower limit of a gain from which on figures before and after are not enough."""
CLEAR = 1.5
"""Gain that needs no second comparison where the workers' clocks predicted it: it is at most so many times as large as
predicted, and at least half of that on the logarithm; and no worker had to queue for a core before it."""
REST_S = 8.0
"""Seconds for which the new workers have delivered before that: a script that ends soon is not held up by it."""
IDLE = 0.65
"""Share of the workers that is enough from which on fewer are tried."""
RELOOKS, OTHER = 4, 0.2
"""Times at most that a loop at rest is looked at anew because its pace or its cores changed, and by which share."""
SHORT = 0.95
"""Of the seconds of an epoch before, which a whole epoch must stay below to show a gain."""
CHANCE = 0.1
"""Share by which a whole epoch is faster than its steps before the change, so that it is no chance."""
STARTING_S = 0.05
"""Seconds of the loop for each worker that starts: 9 that were forked beside CUDA took half a second to one (H100)."""

Stage = Literal["watching", "starting", "judging", "comparing", "resting", "left alone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Means over some steps with the same settings; seconds a batch."""

    num_workers: int
    num_steps: int
    total_s: float
    """From one batch to the next."""
    sustained_s: float = math.inf
    """The same over whole turns of the workers, which deliver in bursts, and without batches taken from a queue that
    shrank: workers do not load so many."""
    blocked_s: float
    """In ``next(loader)``."""
    handover_s: float = 0.0
    """Of those, where a batch stood ready: what taking it takes. 0: none was ever ready."""
    step_s: float
    """Between two calls of ``next``. With several ranks 0: it is not known, for waiting for a peer is in it."""
    starved: float = 1.0
    """Share of the steps that found no batch ready."""
    blocks: tuple[float, ...] = ()
    """Means of blocks of steps, oldest first."""
    is_rough: bool = False
    """Whether blocks are shorter than noise lasts: enough to decide by, not to tell a gain."""
    epoch_s: float | None = None
    """Seconds of whole epochs with these workers, in the mean. None: there was none."""
    peers_wait: bool | None = False
    """Whether another rank waits for data, and with it all do. None: no rank has said a word yet."""
    left: float = math.inf
    """Batches that this epoch still has. Infinite: not known."""
    length: float = math.inf
    """Batches of an epoch."""

    @property
    def waiting_fraction(self) -> float:
        """Share of the time blocked, beyond taking a batch that stands ready."""
        return max(0.0, self.blocked_s - self.handover_s) / self.total_s

    @property
    def waits(self) -> bool:
        """So much that something may be gained: handing over a batch takes its time with any workers."""
        return bool(self.peers_wait) or (self.blocked_s >= HAND_COST_S and self.waiting_fraction >= ACT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What does not change while a loader is tuned."""

    own: int
    """``num_workers`` as the user wrote it."""
    only_advises: bool = False
    """For an iterable dataset, and for ``--dry-run``."""
    persistent: bool = False
    may_compare: bool = True
    """Whether the user's workers may deliver once more: starting them costs little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What holds at a look, whatever is measured."""

    most: int
    """Workers."""
    reason: str
    """What bounds them."""
    cores: float
    """That this process and its workers may use."""
    start_cpu_s: float = 0.0
    """CPU seconds in which one worker starts."""
    refusal: str | None = None
    """Why no other workers may load. None: they may."""
    is_taken: bool = False
    """Whether another loader is being changed."""
    several_ranks: bool = False
    """Whether other ranks step together with this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What was decided until now."""

    job: Job
    stage: Stage = "watching"
    target: int | None = None
    """Workers with which an epoch begins. None: the user's."""
    was: int = 0
    """Workers before the newest change."""
    before: Reading | None = None
    """What was measured with them. None: nothing was changed."""
    predicted_s: float = 0.0
    """Seconds a batch that were expected of the change."""
    is_for_next: bool = False
    """Whether the change waits for the next epoch."""
    tried: tuple[int, ...] = ()
    seen: int = 0
    """Blocks of steps at the last look that judged."""
    first: Reading | None = None
    """With the user's workers, before the first change."""
    was_crowded: bool = False
    """Whether those queued for cores then: a load that ends looks like a gain."""
    phases: tuple[tuple[float, ...], ...] = ()
    """Blocks of the workers that were kept; where they are compared again, of the user's and of the kept ones, too."""
    limit: str | None = None
    """What limits the loop: ``the step``, ``workers``, ``cores``, ``handing batches over``, or what bounds workers."""
    reason: str | None = None
    """Why the loader is left alone, or why the loop is left as it is, where `limit` does not say it."""
    num_relooks: int = 0
    rested_s: float = 0.0
    """Seconds of steps since the loop was left as it is."""
    decided_s: float = 0.0
    """Seconds a batch then. 0: it was not looked at since."""
    decided_cores: float = 0.0

    @property
    def wanted(self) -> int:
        """Workers that should deliver now, or will once they are ready."""
        return self.job.own if self.target is None else self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What is to be done, and the state that follows."""

    state: State
    do: Literal["nothing", "switch", "compare", "advise", "leave", "keep", "take back", "rest"] = "nothing"
    num_workers: int | None = None
    """To switch to, to compare with, or to advise."""
    gain: float | None = None
    """Seconds a batch now ÷ predicted ones, of an advice."""


def is_due(state: State, num_blocks: int) -> bool:
    """Whether these blocks of steps are worth a look: reading clocks and figures takes a millisecond or two."""
    match state.stage:
        case "judging":
            return not state.is_for_next and any(state.seen < size <= num_blocks for size in LOOKS)
        case "comparing" | "resting":
            return num_blocks >= LOOKS[1]
    return state.stage == "watching"


def decide(state: State, reading: Reading, work: Work | None, bound: Bound) -> Action:
    """``work``: None: too little was loaded since these workers deliver, as by a rank that loads nothing."""
    is_wanted = reading.num_workers == state.wanted  # others deliver until the wanted ones are ready
    if not is_wanted or not is_due(state, 0 if reading.is_rough else len(reading.blocks)):
        return Action(state=state)
    match state.stage:
        case "watching":
            return _watching(state, reading, work, bound)
        case "judging":
            return _judging(state, reading, bound)
        case "comparing":
            return _comparing(state, reading, bound)
    return _resting(state, reading, work, bound)


def _watching(state: State, reading: Reading, work: Work | None, bound: Bound) -> Action:
    now = reading.num_workers
    loop = loop_of(reading, bound)
    may_try = len(state.tried) < (1 if bound.several_ranks else TRIES)
    if not reading.waits:
        if reading.peers_wait is None:  # a peer that waits says so within seconds
            return Action(state=state)
        enough = now if work is None else fewest(work, loop, max(1, now))
        if work is not None and state.tried and may_try and now > 2 and enough <= IDLE * now:
            return _switch(state, reading, work, bound, enough)
        return _settle(state, reading, bound, "the step")
    if work is None or bound.is_taken:
        return Action(state=state)
    if bound.most == 0 and bound.refusal:
        return _leave(state, bound.refusal)
    if not may_try:
        return _settle(state, reading, bound, bound.reason if now >= bound.most else "workers")
    allowed_s, busy = (1 - ACT) * reading.total_s, most_by_cores(bound.cores, work.load_s, work.cpu_s)
    if busy < now and busy not in state.tried and batch_s(work, loop, busy) <= allowed_s:
        return _switch(state, reading, work, bound, busy)
    want, predicted_s = fewest(work, loop, max(1, min(bound.most, busy))), partial(batch_s, work, loop)
    if want <= now or bound.most == 0 or predicted_s(want) > allowed_s:
        if limit := _limit(reading, work, bound):
            return _settle(state, reading, bound, limit)
        want = min(bound.most, max(now + 1, round(MORE * now)))
        predicted_s = partial(_at_best_s, reading, want)
    if any(abs(want / one - 1) < SAME for one in state.tried):
        return _settle(state, reading, bound, "workers")
    if (paying := _that_pay(reading, predicted_s, bound, want, reading.left)) is not None:
        return _switch(state, reading, work, bound, paying)
    is_kept = state.job.persistent or bound.several_ranks
    paying = _that_pay(reading, predicted_s, bound, want, reading.length)
    if is_kept or paying is None:
        return _settle(state, reading, bound, "workers", "short epoch")
    return _switch(state, reading, work, bound, paying, for_next=True)


def _at_best_s(reading: Reading, want: int, num_workers: int) -> float:
    """Seconds a batch, if ``want`` workers ended all waiting, and fewer none."""
    return reading.total_s * (1 - reading.waiting_fraction if num_workers >= want else 1)


def _limit(reading: Reading, work: Work, bound: Bound) -> str:
    """Of a loop that waits although the model expects nothing of more workers. Empty: more are tried, because what
    would limit them was not seen."""
    if reading.num_workers >= bound.most:
        return bound.reason
    if reading.num_workers == 0 or reading.starved < STARVED:
        return "handing batches over"
    more_cores = min(1.0, work.cpu_s / work.load_s)
    if work.cores_busy is not None and (1 - work.cores_busy) * bound.cores < ROOM * more_cores:
        return "cores"
    return "workers" if reading.waiting_fraction <= UNEXPLAINED else ""


def _that_pay(
    reading: Reading, predicted_s: Callable[[int], float], bound: Bound, want: int, left: float
) -> int | None:
    """Of up to ``want`` workers, those that end so many batches soonest; until they deliver, the present rate lasts.
    None: none save time."""
    if math.isinf(left):
        return want

    def saved_s(number: int) -> float:
        start_s = bound.start_cpu_s * max(1.0, number / bound.cores) + STARTING_S * number
        return max(0.0, left - start_s / reading.total_s) * (reading.total_s - predicted_s(number))

    saved = {number: saved_s(number) for number in range(1, want + 1)}
    enough = max(saved.values()) - 0.01 * left * reading.total_s
    best = next(number for number, seconds in saved.items() if seconds >= enough)
    return best if saved[best] > 0 and best > reading.num_workers else None


def loop_of(reading: Reading, bound: Bound) -> Loop:
    return Loop(reading.step_s, bound.cores, reading.handover_s if reading.num_workers else UNSURE_S)


def _switch(state: State, reading: Reading, work: Work, bound: Bound, number: int, *, for_next: bool = False) -> Action:
    predicted_s, now = batch_s(work, loop_of(reading, bound), number), reading.num_workers
    state = replace(state, decided_s=0.0, decided_cores=bound.cores)
    if state.job.only_advises:
        most = number / now if now else math.inf  # no worker loads faster than now
        gain = min(most, reading.total_s / predicted_s, 1 / max(1e-3, 1 - reading.waiting_fraction))
        state = replace(state, stage="resting", limit="workers")
        return Action(state=state, do="advise", num_workers=number, gain=gain)
    if bound.refusal is not None:
        return _leave(state, bound.refusal)
    starting = replace(
        state,
        stage="starting",
        reason=None,
        target=number,
        was=now,
        before=reading,
        predicted_s=predicted_s,
        is_for_next=for_next,
        tried=(*state.tried, number),
        seen=0,
        first=reading if now == state.job.own else state.first,
        was_crowded=_is_crowded(work) if now == state.job.own else state.was_crowded,
    )
    return Action(state=starting, do="switch", num_workers=number)


def _leave(state: State, reason: str) -> Action:
    return Action(state=replace(state, stage="left alone", target=None, reason=reason), do="leave")


def delivers(state: State, number: int) -> State:
    """So many workers deliver from now on."""
    return replace(state, stage="judging") if state.stage == "starting" and number == state.target else state


def _judging(state: State, reading: Reading, bound: Bound) -> Action:
    assert state.before is not None
    num = len(reading.blocks)
    gain = ratio(reading.blocks, state.before.blocks)
    least = 1 - TIE if _may_tie(reading.num_workers, state.was, bound.several_ranks) else 1 + LEAST_GAIN
    if (gain.low or 0.0) > least or (num >= LOOKS[-1] and gain.value >= least):
        limit = "workers" if reading.waits else "the step"
        return Action(state=replace(state, stage="watching", phases=(reading.blocks,), limit=limit), do="keep")
    if num >= LOOKS[-1] or (gain.high or math.inf) < least:
        return _take_back(state, state.was)
    return Action(state=replace(state, seen=num))


def _may_tie(number: int, before: int, several_ranks: bool) -> bool:
    """Whether so many workers may be a little slower than those before."""
    return several_ranks or number < before


def _take_back(state: State, number: int) -> Action:
    """``number`` of workers: those of before. Where they are not the user's, their own gain is still to be told."""
    is_own = number == state.job.own
    before = () if is_own or state.before is None else (state.before.blocks,)
    back = replace(
        state,
        stage="resting" if is_own else "watching",
        target=None if is_own else number,
        phases=before,
        limit="handing batches over",
        reason="gained nothing",
    )
    return Action(state=back, do="take back", num_workers=number)


def after_epoch(state: State, epoch: Reading, num_blocks: int, *, several_ranks: bool = False) -> Action:
    """Where epochs are too short for blocks of steps, these judge a change. ``epoch``: over a whole one; its blocks are
    the epochs with these workers. ``num_blocks``: of steps, since these workers deliver."""
    before, now, epoch_s = state.before, epoch.num_workers, epoch.epoch_s
    assert epoch_s is not None
    if before is not None and state.stage == "starting" and state.is_for_next:
        return Action(state=replace(state, before=replace(before, epoch_s=epoch_s)))
    if before is None or now != state.wanted or now == state.was:
        return Action(state=state)
    is_judging, limit_s = state.stage == "judging", 0.0
    if before.epoch_s is not None:
        may_tie = _may_tie(now, state.was, several_ranks)
        limit_s = (1 + TIE if may_tie else SHORT if is_judging else 1.0) * before.epoch_s
        if len(epoch.blocks) == 1 and epoch_s > limit_s and state.stage in ("judging", "watching", "resting"):
            return _take_back(state, state.was)
    elif num_blocks < LOOKS[0]:
        limit_s = (1 - CHANCE) * epoch.num_steps * before.total_s
    if not is_judging or epoch_s >= limit_s:
        return Action(state=state)
    return Action(state=replace(state, stage="resting", phases=((),), limit="workers"), do="keep")


def told(state: State, reading: Reading, work: Work | None) -> Interval | None:
    """Seconds a batch with the user's workers ÷ those with the others. Without limits where figures from before and
    after the change alone do not tell. None: nothing was changed, or these are not the workers that were kept."""
    if len(state.phases) == 3:  # a load that changed in between lies in the interval
        again, own, other = state.phases[2], state.phases[1], state.phases[0]
        return bracket(ratio(other, own, num_looks=1), ratio(again, own, num_looks=1))
    first, is_kept = state.first, state.stage in ("watching", "resting") and reading.num_workers == state.wanted
    if first is None or not state.phases or not is_kept:
        return None
    gain = ratio(reading.blocks, first.blocks)  # the level of one look: it is told anew at each
    if gain.low is None or gain.high is None:
        return gain
    foreseen = first.total_s / state.predicted_s
    is_step_known = first.step_s > 0 < reading.step_s  # else a rank's step, or starting, may keep it from that
    least = max(CLEAR, math.sqrt(foreseen) if is_step_known else 0.0)
    is_foreseen = gain.low >= least and gain.value <= CLEAR * foreseen
    is_narrow = gain.high <= WIDE * gain.low and not _is_crowded(work) and not first.is_rough and not reading.is_rough
    return gain if (is_narrow or is_foreseen) and not state.was_crowded else Interval(value=gain.value)


def _is_crowded(work: Work | None) -> bool:
    return work is None or work.queued_s > CROWDED * (work.load_s + work.queued_s)


def _settle(state: State, reading: Reading, bound: Bound, limit: str, reason: str | None = None) -> Action:
    phases = (reading.blocks,) if state.phases else ()
    rests = replace(state, stage="resting", phases=phases, limit=limit, reason=reason, rested_s=0.0, decided_s=0.0)
    return Action(state=replace(rests, decided_cores=bound.cores), do="rest")


def _resting(state: State, reading: Reading, work: Work | None, bound: Bound) -> Action:
    decided_s = state.decided_s or reading.total_s
    other_pace = abs(reading.total_s / decided_s - 1) > OTHER or state.limit == "the step"
    other_cores = abs(bound.cores / state.decided_cores - 1) > OTHER
    is_other = state.num_relooks < RELOOKS and reading.waits and (other_pace or other_cores)
    if state.job.only_advises or is_other:
        return _watching(
            replace(state, stage="watching", num_relooks=state.num_relooks + 1, tried=()), reading, work, bound
        )
    rested_s = state.rested_s + reading.num_steps * reading.total_s
    state = replace(state, decided_s=decided_s, rested_s=rested_s)
    own, now = state.job.own, reading.num_workers
    may_compare = state.job.may_compare and not bound.several_ranks and not bound.refusal
    if len(state.phases) != 1 or not may_compare or rested_s < REST_S or now == own:
        return Action(state=state)
    state, gain = replace(state, phases=(reading.blocks,)), told(state, reading, work)
    if gain is not None and gain.low is not None:
        return Action(state=state)
    return Action(state=replace(state, stage="comparing", target=None, was=now), do="compare", num_workers=own)


def _comparing(state: State, reading: Reading, bound: Bound) -> Action:
    """The user's workers deliver once more, then those that were kept (`State.was`)."""
    if bound.refusal is not None:
        return _leave(state, bound.refusal)
    state = replace(state, phases=(*state.phases, reading.blocks))
    if len(state.phases) == 2:
        return Action(state=replace(state, target=state.was), do="compare", num_workers=state.was)
    gain, state = told(state, reading, None), replace(state, stage="resting")
    least = 1 - TIE if _may_tie(reading.num_workers, state.job.own, bound.several_ranks) else 1 + LEAST_GAIN
    if gain is not None and gain.value < least:
        return _take_back(state, state.job.own)
    return Action(state=state, do="rest")
