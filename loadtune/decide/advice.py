"""Whether changes of the code are tried beside a loop, when that ends, and what they would bring. Pure: no clock.

The process beside the loop goes on in every second slice of time and is stopped in the others. So the loop's rate with
it and without it is measured on one machine at one time. A machine that drifts changes both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev

from loadtune.decide.inflight import Reading
from loadtune.model.workers import Loop, Work, batch_s
from loadtune.records.loading import Examined
from loadtune.records.statistics import BLOCK_S, LOOKS, t

MISSED = 0.01
"""Share of the loop's rate that the process beside it may take."""
MOST_S = 600.0
"""Seconds after which the process beside the loop is ended, whatever it got to do."""
UNTIL_TUNED_S = 60.0
"""The same where the script ends then."""
TELLS = 1.05
"""Predicted gain from which on something is said; and of loading with half the CPU time, from which on it is tried."""


def begins(hoped: float, refusal: str | None, *, is_settled: bool) -> tuple[bool, str | None]:
    """Whether something is tried beside a loop, and why not where that would be worth it.

    ``hoped``: times as fast as the loop would be if loading took half the CPU time: 1 where the step is the bottleneck.
    ``refusal``: why no other process may read the dataset. ``is_settled``: whether the loop is at rest, and nothing is
    being tried.
    """
    is_worth = is_settled and hoped >= TELLS
    return is_worth and refusal is None, refusal if is_worth else None


def reason_to_stop(ran_s: float, may_run_s: float, rates: Sequence[float], *, is_settled: bool) -> str | None:
    """``rates``: the loop's rate with the process ÷ its rate without it, of each pair of slices, where there is a new
    one. ``ran_s``: seconds since the process was started. None: it goes on."""
    if not is_settled:
        return "the loop changed, or another loader was being tuned"
    if is_missed(rates):
        return f"it slowed the training by more than {MISSED:.0%}"
    return "it took too long" if ran_s > may_run_s else None


def niceness(cores: float) -> int:
    """At which a process that never rests takes `MISSED` of so many cores that others keep busy: the kernel gives 1.25
    times less for each step. The lowest priority of all would get 0.3% of one core, and read times that mean nothing.
    """
    share = min(0.5, MISSED * cores)
    return min(19, round(math.log((1 - share) / share, 1.25)))


def is_missed(rates: Sequence[float]) -> bool:
    """Whether the loop is slower with the process beside it, beyond what noise explains. Looks come at twice as many
    pairs each. Each has the interval of a single one: stopping without need costs an advice, going on the training."""
    looks = math.log2(len(rates) / LOOKS[0]) if rates else -1.0
    if looks < 0 or looks % 1 > 0:
        return False
    logs = [math.log(rate) for rate in rates]
    half_width = t(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(fmean(logs) + half_width) < 1 - MISSED


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRest:
    """The loop before anything ran beside it."""

    work: Work
    loop: Loop
    reading: Reading
    batch_size: int

    def faster(self, saved_s: float, gpu_busy: float = 0.0) -> float:
        """Times as fast as it would be if loading a batch took so many CPU seconds less: at most what ends all waiting.
        What loading waits for, such as a disk, stays. ``gpu_busy``: share of the time in which kernels run; of those
        that run while the loop waits for data, its clock knows nothing."""
        work = self.work
        wall_s = min(saved_s, saved_s * work.load_s / max(1e-9, work.cpu_s))  # less where loading has several threads
        cheaper = replace(work, cpu_s=work.cpu_s - saved_s, load_s=work.load_s - wall_s)
        times = [batch_s(each, self.loop, self.reading.num_workers) for each in (work, cheaper)]
        return min(times[0] / times[1], 1 / max(1e-3, 1 - self.reading.waiting_fraction, gpu_busy))

    def hoped(self) -> float:
        return self.faster(self.work.cpu_s / 2)

    def gain(self, tried: Sequence[Examined], gpu_busy: float | None = None) -> float:
        """Of changes that were tried, each on top of those before it: CPU time that was not seen in a sample, as that
        of handing over, stays. The process that tries seldom gets a core, so its wall time tells nothing."""
        cpu_s = [(each.before.sample_cpu_s, each.after.sample_cpu_s) for each in tried if each.before and each.after]
        seen_s = min(self.work.cpu_s, cpu_s[0][0] * self.batch_size)
        return self.faster(seen_s * (1 - math.prod(after / before for before, after in cpu_s)), gpu_busy or 0.0)


@dataclass(slots=True)
class Slices:
    """Steps of the loop by slices of time: of each pair the first without the process beside it, the second with it."""

    slice_s: float
    lag_s: float
    """Seconds after which a step shows what runs beside it: those in which a worker makes a batch."""
    rates: list[float] = field(default_factory=list)
    """With it ÷ without it, of each pair."""
    _now: int = -1
    _num: int = 0
    _seconds: float = 0.0
    _alone: tuple[int, float] = (-1, 0.0)
    """The last slice without it, and its seconds a step."""

    @classmethod
    def of(cls, reading: Reading) -> "Slices":
        lag_s = max(1, reading.num_workers) * reading.total_s
        return cls(max(2 * BLOCK_S, 4 * lag_s), lag_s)

    def add(self, ended_s: float, seconds: float) -> bool:
        """A step of the loop. Whether a pair became complete with it. ``ended_s``: by the monotonic clock."""
        number, is_new = int(ended_s / self.slice_s), False
        if number != self._now:
            mean_s = self._seconds / self._num if self._num else 0.0
            if mean_s and is_on(self._now) and self._alone[0] == self._now - 1:
                self.rates.append(self._alone[1] / mean_s)
                is_new = True
            if mean_s and not is_on(self._now):
                self._alone = self._now, mean_s
            self._now, self._num, self._seconds = number, 0, 0.0
        if ended_s - seconds - self.lag_s >= number * self.slice_s:
            self._num, self._seconds = self._num + 1, self._seconds + seconds
        return is_new


def is_on(number: int) -> bool:
    """Whether the process beside the loop goes on in the slice of this number."""
    return number % 2 == 1
