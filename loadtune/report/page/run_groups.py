"""Which runs compare, and what became of a kind of them from one to the next. In: `TuningResult`s. Pure.

They compare by what they looked for, samples/s or samples per joule, where workload, device and the number of usable
cores are the same too. Hosts may differ, as containers change their names.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from loadtune.records import Objective, TuningResult, Winner, WorkloadSpec
from loadtune.units import counted

Change = Literal["fell", "rose", "same", "first"]


class Kind(NamedTuple):
    """What has to be the same for two runs to compare."""

    workload: str
    device: str
    num_cores: int
    objective: Objective

    @property
    def text(self) -> str:
        by_energy = ", for samples per joule" if self.objective == "samples-per-joule" else ""
        return f"{self.workload}{by_energy} on {self.device}"


def by_kind(results: Iterable[TuningResult]) -> dict[Kind, list[TuningResult]]:
    """Oldest run first within each."""
    kinds: dict[Kind, list[TuningResult]] = {}
    for result in sorted(results, key=lambda one: one.created):
        kind = Kind(
            workload=_step_text(result.config.workload),
            device=result.device.name,
            num_cores=result.host.num_usable_cores,
            objective=result.config.objective,
        )
        kinds.setdefault(kind, []).append(result)
    return dict(sorted(kinds.items()))


def _step_text(spec: WorkloadSpec) -> str:
    """What makes a training step of its own, as far as it is not the default."""
    size = "" if spec.image_size is None else f", {spec.image_size} pixels"
    classes = "" if spec.num_classes is None else f", {counted(spec.num_classes, 'class')}"
    optimizer = "" if spec.optimizer == WorkloadSpec().optimizer else f", {spec.optimizer}"
    return f"{spec.title}{size}{classes}{optimizer}"


def changes(runs: Sequence[TuningResult]) -> list[Change]:
    """Of each confirmed run against the confirmed one before it: a difference is one where intervals do not overlap."""
    winners = [winner for _, winner in confirmed_of(runs)]
    first: list[Change] = ["first"]
    return first[: len(winners)] + [_change(before, after) for before, after in pairwise(winners)]


def confirmed_of(runs: Sequence[TuningResult]) -> list[tuple[TuningResult, Winner]]:
    return [(run, run.best) for run in runs if run.best is not None]


def _change(before: Winner, after: Winner) -> Change:
    """Without an interval nothing can be told apart."""
    old, new = before.picked_by, after.picked_by
    if old.half_width is None or new.half_width is None:
        return "same"
    difference = new.value - old.value
    if abs(difference) <= old.half_width + new.half_width:
        return "same"
    return "rose" if difference > 0 else "fell"


def departure_of(before: Winner, after: Winner) -> str:
    """``-3.1%``, in what both were picked by."""
    return f"{after.picked_by.value / before.picked_by.value - 1:+.1%}"
