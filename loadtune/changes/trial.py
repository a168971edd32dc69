"""The one way to try a change: on the user's own samples, in turn with the samples as they are. Needs torch.

Samples are loaded in a process that trains nothing, with one thread, as a worker has. What a change saves has an
interval. What it does to values is compared under equal random states, and on images whose content is known.
"""

import copy
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from loadtune.changes.change import CHANGES, FEWEST_EXAMINED, Change, in_order, num_examined
from loadtune.changes.way import Opens, Way, few_of
from loadtune.host.processes import loading_s
from loadtune.records.loading import Examined, Loading, NotApplicableError, Values
from loadtune.records.statistics import Interval, around_ratio, t
from loadtune.workload.batches import Batch, map_tensors, num_bytes, tensors_of
from loadtune.workload.loaders import one_thread
from loadtune.workload.user_code import last_line

MOST_PARTS = 32
"""Batches that the samples are loaded in; with and without the change each is loaded in turn. The shorter they are, the
less often another process spoils one."""

PART_S = 0.0125
"""They are as large as those of the job, if they load in about so many seconds at the most."""

CLEAR = 1.1
"""Upper ÷ lower limit of what is saved, from which on all are not loaded once more, with and without the change."""

ENOUGH_S = 1.5
"""Nor after so many seconds of loading with the change."""

WORTH = 1.1
"""Times as cheap that loading has to be for sure where a change is offered to a running training."""

_CPU = torch.device("cpu")


class Ways:
    """The way with any changes; each combination is made once."""

    def __init__(self, way: Way) -> None:
        self._made: dict[tuple[str, ...], Way] = {(): way}

    def way(self, names: Sequence[str]) -> Way:
        """Raises NotApplicableError."""
        names = tuple(names)
        if names not in self._made:
            self._made[names] = CHANGES[names[-1]].apply(self.way(names[:-1]))
        return self._made[names]


def examine(
    ways: Ways,
    before: Sequence[str],
    name: str,
    *,
    batch_size: int = 1,
    device: torch.device = _CPU,
    pulse: Callable[[], None] = lambda: None,
    is_beside: bool = False,
) -> Examined:
    """A change on top of those before it. ``batch_size``: of the job, for batches that are not too small to time.
    ``device``: where values are compared, as they are trained on. ``is_beside``: a training runs beside it, so that CPU
    seconds are scarce, and of others it gets few."""
    change = CHANGES[name]
    pulse()
    try:
        one = ways.way(in_order(before))
        if change.loads and (one.loader.batches_are_ready or one.loader.is_iterable or not len(one.indices)):
            return Examined(name=name, refused="its samples are not read one by one, by their indices")
        other = ways.way(in_order((*before, name)))
        found = _Trial(change, one, other, batch_size, device, pulse, is_beside).run() if change.loads else {}
        is_whole = change.loads and _pastes(ways, (*in_order(before), name))
        return Examined(name=name, code=change.own_code(one, other, is_whole=is_whole), **found)
    except NotApplicableError as error:
        return Examined(name=name, refused=str(error))
    except Exception as error:  # what is wrong with one change is no end of the run
        # Its cause: a WorkloadError gives advice for a dataset that is loaded as it is.
        return Examined(name=name, refused=f"it could not be applied: {last_line(error.__cause__ or error)}")


def _pastes(ways: Ways, names: tuple[str, ...]) -> bool:
    """Whether the lines of these changes, run one after the other for a copy of the dataset, do what was tried."""
    way, defined = ways.way(in_order(names)), {"dataset": copy.copy(ways.way(()).users_dataset)}
    try:
        for at, name in enumerate(names):
            parts = [replace(ways.way(in_order(names[:num])), num_samples=FEWEST_EXAMINED) for num in (at, at + 1)]
            lines = CHANGES[name].own_code(parts[0], parts[1])
            of_dataset = lines.partition("# once, before")[0].partition("# in the training loop")[0]
            exec(of_dataset, defined)  # noqa: S102 - lines of our own
        pasted, opens = way.with_parts(dataset=defined["dataset"]), Opens()
        watched = pasted.with_how(others=(opens,))
        few, batches = few_of(way.indices, FEWEST_EXAMINED), []
        if keeps := CHANGES[names[-1]].keeps:
            pasted.load(few)
        opens_none = keeps or (way.how.tensors and not way.how.others)
        for each in (way, watched if opens_none else pasted):
            _seed(0)
            batches.append(each.load(few))
        apart = _Differences()
        apart.add(*batches)
        return not opens.num and apart.farthest <= 1e-4
    except Exception:  # of lines that are to be completed, or of a transform that takes no tensors
        return False


def stacked(way: Way, is_over: Callable[[], bool], too_little: list[str]) -> Iterator[Examined]:
    """Changes of loading, the one that saves most first, each tried on top of those before it and `WORTH` offering.
    Those that take memory are tried once no other is left. Ends early where ``is_over()``. ``too_little`` gets what
    those save that apply, if none is worth offering."""
    ways, names = Ways(way), list[str]()
    # The lines of the others depend on settings that are not known here.
    waiting = [name for name, each in CHANGES.items() if each.loads and type(each).code is Change.code]
    while waiting:
        able, seen = list[str](), list[Examined]()
        for name in sorted(waiting, key=lambda name: CHANGES[name].keeps):
            if is_over():
                return
            if seen and CHANGES[name].keeps:
                able.append(name)
                continue
            each = examine(ways, names, name, batch_size=way.loader.batch_size or 1, is_beside=True)
            able += [name] if each.refused is None else []  # one that saves little may save more on top of another
            seen += [each] if each.cheaper is not None and (each.cheaper.low or 0.0) >= WORTH else []
            if each.cheaper is not None and each.cheaper.low is not None and not names:
                low, high = each.cheaper.low, each.cheaper.high
                too_little.append(f"{name} takes {low:.2f} to {high:.2f} times less CPU time")
        if not seen:
            return
        too_little.clear()
        best = max(seen, key=lambda each: each.cheaper.value if each.cheaper else 0.0)
        yield replace(best, title=CHANGES[best.name].title)
        names.append(best.name)
        waiting = [name for name in able if name != best.name]


@dataclass(frozen=True, slots=True)
class _Trial:
    change: Change
    before: Way
    after: Way
    batch_size: int
    device: torch.device
    pulse: Callable[[], None]
    is_beside: bool

    def run(self) -> dict[str, Any]:
        """Under the names that `Examined` has for them. Raises NotApplicableError."""
        before, after = self.before, self.after
        compared = self.change.compared(before, after)
        # Files open and modules load meanwhile: the first times are longer.
        few = self._drawn(1, FEWEST_EXAMINED)[0]
        first = [self._load(before, few, 0)[1] for _ in range(2)]
        self._load(after, few, 0)
        sample_s = min(cpu_s if self.is_beside else wall_s for wall_s, cpu_s in first) / len(few)
        num_parts = min(MOST_PARTS, num_examined(sample_s))
        size = max(1, num_examined(sample_s) // num_parts, min(self.batch_size, int(PART_S / sample_s)))
        parts = self._drawn(num_parts, size)
        plain, changed = ([(math.inf, math.inf)] * num_parts for _ in range(2))
        values, batches = _Differences(), [Any, Any]
        for round_number in range(math.ceil(ENOUGH_S / (num_parts * size * sample_s))):
            if round_number and _is_clear(_cheaper(plain, changed)):
                break
            for number, indices in enumerate(parts):
                one, took = self._load(before, indices, number)
                plain[number] = _quicker(plain[number], took)
                other, took = self._load(after, indices, number)
                changed[number] = _quicker(changed[number], took)
                if round_number == 0:
                    values.add(*self._trained_on(compared, one, other, indices, number))
                    batches = [one, other]
        told = values.found(min(size * num_parts, len(after.indices)))
        if values.farthest > self.change.farthest:
            raise NotApplicableError(f"samples would be other ones: their {told.text}")
        one, other = batches
        return {
            "before": _loading(plain, size, num_bytes(one) / size, self._prepare_s(before, one, size)),
            "after": _loading(changed, size, num_bytes(other) / size, self._prepare_s(after, other, size)),
            "cheaper": _cheaper(plain, changed),
            "values": told,
        }

    def _drawn(self, num: int, size: int) -> list[list[Any]]:
        """So many batches of samples that are spread over the whole data set: always the same ones."""
        few = few_of(self.after.indices, num * size)
        return [[few[each % len(few)] for each in range(begin, begin + size)] for begin in range(0, num * size, size)]

    def _trained_on(
        self, compared: tuple[Way, Way], one: Batch, other: Batch, indices: Sequence[Any], number: int
    ) -> tuple[Batch, Batch]:
        """Both batches as they are trained on."""
        before, after = compared
        if before is not self.before:
            one, other = (self._load(way, indices, number)[0] for way in compared)
        if number == 0:
            again = _Differences()
            again.add(one, self._load(before, indices, number)[0])
            if again.most:
                raise NotApplicableError("the same sample, loaded twice by the same random state, has other values")
        return before.prepared(self._moved(one)), after.prepared(self._moved(other))

    def _moved(self, batch: Batch) -> Batch:
        return map_tensors(batch, lambda tensor: tensor.to(self.device))

    def _prepare_s(self, way: Way, batch: Batch, size: int) -> float:
        """A sample, of what the way does with a batch on the GPU, of about the job's size. 0: there is none."""
        if self.device.type != "cuda" or not way.on_device:
            return 0.0
        times, took = max(1, self.batch_size // size), list[float]()
        there = map_tensors(self._moved(batch), lambda tensor: tensor.repeat(times, *[1] * (tensor.dim() - 1)))
        for _ in range(4):  # the first takes longer
            torch.cuda.synchronize(self.device)
            begun = time.monotonic()
            way.prepared(there)
            torch.cuda.synchronize(self.device)
            took.append(time.monotonic() - begun)
        return min(took) / (times * size)

    def _load(self, way: Way, indices: Sequence[Any], number: int) -> "tuple[Batch, _Took]":
        """A batch as a worker makes it. A number gives the same augmentation."""
        self.pulse()
        with one_thread():
            _seed(number)
            begun_s, used_s = _clocks()
            batch = way.load(indices)
            now_s, now_used_s = _clocks()
            cpu_s = max(1e-9, now_used_s - used_s)
            return batch, (max(cpu_s, now_s - begun_s), cpu_s)


_Took = tuple[float, float]
"""Seconds of loading a batch, and CPU seconds of it."""


def _clocks() -> tuple[float, float]:
    """Seconds without those in which this thread waited for a core; and CPU seconds, also of children that ended."""
    cpu_s, queued_s = loading_s()
    return time.monotonic() - queued_s, cpu_s


def _quicker(one: _Took, other: _Took) -> _Took:
    """The least of both."""
    return min(one[0], other[0]), min(one[1], other[1])


def _seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def _loading(parts: Sequence[_Took], size: int, sample_bytes: float, prepare_s: float) -> Loading:
    """Each part by its quickest round: other load on the machine only slows."""
    wall_s, cpu_s = (math.fsum(each) / (size * len(parts)) for each in zip(*parts, strict=True))
    return Loading(
        sample_s=max(cpu_s, wall_s), sample_cpu_s=cpu_s, sample_bytes=max(1.0, sample_bytes), prepare_s=prepare_s
    )


def _cheaper(before: Sequence[_Took], after: Sequence[_Took]) -> Interval:
    """CPU seconds before ÷ after: the mean over parts, each by its quickest round."""
    logs = [math.log(one / other) for (_, one), (_, other) in zip(before, after, strict=True)]
    half_width = t(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return around_ratio(math.exp(statistics.fmean(logs)), half_width)


def _is_clear(cheaper: Interval) -> bool:
    return cheaper.low is not None and cheaper.high is not None and cheaper.high / cheaper.low <= CLEAR


class _Differences:
    """Of values that are trained on, over all parts."""

    def __init__(self) -> None:
        self.most = self.farthest = self._sum = self._spread = 0.0
        """Largest difference of two values; and largest mean difference in a tensor of a batch ÷ the values' standard
        deviation there."""
        self._num = 0

    def add(self, one: Batch, other: Batch) -> None:
        """Raises NotApplicableError where batches are of another kind."""
        ours, theirs = list(tensors_of(one)), list(tensors_of(other))
        if len(ours) != len(theirs):
            raise NotApplicableError(f"a batch would hold {len(theirs)} tensors instead of {len(ours)}")
        for before, after in zip(ours, theirs, strict=True):
            if before.shape != after.shape or before.dtype != after.dtype:
                raise NotApplicableError(
                    f"a batch would hold {after.dtype} of {tuple(after.shape)} instead of {before.dtype} of "
                    f"{tuple(before.shape)}"
                )
            same = (before == after) | (before.isnan() & after.isnan())
            if not (before.is_floating_point() or before.dtype == torch.uint8):
                if not same.all():
                    raise NotApplicableError("some integers of a sample would have other values")
                continue
            apart = torch.where(same, 0.0, (before.double() - after.double()).abs())
            if not apart.isfinite().all():
                raise NotApplicableError("some values of a sample would not be finite")
            self.most = max(self.most, float(apart.max()) if apart.numel() else 0.0)
            self._sum, self._num = self._sum + float(apart.sum()), self._num + apart.numel()
            spread = float(before.double().nan_to_num().std()) if before.numel() > 1 else 0.0
            self._spread = max(self._spread, spread)
            if apart.any():
                self.farthest = max(self.farthest, float(apart.mean()) / max(1e-12, spread))

    def found(self, num_samples: int) -> Values:
        return Values(num_samples=num_samples, most=self.most, mean=self._sum / max(1, self._num), spread=self._spread)
